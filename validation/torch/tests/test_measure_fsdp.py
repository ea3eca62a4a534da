"""Measured runs, on two CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tests.support import FOLDER, needs_torch, run_python, tiny_run


@needs_torch
class MeasureFsdp(unittest.TestCase):
    """Every strategy on gloo."""

    def measure(self, strategy: str) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.json"
            path.write_text(json.dumps(tiny_run(data_parallel={"strategy": strategy})), encoding="utf-8")
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                       str(FOLDER / "measure_fsdp.py"), str(path), "--device", "cpu", "--warmup", "1", "--steps", "3",
                       "-o", str(Path(folder) / "out")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            if "on GPUs only" in done.stderr:
                self.skipTest("this PyTorch runs FSDP2 on GPUs only")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads((Path(folder) / "out" / "tiny.json").read_text(encoding="utf-8"))

    def test_every_strategy_gives_a_measured_run(self) -> None:
        for strategy in ("fsdp2", "fsdp1", "ddp", "zero1"):
            with self.subTest(strategy):
                run = self.measure(strategy)
                self.assertEqual(run["schema"], "shardsim.run/1")
                self.assertGreater(run["measured"]["step_time_s"], 0.0)
                self.assertNotIn("peak_allocated_bytes", run["measured"])

    def test_without_torchrun_it_says_how_to_start(self) -> None:
        environment = os.environ.pop("RANK", None)
        done = run_python("measure_fsdp.py", "run.json")
        if environment is not None:
            os.environ["RANK"] = environment
        self.assertEqual(done.returncode, 2)
        self.assertIn("torchrun", done.stderr)


if __name__ == "__main__":
    unittest.main()
