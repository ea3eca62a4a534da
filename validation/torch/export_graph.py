#!/usr/bin/env python3
"""Writes any `nn.Module` as `shardsim.graph/1`: the ops of a forward pass, their shapes and FLOPs, what autograd saves, parameters and the
module tree.

    python validation/torch/export_graph.py export_examples:resnet -o resnet.json
    python validation/torch/export_graph.py mypackage.models:factory -o model.json

FACTORY takes nothing and returns (module, inputs of one micro-batch). It runs under fake tensors: no memory is used and nothing is
computed, so that any size will do. README.md describes the format.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any, Callable

try:
    import torch
except ImportError:
    sys.exit("export_graph.py: PyTorch is not installed (pip install torch)")

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SCHEMA = "shardsim.graph/1"

DTYPE_NAMES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.bool: "bool",
    torch.uint8: "uint8",
}

# First word of an operator's name that tells its kind; what is not here is elementwise.
_KINDS = (
    ("convolution", "convolution"),
    ("embedding", "embedding"),
    ("addmm", "matmul"),
    ("baddbmm", "matmul"),
    ("bmm", "matmul"),
    ("mm", "matmul"),
    ("native_layer_norm", "norm"),
    ("native_group_norm", "norm"),
    ("native_batch_norm", "norm"),
    ("_native_batch_norm", "norm"),
    ("cudnn_batch_norm", "norm"),
    ("_fused_rms_norm", "norm"),
    ("_scaled_dot_product", "attention"),
    ("_softmax", "softmax"),
    ("_log_softmax", "softmax"),
    ("nll_loss", "cross_entropy"),
    ("native_dropout", "dropout"),
    ("_to_copy", "cast"),
    ("relu", "activation"),
    ("gelu", "activation"),
    ("silu", "activation"),
)


# Operators whose backward reads their first result (derivatives.yaml); further results are statistics and indices, kept for backward.
_SAVES_RESULT = ("relu", "sigmoid", "tanh", "_softmax", "_log_softmax", "exp", "sqrt", "rsqrt", "reciprocal", "_scaled_dot_product")


def op_kind(name: str) -> str:
    """Kind of an operator, by its name: "aten.addmm" is a matmul."""
    bare = name.split(".")[1]
    for prefix, kind in _KINDS:
        if bare == prefix or (bare.startswith(prefix) and prefix not in ("mm", "bmm")):
            return kind
    return "elementwise"


def matmul_shape(name: str, shapes: list[list[int]]) -> dict[str, int] | None:
    """batch, m, n, k of a matmul operator from the shapes of its tensor inputs."""
    bare = name.split(".")[1]
    if bare in ("addmm", "baddbmm"):
        shapes = shapes[1:]
    if bare not in ("mm", "bmm", "addmm", "baddbmm") or len(shapes) < 2:
        return None
    left, right = shapes[0], shapes[1]
    batch = left[0] if len(left) == 3 else 1
    return {"batch": batch, "m": left[-2], "k": left[-1], "n": right[-1]}


def _keeps_result(op: dict[str, Any], tensor: int | None) -> bool:
    """Whether `op` itself, not the next one, has just saved `tensor`."""
    if tensor not in op["outputs"] or tensor in op["saved"]:
        return False
    bare = op["op"].split(".")[1]
    return tensor != op["outputs"][0] or bare.rstrip("_").startswith(_SAVES_RESULT)


def _is_view(func: Any) -> bool:
    return bool(func.is_view) or "detach" in func.name() or "_unsafe_view" in func.name()


class GraphRecorder(TorchDispatchMode):
    """Collects tensors and ops while a model runs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.tensors: list[dict[str, Any]] = []
        self.ops: list[dict[str, Any]] = []
        self.module_path: list[str] = [""]
        self._alive: list[torch.Tensor] = []  # so that no storage's identity is used twice
        self._tensor_of: dict[int, int] = {}
        self._parameter_of = {
            parameter.untyped_storage()._cdata: index for index, parameter in enumerate(module.parameters())
        }
        self._buffers = {buffer.untyped_storage()._cdata for buffer in module.buffers()}
        self._saved_before: list[torch.Tensor] = []

    def index(self, tensor: torch.Tensor) -> int:
        """Of a tensor's storage; a new one is added."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._tensor_of:
            self._alive.append(tensor)
            self._tensor_of[storage._cdata] = len(self.tensors)
            self.tensors.append(
                {
                    "numel": storage.nbytes() // tensor.element_size(),
                    "dtype": DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")),
                    "differentiable": tensor.is_floating_point(),
                }
            )
        return self._tensor_of[storage._cdata]

    def saves(self, tensor: torch.Tensor) -> torch.Tensor:
        """A pack hook of autograd: inputs are saved before their op is dispatched, results after it."""
        storage = tensor.untyped_storage()._cdata
        if storage in self._parameter_of or storage in self._buffers:
            return tensor
        made = self._tensor_of.get(storage)
        last = self.ops[-1] if self.ops else None
        if last is not None and not self._saved_before and _keeps_result(last, made):
            self._add_saved(last, tensor)
        else:
            self._saved_before.append(tensor)
        return tensor

    def _add_saved(self, op: dict[str, Any], tensor: torch.Tensor) -> None:
        index = self.index(tensor)
        if index not in op["saved"]:
            op["saved"].append(index)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _is_view(func) or not func.name().startswith("aten::"):
            return result
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if any(tensor.is_floating_point() and tensor.numel() > 0 for tensor in outputs):
            self._record(func, args, kwargs or {}, inputs, outputs, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, inputs: Any, outputs: Any, result: Any) -> None:
        name = "aten." + func.name().removeprefix("aten::").split(".")[0]
        storages = [tensor.untyped_storage()._cdata for tensor in inputs]
        op: dict[str, Any] = {
            "op": name,
            "kind": op_kind(name),
            "module": self.module_path[-1],
            "inputs": sorted({self.index(tensor) for tensor, storage in zip(inputs, storages) if storage not in self._parameter_of}),
            "outputs": [self.index(tensor) for tensor in outputs if tensor.numel() > 0],
            "saved": [],
            "parameters": sorted({self._parameter_of[storage] for storage in storages if storage in self._parameter_of}),
            "shape": matmul_shape(name, [list(tensor.shape) for tensor in inputs]),
            "read_bytes": sum(tensor.numel() * tensor.element_size() for tensor in inputs),
            "written_bytes": sum(tensor.numel() * tensor.element_size() for tensor in outputs),
        }
        if op["kind"] == "embedding":  # rows, not the table
            op["read_bytes"] = op["written_bytes"] + sum(tensor.numel() * 8 for tensor in inputs if not tensor.is_floating_point())
        op["flops_forward"] = _flops(func, args, kwargs, result)
        op["flops_backward"] = backward_flops(op, self.tensors)
        self.ops.append(op)
        pending, self._saved_before = self._saved_before, []
        for tensor in pending:
            self._add_saved(op, tensor)


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    from torch.utils.flop_counter import flop_registry

    counted = flop_registry.get(func._overloadpacket)
    return int(counted(*args, **kwargs, out_val=result)) if counted else 0


def backward_flops(op: dict[str, Any], tensors: list[dict[str, Any]]) -> int:
    """Gradients of a product's operands cost a product each; flash attention's backward two and a half forwards
    (FlashAttention-2, arXiv 2307.08691, section 3.1)."""
    forward = op["flops_forward"]
    if op["kind"] == "attention":
        return forward * 5 // 2
    operands = sum(tensors[index]["differentiable"] for index in op["inputs"]) + bool(op["parameters"])
    return forward * min(2, operands)


def _enter(recorder: GraphRecorder, path: str) -> Callable[..., None]:
    return lambda *_: recorder.module_path.append(path)


def _leave(recorder: GraphRecorder) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        recorder.module_path.pop()

    return hook


def module_tree(module: nn.Module) -> list[dict[str, Any]]:
    """Modules in registration order. Blocks are the members of a ModuleList of one class."""
    blocks = set()
    for path, parent in module.named_modules():
        children = list(parent.named_children())
        if isinstance(parent, nn.ModuleList) and len({type(child) for _, child in children}) == 1:
            blocks.update(f"{path}.{name}" if path else name for name, _ in children)
    return [
        {
            "path": path,
            "type": type(member).__name__,
            "block": path in blocks,
            "has_forward": not isinstance(member, (nn.ModuleList, nn.ModuleDict)),
        }
        for path, member in module.named_modules()
    ]


def export(factory: Callable[[], tuple[nn.Module, tuple[Any, ...]]]) -> dict[str, Any]:
    """The graph document of one micro-batch of what `factory` makes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        module, inputs = factory()
        recorder = GraphRecorder(module.train())
        for path, member in module.named_modules():
            member.register_forward_pre_hook(_enter(recorder, path))
            member.register_forward_hook(_leave(recorder))
        given = [recorder.index(tensor) for tensor in inputs if isinstance(tensor, torch.Tensor)]
        with recorder, torch.autograd.graph.saved_tensors_hooks(recorder.saves, lambda tensor: tensor):
            result = module(*inputs)
    outputs = [recorder.index(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return {
        "schema": SCHEMA,
        "source": {"tool": "validation/torch/export_graph.py", "torch": torch.__version__},
        "micro_batch": int(inputs[0].shape[0]),
        "modules": module_tree(module),
        "parameters": [
            {"name": name, "shape": list(parameter.shape), "dtype": DTYPE_NAMES[parameter.dtype], "trains": parameter.requires_grad}
            for name, parameter in module.named_parameters()
        ],
        "tensors": recorder.tensors,
        "inputs": given,
        "outputs": outputs,
        "ops": recorder.ops,
    }


def find_factory(name: str) -> Callable[[], tuple[nn.Module, tuple[Any, ...]]]:
    """`package.module:function`. Errors: ValueError when the name has no colon; those of the import."""
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"{name}: a factory is named package.module:function")
    sys.path.insert(0, str(Path.cwd()))
    return getattr(importlib.import_module(module), function)


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("factory", metavar="FACTORY", help="package.module:function")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    try:
        factory = find_factory(arguments.factory)
    except (ValueError, ImportError, AttributeError) as error:
        print(f"export_graph.py: {error}", file=sys.stderr)
        return 2
    arguments.output.write_text(json.dumps(export(factory), separators=(",", ":")) + "\n", encoding="utf-8")
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
