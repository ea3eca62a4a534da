"""Records every collective that PyTorch issues, as fake tensors pass by."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # noqa: F401 - gives c10d's ops kernels for fake tensors
from torch.utils._python_dispatch import TorchDispatchMode

_c10d = torch.ops.c10d
_functional = torch.ops._c10d_functional

DTYPE_NAMES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "int64",
    torch.uint8: "uint8",
}


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(_bytes(tensor) for tensor in tensors)


def _first(tensors: Any) -> torch.Tensor:
    return tensors if isinstance(tensors, torch.Tensor) else _first(tensors[0])


# Operator: (name, index of the output, index of the input, index of the process group).
_IN_PLACE = {
    _c10d._allgather_base_.default: ("all_gather", 0, 1, 2),
    _c10d._reduce_scatter_base_.default: ("reduce_scatter", 0, 1, 2),
    _c10d.allreduce_.default: ("all_reduce", 0, 0, 1),
    _c10d.broadcast_.default: ("broadcast", 0, 0, 1),
}
# Operator: (name, index of the group's name).
_FUNCTIONAL = {
    _functional.all_reduce.default: ("all_reduce", 2),
    _functional.all_gather_into_tensor.default: ("all_gather", 2),
    _functional.reduce_scatter_tensor.default: ("reduce_scatter", 3),
}


class CollectiveLog(TorchDispatchMode):
    """The collectives of a stretch of a program, in issue order, on one rank."""

    def __init__(self, group_names: dict[str, str]) -> None:
        """`group_names`: of the process groups, by PyTorch's own names. Another group is the one that FSDP2 makes for an integer
        `reshard_after_forward`."""
        super().__init__()
        self.group_names = group_names
        self.phase = "forward"
        self.entries: list[dict[str, Any]] = []

    def _add(self, op: str, group: dist.ProcessGroup, source: Any, target: Any) -> None:
        self.entries.append(
            {
                "op": op,
                "phase": self.phase,
                "group": self.group_names.get(group.group_name, "dp_shard_kept"),
                "ranks": group.size(),
                "input_bytes": _bytes(source),
                "output_bytes": _bytes(target),
                "dtype": DTYPE_NAMES[_first(source).dtype],
            }
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func in _IN_PLACE:
            op, target, source, group = _IN_PLACE[func]
            self._add(op, dist.ProcessGroup.unbox(args[group]), args[source], args[target])
        elif func in _FUNCTIONAL:
            op, group = _FUNCTIONAL[func]
            self._add(op, dist.distributed_c10d._resolve_process_group(args[group]), args[0], result)
        return result


def compress(entries: list[Any], longest: int = 8) -> list[dict[str, Any]]:
    """Runs of repeated sequences: [{"times", "sequence"}, ...], which in turn repeat give `entries` back."""
    runs: list[dict[str, Any]] = []
    at = 0
    while at < len(entries):
        length, times = _best_run(entries, at, longest)
        if times == 1:
            length = 1
        sequence = entries[at : at + length]
        at += length * times
        if times == 1 and runs and runs[-1]["times"] == 1:
            runs[-1]["sequence"].extend(sequence)
        else:
            runs.append({"times": times, "sequence": list(sequence)})
    return runs


def _best_run(entries: list[Any], at: int, longest: int) -> tuple[int, int]:
    """Length and repeats of the sequence at `at` that covers most; the shortest among equals."""
    best = (1, 1)
    for length in range(1, min(longest, len(entries) - at) + 1):
        first = entries[at : at + length]
        times = 1
        while entries[at + times * length : at + (times + 1) * length] == first:
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = (length, times)
    return best


def expand(runs: list[dict[str, Any]]) -> list[Any]:
    """What `compress` was given."""
    return [entry for run in runs for _ in range(run["times"]) for entry in run["sequence"]]
