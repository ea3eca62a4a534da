"""Graphs of modules that are no transformers."""

from __future__ import annotations

import math
import unittest
from typing import Any

from tests.support import needs_torch, run_python


def numel(graph: dict[str, Any]) -> int:
    """Parameters of a graph."""
    return sum(math.prod(parameter["shape"]) for parameter in graph["parameters"])


@needs_torch
class ExportGraph(unittest.TestCase):
    """Counted by hand from the layers."""

    def test_two_layers_and_what_they_save(self) -> None:
        import torch
        from torch import nn

        from export_graph import export

        def factory() -> Any:
            return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.empty(32, 8),)

        graph = export(factory)
        self.assertEqual([op["kind"] for op in graph["ops"]], ["matmul", "activation", "matmul"])
        first, relu, second = graph["ops"]
        self.assertEqual(first["shape"], {"batch": 1, "m": 32, "k": 8, "n": 16})
        self.assertEqual((first["flops_forward"], second["flops_forward"]), (2 * 32 * 8 * 16, 2 * 32 * 16 * 4))
        self.assertEqual(second["flops_backward"], 2 * second["flops_forward"])
        self.assertEqual((first["saved"], first["parameters"]), (graph["inputs"], [0, 1]))
        self.assertEqual(relu["saved"], relu["outputs"])
        self.assertEqual(second["saved"], relu["outputs"])
        self.assertEqual([op["module"] for op in graph["ops"]], ["0", "1", "2"])

    def test_a_sum_saves_nothing_and_the_layer_behind_it_its_input(self) -> None:
        import torch
        from torch import nn

        from export_graph import export

        class Skip(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = nn.Linear(8, 8, bias=False)
                self.b = nn.Linear(8, 8, bias=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.b(x + self.a(x))

        ops = export(lambda: (Skip(), (torch.empty(4, 8),)))["ops"]
        self.assertEqual([op["op"] for op in ops], ["aten.mm", "aten.add", "aten.mm"])
        self.assertEqual(ops[1]["saved"], [])
        self.assertEqual(ops[2]["saved"], ops[1]["outputs"])

    def test_residual_network(self) -> None:
        import export_examples
        from export_graph import export

        graph = export(export_examples.resnet)
        # ResNet-18 has 11,689,512 parameters; without the norms of its three projections 1,792 fewer.
        self.assertEqual(numel(graph), 11_689_512 - 2 * (128 + 256 + 512))
        self.assertEqual(sum(module["block"] for module in graph["modules"]), 8)
        convolutions = [op for op in graph["ops"] if op["kind"] == "convolution"]
        self.assertEqual(len(convolutions), 1 + 16 + 3)
        self.assertEqual(convolutions[0]["flops_forward"], 2 * 32 * 64 * 112 * 112 * 3 * 49)
        self.assertTrue(all(op["saved"] for op in convolutions))

    def test_recommender(self) -> None:
        import export_examples
        from export_graph import export

        graph = export(export_examples.dlrm)
        kinds = [op["kind"] for op in graph["ops"]]
        self.assertEqual((kinds.count("embedding"), kinds.count("matmul")), (8, 5))
        self.assertEqual(numel(graph), 8 * 100_000 * 64 + (13 + 1) * 512 + (512 + 1) * 64 + (64 + 36 + 1) * 512 + 512 + 1)

    def test_a_factory_that_is_not_there_is_said_in_one_line(self) -> None:
        done = run_python("export_graph.py", "export_examples:nothing", "-o", "graph.json")
        self.assertEqual((done.returncode, len(done.stderr.strip().splitlines())), (2, 1))


if __name__ == "__main__":
    unittest.main()
