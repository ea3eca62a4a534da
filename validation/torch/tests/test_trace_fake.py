"""Traces of PyTorch on fake tensors."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from tests.support import needs_fake_world, run_python, tiny_run


@needs_fake_world
class Compress(unittest.TestCase):
    """Repeated sequences."""

    def test_expand_gives_back_what_compress_took(self) -> None:
        from collective_log import compress, expand

        for text in ("", "a", "aaaa", "abab", "abcabcabcx", "xaabaabaab", "abcdefghij" * 3):
            with self.subTest(text):
                self.assertEqual("".join(expand(compress(list(text)))), text)

    def test_repeats_are_written_once(self) -> None:
        from collective_log import compress

        runs = compress(list("g" + "ar" * 10 + "n"))
        self.assertEqual([(run["times"], "".join(run["sequence"])) for run in runs], [(1, "g"), (10, "ar"), (1, "n")])


@needs_fake_world
class TraceFake(unittest.TestCase):
    """The command, on a model that can be counted by hand."""

    def trace(self, document: dict) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.json"
            path.write_text(json.dumps(document), encoding="utf-8")
            done = run_python("trace_fake.py", str(path), "-o", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads((Path(folder) / "tiny.json").read_text(encoding="utf-8"))

    def test_one_step_of_two_blocks_on_two_ranks(self) -> None:
        from collective_log import expand

        trace = self.trace(tiny_run())
        found = [(entry["op"], entry["input_bytes"], entry["dtype"]) for entry in expand(trace["collectives"])]
        block = 45440  # elements: 2 norms of 64, q and o 64 x 64, k and v 64 x 32, three 64 x 172
        ends = 2 * 64000 + 64
        gather_block, gather_ends = ("all_gather", block, "bf16"), ("all_gather", ends, "bf16")
        expected = [gather_ends, gather_block, gather_block, gather_block, gather_block,
                    ("reduce_scatter", 4 * block, "fp32"), ("reduce_scatter", 4 * block, "fp32"),
                    ("reduce_scatter", 4 * ends, "fp32")]
        self.assertEqual(found[:-1], expected)
        self.assertEqual((found[-1][0], found[-1][2]), ("all_reduce", "fp32"))

    def test_moments_hold_shards_of_half_the_model(self) -> None:
        trace = self.trace(tiny_run())
        start = trace["memory"]["moments"][0]
        self.assertEqual((start["at"], start["micro_batch"]), ("forward", 0))
        half = 4 * (2 * 45440 + 2 * 64000 + 64) // 2
        self.assertAlmostEqual(start["bytes"]["Sharded Param"], half, delta=512 * 21)

    def test_what_it_cannot_play_is_said_in_one_line(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.json"
            path.write_text(json.dumps(tiny_run(layout={"tp": 2})), encoding="utf-8")
            done = run_python("trace_fake.py", str(path), "-o", folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("layout.tp", done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
