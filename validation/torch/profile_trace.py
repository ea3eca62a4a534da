#!/usr/bin/env python3
"""Reads a PyTorch profiler (Kineto) trace of one rank and writes what calibration and comparison need.

    python validation/torch/profile_trace.py trace.json.gz -o samples.json --report report.json

Samples (`shardsim.samples/1`): collectives that ran beside no kernel, forward matmuls and flash attention, each shape once with the
median of its times. Matmul and attention shapes need `record_shapes=True`. The report lays out one step: time of kernels and of
collectives, how much of the latter was hidden, how much exposed.

A collective's time on one rank holds the wait for the rank that comes last; take the trace of a rank in the middle of the pack, and
several steps.
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import json
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable

MICROSECOND = 1e-6
HIDDEN_AT_MOST = 0.05  # of a collective's time may pass beside kernels for it to count as alone

DTYPES = {"Float": "fp32", "BFloat16": "bf16", "Half": "fp16", "Float8_e4m3fn": "fp8", "c10::BFloat16": "bf16", "float": "fp32",
          "c10::Half": "fp16"}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
COLLECTIVES = {
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "broadcast": "broadcast",
}

Interval = tuple[float, float]


@dataclass(frozen=True)
class Collective:
    """One NCCL kernel, times in seconds."""

    op: str
    bytes: int  # as nccl-tests counts: the larger of input and output
    ranks: int
    dtype: str
    start: float
    end: float


def load_events(path: Path) -> list[dict[str, Any]]:
    """Complete events of a Chrome trace, gzipped or not."""
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as file:
        document = json.load(file)
    events = document["traceEvents"] if isinstance(document, dict) else document
    return [event for event in events if event.get("ph") == "X"]


def _span(event: dict[str, Any]) -> Interval:
    start = float(event["ts"]) * MICROSECOND
    return start, start + float(event.get("dur", 0.0)) * MICROSECOND


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals, in order, that cover what `intervals` cover."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def covered(interval: Interval, cover: list[Interval]) -> float:
    """Seconds of `interval` inside the disjoint intervals of `cover`."""
    inside = 0.0
    for start, end in cover[max(0, bisect.bisect(cover, (interval[0],)) - 1) :]:
        if start >= interval[1]:
            break
        inside += max(0.0, min(interval[1], end) - max(interval[0], start))
    return inside


def length(intervals: list[Interval]) -> float:
    """Seconds of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def is_collective(event: dict[str, Any]) -> bool:
    """Whether a kernel is NCCL's."""
    return "nccl" in event["name"].lower()


def kernels(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Everything that ran on the device, copies included."""
    return [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def collective(event: dict[str, Any]) -> Collective | None:
    """What an NCCL kernel did; None when the trace does not say (older PyTorch writes no sizes)."""
    arguments = event.get("args", {})
    op = COLLECTIVES.get(str(arguments.get("Collective name", "")).lower())
    dtype = DTYPES.get(str(arguments.get("dtype", "")))
    ranks = arguments.get("Group size")
    if op is None or dtype is None or not ranks:
        return None
    elements = max(int(arguments.get("In msg nelems", 0)), int(arguments.get("Out msg nelems", 0)))
    start, end = _span(event)
    return Collective(op, elements * BYTES[dtype], int(ranks), dtype, start, end)


def collective_samples(found: list[Collective], busy: list[Interval]) -> list[dict[str, Any]]:
    """Collectives that ran alone: the median time of each kind and size."""
    times: dict[tuple[str, int, int, str], list[float]] = defaultdict(list)
    for item in found:
        duration = item.end - item.start
        if item.ranks > 1 and item.bytes > 0 and covered((item.start, item.end), busy) <= HIDDEN_AT_MOST * duration:
            times[item.op, item.bytes, item.ranks, item.dtype].append(duration)
    return [
        {"kind": "collective", "op": op, "bytes": size, "ranks": ranks, "dtype": dtype, "time_s": statistics.median(seconds)}
        for (op, size, ranks, dtype), seconds in sorted(times.items())
    ]


def _matmul_shape(op: dict[str, Any]) -> dict[str, Any] | None:
    dims = op["args"].get("Input Dims", [])
    first = 1 if op["name"] == "aten::addmm" else 0
    if len(dims) < first + 2 or len(dims[first]) != 2 or len(dims[first + 1]) != 2:
        return None
    kinds = op["args"].get("Input type", [])
    dtype = DTYPES.get(kinds[first]) if len(kinds) > first else None
    if dtype is None:
        return None
    (m, k), (_, n) = dims[first], dims[first + 1]
    return {"kind": "matmul", "m": m, "n": n, "k": k, "dtype": dtype, "layout": "forward"}


def _attention_shape(op: dict[str, Any]) -> dict[str, Any] | None:
    backward = op["name"].endswith("backward")
    first = 1 if backward else 0
    dims = op["args"].get("Input Dims", [])
    kinds = op["args"].get("Input type", [])
    if len(dims) < first + 3 or len(dims[first]) != 4 or len(kinds) <= first:
        return None
    dtype = DTYPES.get(kinds[first])
    if dtype is None:
        return None
    batch, query_length, heads, width = dims[first]
    _, key_length, kv_heads, _ = dims[first + 1]
    return {"kind": "attention", "batch": batch, "heads": heads, "kv_heads": kv_heads, "length": query_length,
            "kv_length": key_length, "head_dim": width, "dtype": dtype, "implementation": "flash2", "backward": backward}


_SHAPES = {
    "aten::mm": _matmul_shape,
    "aten::addmm": _matmul_shape,
    "aten::_flash_attention_forward": _attention_shape,
    "aten::_flash_attention_backward": _attention_shape,
}


def _backward_ranges(events: list[dict[str, Any]]) -> dict[Any, list[Interval]]:
    """By thread: when autograd's engine was at work."""
    ranges: dict[Any, list[Interval]] = defaultdict(list)
    for event in events:
        if event["name"].startswith("autograd::engine::evaluate_function"):
            ranges[event.get("tid")].append(_span(event))
    return {thread: union(spans) for thread, spans in ranges.items()}


def kernel_samples(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Forward matmuls and attention: the median over calls of the kernels that each launched."""
    launched: dict[Any, float] = defaultdict(float)
    for event in kernels(events):
        identity = event.get("args", {}).get("External id")
        if identity is not None and not is_collective(event):
            start, end = _span(event)
            launched[identity] += end - start
    backward = _backward_ranges(events)
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        shape_of = _SHAPES.get(event["name"])
        identity = event.get("args", {}).get("External id")
        if event.get("cat") != "cpu_op" or shape_of is None or identity not in launched:
            continue
        in_backward = covered(_span(event), backward.get(event.get("tid"), [])) > 0.0
        shape = None if shape_of is _matmul_shape and in_backward else shape_of(event)
        if shape is not None:  # whether a backward matmul is of data or of weights, the trace does not say
            times[json.dumps(shape)].append(launched[identity])
    return [{**json.loads(shape), "time_s": statistics.median(seconds)} for shape, seconds in sorted(times.items())]


def steps(events: list[dict[str, Any]]) -> list[Interval]:
    """The profiler's steps; the whole trace when none is marked."""
    marked = sorted({_span(event) for event in events
                     if event["name"].startswith("ProfilerStep#") and event.get("cat") == "user_annotation"})
    if marked:
        return marked
    spans = [_span(event) for event in events]
    return [(min(start for start, _ in spans), max(end for _, end in spans))] if spans else []


def report(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean seconds of a step: kernels, collectives by kind, and how much of these no kernel hid."""
    count = max(1, len(steps(events)))
    device = kernels(events)
    busy = union(_span(event) for event in device if not is_collective(event))
    by_op: dict[str, list[Interval]] = defaultdict(list)
    for event in device:
        if is_collective(event):
            known = collective(event)
            by_op[known.op if known else "unknown"].append(_span(event))
    rows = {}
    for op, spans in sorted(by_op.items()):
        total = sum(end - start for start, end in spans)
        hidden = sum(covered(span, busy) for span in spans)
        rows[op] = {"calls": len(spans) / count, "time_s": total / count, "exposed_s": (total - hidden) / count}
    communicating = union(span for spans in by_op.values() for span in spans)
    hidden = sum(covered(span, busy) for span in communicating)
    return {
        "steps": count,
        "step_time_s": statistics.median(end - start for start, end in steps(events)) if events else 0.0,
        "kernels_s": length(busy) / count,
        "communication_s": length(communicating) / count,
        "exposed_communication_s": (length(communicating) - hidden) / count,
        "collectives": rows,
    }


def samples(events: list[dict[str, Any]], source: str) -> dict[str, Any]:
    """The samples document of a trace."""
    device = kernels(events)
    busy = union(_span(event) for event in device if not is_collective(event))
    found = [item for item in (collective(event) for event in device if is_collective(event)) if item is not None]
    return {
        "schema": "shardsim.samples/1",
        "source": source,
        "samples": collective_samples(found, busy) + kernel_samples(events),
    }


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="trace of torch.profiler (export_chrome_trace), .json or .json.gz")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="samples for `shardsim calibrate`")
    parser.add_argument("--report", type=Path, metavar="FILE", help="overlap and exposed communication, as JSON")
    arguments = parser.parse_args()
    try:
        events = load_events(arguments.trace)
    except (OSError, ValueError, KeyError) as error:
        print(f"profile_trace.py: {arguments.trace}: {error}", file=sys.stderr)
        return 2
    if arguments.output:
        document = samples(events, f"PyTorch profiler trace {arguments.trace.name}")
        arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    summary = json.dumps(report(events), indent=1)
    if arguments.report:
        arguments.report.write_text(summary + "\n", encoding="utf-8")
    elif not arguments.output:
        print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
