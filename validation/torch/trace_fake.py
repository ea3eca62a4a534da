#!/usr/bin/env python3
"""Runs a training step of real PyTorch FSDP code without a GPU and records what it would do: every collective, and memory as PyTorch's
own tracker counts it.

    python validation/torch/trace_fake.py examples/llama3-8b-fsdp2-64.json -o traces/
    python validation/torch/trace_fake.py --all -o validation/measured/torch_fake

Tensors are fake (shapes without data) and so is the process group, so any model and any world size fit on a laptop. Each run gives one
file of schema `shardsim.trace/1`; README.md says what is in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError:
    sys.exit("trace_fake.py: PyTorch is not installed (pip install torch)")

try:
    import torch.distributed._tools.fake_collectives  # noqa: F401 - what every module below stands on
except ImportError:
    sys.exit(f"trace_fake.py: fake collectives need a newer PyTorch (2.14 is known to do); this is {torch.__version__}")

from torch import nn

import fake_device
from collective_log import CollectiveLog, compress
from decoder import CausalLM
from fake_device import DEVICE
from run_file import Run, RunFileError, load_json, read_run
from sharding import DTYPES, add_checkpoints, data_parallel_mesh, freeze, make_optimizer, shard
from training import make_batches, train_step

SCHEMA = "shardsim.trace/1"


def _build(run: Run) -> CausalLM:
    """The unsharded model; parameters are never filled."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[run.master])
    with torch.device(DEVICE):
        model = CausalLM(run.model, run.attention, run.sequence_length)
    torch.set_default_dtype(usual)
    freeze(model, run.frozen)
    add_checkpoints(model, run)
    return model.train()


def _skip_initialization() -> None:
    """Weights without values need no initial ones."""
    for kind in (nn.Linear, nn.Embedding):
        kind.reset_parameters = lambda self: None
    nn.init.normal_ = lambda tensor, *_, **__: tensor


def _tracker(model: nn.Module, optimizer: torch.optim.Optimizer, run: Run, batches: Any) -> Any:
    if run.strategy == "fsdp2":
        from group_tracker import GroupMemTracker

        tracker = GroupMemTracker(model, optimizer)
        tracker.track_inputs(tuple(batches))
        return tracker
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model, optimizer, *(tensor for batch in batches for tensor in batch))
    return tracker


def _snapshot(tracker: Any, kind: str) -> dict[str, int]:
    """Bytes by the tracker's own categories, without those that are empty."""
    total: dict[str, int] = {}
    for device, categories in tracker.get_tracker_snapshot(kind).items():
        if device.type != DEVICE:
            continue
        for category, size in categories.items():
            name = str(getattr(category, "value", category))
            total[name] = total.get(name, 0) + size
    return {name: size for name, size in total.items() if size}


class StepRecorder:
    """Memory at the borders of the step's phases, and the high-water mark between them."""

    def __init__(self, tracker: Any, log: CollectiveLog) -> None:
        self.tracker = tracker
        self.log = log
        self.moments: list[dict[str, Any]] = []

    def observe(self, moment: str, micro_batch: int) -> None:
        """Closes the phase before `moment` and opens the next."""
        if moment == "forward":  # the trackers hold a module's figures of one pass
            self.tracker.reset_mod_stats()
        self.log.phase = moment
        if self.moments:
            self.moments[-1]["peak"] = _snapshot(self.tracker, "peak")
        self._forget_peak()
        self.moments.append(
            {"at": moment, "micro_batch": micro_batch, "bytes": _snapshot(self.tracker, "current")}
        )

    def _forget_peak(self) -> None:
        now = self.tracker.get_tracker_snapshot()
        self.tracker._peak_mem_snap = now
        self.tracker._peak_mem = {device: categories["Total"] for device, categories in now.items()}

    def memory(self) -> dict[str, Any]:
        """The moments, and the highest of their peaks."""
        peaks = [moment["peak"] for moment in self.moments if "peak" in moment]
        return {"peak": max(peaks, key=lambda peak: peak["Total"]), "moments": self.moments}


def _record_step(model: Any, optimizer: Any, run: Run, batches: Any, tracker: Any, groups: dict[str, str]) -> Any:
    log = CollectiveLog(groups)
    recorder = StepRecorder(tracker, log)
    # One thread: fake tensors have no device whose worker thread could run backward.
    with tracker, log, torch.autograd.set_multithreading_enabled(False):
        train_step(model, optimizer, run, batches, recorder.observe)
    return log.entries, recorder.memory()


def _group_names(mesh: Any) -> dict[str, str]:
    names = mesh.mesh_dim_names
    return {mesh.get_group(name).group_name: name for name in names}


def trace(run: Run) -> dict[str, Any]:
    """Plays two steps of `run` and returns its trace document."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if run.strategy not in ("fsdp2", "fsdp1"):
        raise RunFileError(f"data_parallel.strategy: {run.strategy} keeps its buckets in C++, which wants tensors with data")
    device = torch.device(DEVICE, 0)
    with fake_device.fake_world(run.world):
        mesh = data_parallel_mesh(run, DEVICE)
        with FakeTensorMode(), fake_device.real_meshes():
            model = shard(_build(run), run, mesh, device)
            if run.strategy == "fsdp1":  # made from a number, which fake devices cannot hold
                model._zero_scalar = torch.zeros((), device=device)
            optimizer = make_optimizer(model.parameters(), run)
            batches = make_batches(run, device)
            tracker = _tracker(model, optimizer, run, batches)
            groups = _group_names(mesh)
            # The first step fills caches of DTensor, whose full-size probes the tracker takes for memory.
            _record_step(model, optimizer, run, batches, tracker, groups)
            collectives, steady = _record_step(model, optimizer, run, batches, tracker, groups)
    document = {
        "schema": SCHEMA,
        "source": {
            "tool": "validation/torch/trace_fake.py",
            "torch": torch.__version__,
            "device": "fake accelerator; sizes in blocks of 512 bytes as MemTracker counts them for CUDA",
            "tracker": type(tracker).__name__,
            "rank": 0,
        },
        "run": run.document,
        "collectives": compress(collectives),
        "memory": steady,
    }
    if run.frozen:
        document["frozen"] = list(run.frozen)
    return document


def write(document: dict[str, Any], folder: Path) -> Path:
    """Writes a trace as `<id>.json`, one collective or moment a line."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document['run']['id']}.json"
    path.write_text(format_document(document), encoding="utf-8")
    return path


def format_document(document: dict[str, Any]) -> str:
    """JSON with a line for each small object."""
    text = json.dumps(document, indent=1)
    parts: list[str] = []
    _append(document, "", parts)
    assert json.loads("".join(parts)) == json.loads(text)
    return "".join(parts) + "\n"


def _append(value: Any, indent: str, parts: list[str]) -> None:
    flat = json.dumps(value)
    if len(flat) + len(indent) <= 150 or not isinstance(value, (dict, list)):
        parts.append(flat)
        return
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    inner = indent + " "
    items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    separator = f"{opening}\n"
    for key, item in items:
        parts.append(separator + inner + (f"{json.dumps(key)}: " if key is not None else ""))
        _append(item, inner, parts)
        separator = ",\n"
    parts.append(f"\n{indent}{closing}")


def _requested_runs(arguments: argparse.Namespace) -> list[Run]:
    if arguments.all:
        from configurations import runs

        return [run for run in runs() if not arguments.only or arguments.only in run.id]
    return [read_run(load_json(Path(path)), tuple(arguments.freeze)) for path in arguments.runs]


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run files (shardsim.run/1)")
    parser.add_argument("--all", action="store_true", help="the configurations of configurations.py")
    parser.add_argument("--only", default="", metavar="TEXT", help="with --all: those whose id holds TEXT")
    parser.add_argument("--freeze", action="append", default=[], metavar="PATH", help="module that does not train")
    parser.add_argument("-o", "--output", type=Path, default=Path("."), metavar="DIR", help="where files go")
    arguments = parser.parse_args()
    try:
        requested = _requested_runs(arguments)
        fake_device.register()
    except (RunFileError, fake_device.Unavailable) as error:
        print(f"trace_fake.py: {error}", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
    fake_device.count_memory_in_blocks()
    _skip_initialization()
    try:
        for run in requested:
            print(write(trace(run), arguments.output))
    except RunFileError as error:
        print(f"trace_fake.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
