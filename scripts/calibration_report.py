#!/usr/bin/env python3
"""Regenerates the table of reports/calibration.md: how far a few measured steps of a cluster bring down the error on its
other steps. For each source, eight times: draw steps to fit (a fixed seed), calibrate, and predict the steps that were not
drawn (at most thirty of them).

    scripts/calibration_report.py [build/release/shardsim]
"""
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/shardsim")
REPORT = ROOT / "reports/calibration.md"
MARK = "| source | profile |"
SOURCES = (("mosaic_llm_foundry", "dgx-h100"), ("torchtitan", "grand-teton-h100-96gb"), ("internevo", "dgx-a100-80gb"))
DRAWS, MOST_CHECKED = 8, 30


def write(path, runs):
    path.write_text(json.dumps({"schema": "shardsim.runs/1", "runs": runs}))
    return str(path)


def runs_of(source, profile, scratch):
    """Measured steps of the profile that the simulator does not refuse."""
    document = json.loads((ROOT / f"validation/measured/{source}.json").read_text())
    kept = []
    for run in document["runs"]:
        if run["cluster"]["profile"] != profile or not run.get("measured", {}).get("step_time_s"):
            continue
        file = write(scratch / "one.json", [run])
        if subprocess.run([BINARY, "simulate", file, "--json", "-"], capture_output=True).returncode == 0:
            kept.append(run)
    return kept


def check(profile, fitted, others, scratch):
    command = [BINARY, "calibrate", "--profile", profile, write(scratch / "fit.json", fitted), "-o", str(scratch / "o.json"),
               "--check", write(scratch / "check.json", others), "--json", "-"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["checks"][0]


def cells(profile, runs, count, scratch):
    dice = random.Random(1)
    checks = []
    for _ in range(DRAWS):
        drawn = set(dice.sample(range(len(runs)), count))
        others = [run for i, run in enumerate(runs) if i not in drawn]
        if len(others) > MOST_CHECKED:
            others = dice.sample(others, MOST_CHECKED)
        checks.append(check(profile, [runs[i] for i in sorted(drawn)], others, scratch))
    mean = lambda when, what: 100 * statistics.mean(c[when][what] for c in checks)
    return mean("before", "mean"), mean("after", "mean"), 100 * max(c["after"]["mean"] for c in checks)


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        lines = [MARK + " steps | mean error before | 1 step fitted | 3 steps | 6 steps |", "| --- " * 7 + "|"]
        for source, profile in SOURCES:
            runs = runs_of(source, profile, scratch)
            results = [cells(profile, runs, count, scratch) for count in (1, 3, 6) if count < len(runs) - 1]
            fitted = [f"{after:.1f} % (worst draw {worst:.1f} %)" for _, after, worst in results] + ["-"] * (3 - len(results))
            before = statistics.mean(r[0] for r in results)
            lines.append(f"| {source} | {profile} | {len(runs)} | {before:.1f} % | " + " | ".join(fitted) + " |")
            print(lines[-1], flush=True)
    kept = [line for line in REPORT.read_text().splitlines() if not line.startswith("|")]
    at = kept.index("<!-- table -->") + 1
    REPORT.write_text("\n".join(kept[:at] + lines + kept[at:]) + "\n")


if __name__ == "__main__":
    main()
