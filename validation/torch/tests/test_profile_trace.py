"""Profiler traces, on one that is small enough to add up by hand (times in microseconds)."""

from __future__ import annotations

import gzip
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.support import run_python

import profile_trace


def event(name: str, category: str, start: float, duration: float, **arguments: Any) -> dict[str, Any]:
    """A complete event."""
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": duration, "tid": arguments.pop("tid", 1), "args": arguments}


def gather(start: float, duration: float) -> dict[str, Any]:
    """An all-gather of 8 ranks, 1,000 bf16 elements each."""
    return event("ncclDevKernel_AllGather_RING_LL", "kernel", start, duration, **{
        "Collective name": "_allgather_base", "In msg nelems": 1000, "Out msg nelems": 8000, "Group size": 8, "dtype": "BFloat16"})


EVENTS = [
    event("ProfilerStep#3", "user_annotation", 0, 100),
    event("aten::mm", "cpu_op", 1, 2, **{"External id": 7, "Input Dims": [[64, 32], [32, 16]],
                                         "Input type": ["c10::BFloat16", "c10::BFloat16"]}),
    event("gemm", "kernel", 10, 20, **{"External id": 7}),
    gather(20, 30),  # 10 beside the matmul, 20 exposed
    gather(60, 10),  # alone
    event("autograd::engine::evaluate_function: MmBackward0", "cpu_op", 70, 10, tid=2),
    event("aten::mm", "cpu_op", 72, 2, tid=2, **{"External id": 9, "Input Dims": [[32, 64], [64, 16]],
                                                 "Input type": ["c10::BFloat16", "c10::BFloat16"]}),
    event("gemm", "kernel", 80, 5, **{"External id": 9}),
]


class ProfileTrace(unittest.TestCase):
    """Samples and report."""

    def test_only_what_ran_alone_is_a_collective_sample(self) -> None:
        found = profile_trace.samples(EVENTS, "test")["samples"]
        collectives = [sample for sample in found if sample["kind"] == "collective"]
        self.assertEqual(len(collectives), 1)
        self.assertEqual((collectives[0]["op"], collectives[0]["bytes"], collectives[0]["ranks"]), ("all_gather", 16000, 8))
        self.assertAlmostEqual(collectives[0]["time_s"], 10e-6)

    def test_forward_matmuls_are_samples_and_backward_ones_are_not(self) -> None:
        found = [sample for sample in profile_trace.samples(EVENTS, "test")["samples"] if sample["kind"] == "matmul"]
        self.assertEqual([(sample["m"], sample["n"], sample["k"]) for sample in found], [(64, 16, 32)])
        self.assertAlmostEqual(found[0]["time_s"], 20e-6)

    def test_exposed_is_what_no_kernel_hides(self) -> None:
        told = profile_trace.report(EVENTS)
        self.assertAlmostEqual(told["step_time_s"], 100e-6)
        self.assertAlmostEqual(told["kernels_s"], 25e-6)
        self.assertAlmostEqual(told["communication_s"], 40e-6)
        self.assertAlmostEqual(told["exposed_communication_s"], 30e-6)
        self.assertAlmostEqual(told["collectives"]["all_gather"]["exposed_s"], 30e-6)
        self.assertEqual(told["collectives"]["all_gather"]["calls"], 2)

    def test_attention_of_few_key_heads_both_ways(self) -> None:
        dims = [[2, 128, 8, 64], [2, 128, 2, 64], [2, 128, 2, 64]]
        kinds = ["c10::BFloat16"] * 4
        events = [
            event("aten::_flash_attention_forward", "cpu_op", 0, 1, **{"External id": 1, "Input Dims": dims, "Input type": kinds}),
            event("flash_fwd", "kernel", 2, 4, **{"External id": 1}),
            event("aten::_flash_attention_backward", "cpu_op", 8, 1,
                  **{"External id": 2, "Input Dims": [dims[0], *dims], "Input type": kinds}),
            event("flash_bwd", "kernel", 10, 9, **{"External id": 2}),
        ]
        found = profile_trace.kernel_samples(events)
        self.assertEqual(sorted((sample["backward"], sample["kv_heads"], round(sample["time_s"] * 1e6)) for sample in found),
                         [(False, 2, 4), (True, 2, 9)])

    def test_the_command_reads_compressed_traces(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            with gzip.open(path, "wt", encoding="utf-8") as file:
                json.dump({"traceEvents": EVENTS}, file)
            out = Path(folder) / "samples.json"
            done = run_python("profile_trace.py", str(path), "-o", str(out))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(out.read_text(encoding="utf-8"))["schema"], "shardsim.samples/1")

    def test_a_file_that_is_no_trace_is_said_in_one_line(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            path.write_text("{", encoding="utf-8")
            done = run_python("profile_trace.py", str(path))
        self.assertEqual((done.returncode, len(done.stderr.strip().splitlines())), (2, 1))


if __name__ == "__main__":
    unittest.main()
