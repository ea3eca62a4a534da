"""Run files as the PyTorch backend reads them."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from tests.support import ROOT, TINY_MODEL, tiny_run

from run_file import RunFileError, load_json, load_run, read_model, read_run


class ReadRun(unittest.TestCase):
    """Values, defaults and refusals."""

    def test_the_rest_of_the_ranks_are_shards(self) -> None:
        run = read_run(tiny_run(cluster={"profile": "dgx-h100", "gpus": 32}, layout={"dp_replicate": 4},
                                batch={"micro_batch": 2, "global_batch": 128}))
        self.assertEqual((run.dp_replicate, run.dp_shard, run.micro_batches), (4, 8, 2))

    def test_what_is_not_data_parallel_is_refused_by_name(self) -> None:
        for section, key in (({"layout": {"tp": 2}}, "layout.tp"), ({"offload": {"optimizer": "cpu"}}, "offload.optimizer"),
                             ({"batch": {"micro_batch": 1, "global_batch": 3}}, "global_batch")):
            with self.subTest(key), self.assertRaisesRegex(RunFileError, key):
                read_run(tiny_run(**section))

    def test_comments_are_allowed_and_strings_keep_their_slashes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.json"
            document = json.dumps(tiny_run(id="a//b"))
            path.write_text("// a run\n" + document + " // end\n", encoding="utf-8")
            self.assertEqual(load_run(path).id, "a//b")

    def test_another_schema_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.json"
            path.write_text('{"schema": "shardsim.profile/1"}', encoding="utf-8")
            with self.assertRaisesRegex(RunFileError, "shardsim.profile/1"):
                load_run(path)


class ReadModel(unittest.TestCase):
    """Models by name, by config and inline."""

    def test_every_family(self) -> None:
        table = (
            ("llama-3.2-1b", (16, 2048, 8, 64, True)),
            ("qwen2.5-7b", (28, 3584, 4, 128, False)),
            ("gpt2", (12, 768, 12, 64, True)),
            (TINY_MODEL, (2, 64, 2, 16, False)),
        )
        for name, expected in table:
            with self.subTest(str(name)):
                model = read_model(name)
                found = (model.layers, model.hidden, model.kv_heads, model.head_dim, model.tied_embeddings)
                self.assertEqual(found, expected)

    def test_mixtures_are_refused(self) -> None:
        with self.assertRaisesRegex(RunFileError, "moe"):
            read_model({**TINY_MODEL, "moe": {"experts": 8}})

    def test_models_of_other_families_are_refused(self) -> None:
        with self.assertRaisesRegex(RunFileError, "model_type"):
            read_model("t5-11b")

    def test_shipped_examples_are_readable_json(self) -> None:
        for path in sorted((ROOT / "examples").glob("*.json")):
            with self.subTest(path.name):
                self.assertEqual(load_json(path)["schema"], "shardsim.run/1")


if __name__ == "__main__":
    unittest.main()
