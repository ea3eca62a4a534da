#!/usr/bin/env python3
"""Times real training steps of a run file and reads their peak memory; writes the run with its `measured` section.

    torchrun --nproc-per-node 8 validation/torch/measure_fsdp.py RUN.json -o measured/
    torchrun --nproc-per-node 2 validation/torch/measure_fsdp.py RUN.json --fit-world --device cpu -o measured/

FSDP2, FSDP1, DDP and ZeroRedundancyOptimizer (strategy zero1), as the run says. `shardsim validate measured/*.json` lays the result
beside its prediction.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError:
    sys.exit("measure_fsdp.py: PyTorch is not installed (pip install torch)")

import torch.distributed as dist

from decoder import CausalLM
from run_file import Run, RunFileError, load_json, read_run
from sharding import DTYPES, add_checkpoints, data_parallel_mesh, make_optimizer, shard, torch_version
from training import make_batches, train_step


def fit_world(document: dict[str, Any], world: int) -> dict[str, Any]:
    """The run on `world` ranks: the same micro-batches per rank, all ranks in one shard group."""
    fitted = copy.deepcopy(document)
    run = read_run(document)
    fitted["cluster"]["gpus"] = world
    fitted["layout"] = {"dp_replicate": 1, "dp_shard": world}
    fitted.setdefault("batch", {})["global_batch"] = run.micro_batch * run.micro_batches * world
    return fitted


def _device(choice: str) -> torch.device:
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def build(run: Run, device: torch.device) -> tuple[Any, torch.optim.Optimizer]:
    """The sharded model, with parameters on `device`, and its optimizer. Every rank draws the same weights."""
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[run.master])
    with device if run.strategy != "fsdp2" else torch.device("cpu"):
        model = CausalLM(run.model, run.attention, run.sequence_length)
    torch.set_default_dtype(usual)
    add_checkpoints(model, run)
    mesh = data_parallel_mesh(run, device.type)
    model = shard(model.train(), run, mesh, device)
    if device.type == "cpu" and run.strategy == "fsdp2" and hasattr(model, "set_force_sum_reduction_for_comms"):
        model.set_force_sum_reduction_for_comms(True)  # gloo cannot average
    return model, make_optimizer(model.parameters(), run)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_steps(model: Any, optimizer: torch.optim.Optimizer, run: Run, device: torch.device, warmup: int, steps: int) -> list[float]:
    """Seconds of each of `steps` steps on this rank, after `warmup` others; memory peaks are of the timed ones."""
    batches = make_batches(run, device)
    lowers = run.strategy in ("ddp", "zero1") and run.param != run.master
    seconds = []
    for step in range(warmup + steps):
        if step == warmup and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        dist.barrier()
        _wait(device)
        start = time.perf_counter()
        with torch.autocast(device.type, DTYPES[run.param], enabled=lowers):
            train_step(model, optimizer, run, batches)
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return seconds[warmup:]


def _largest(value: float, device: torch.device) -> float:
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.item()


def slowest_ranks(seconds: list[float], device: torch.device) -> list[float]:
    """Each step as long as it was on the rank that took longest."""
    tensor = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def measured_section(seconds: list[float], device: torch.device, warmup: int) -> dict[str, Any]:
    """What `shardsim validate` reads. On a CPU there is no device memory to report."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU ranks over gloo"
    section: dict[str, Any] = {
        "step_time_s": statistics.median(seconds),
        "memory_of": "max",
        "source": f"validation/torch/measure_fsdp.py, PyTorch {torch.__version__}, {hardware}, "
        f"{datetime.date.today().isoformat()}; median of {len(seconds)} steps after {warmup}, "
        f"{min(seconds):.6g} s to {max(seconds):.6g} s",
        "confidence": "measured",
    }
    if device.type == "cuda":
        section["peak_allocated_bytes"] = int(_largest(torch.cuda.max_memory_allocated(device), device))
        section["peak_reserved_bytes"] = int(_largest(torch.cuda.max_memory_reserved(device), device))
    return section


def measure(document: dict[str, Any], device: torch.device, warmup: int, steps: int) -> dict[str, Any]:
    """The run document with what was measured. Collective: every rank calls it."""
    run = read_run(document)
    if run.world != dist.get_world_size():
        raise RunFileError(f"cluster.gpus: {run.world}, but torchrun started {dist.get_world_size()} ranks (see --fit-world)")
    if device.type == "cpu" and run.strategy == "fsdp2" and not hasattr(torch.cpu.Stream, "record_event"):
        raise RunFileError(f"data_parallel.strategy: PyTorch {torch.__version__} runs FSDP2 on GPUs only")
    model, optimizer = build(run, device)
    seconds = slowest_ranks(time_steps(model, optimizer, run, device, warmup, steps), device)
    del model, optimizer
    gc.collect()  # before the process group: modules and their states refer to each other
    dist.barrier()
    result = copy.deepcopy(document)
    software = result.setdefault("software", {})
    software["stack"] = "torch_eager"
    software["torch"] = ".".join(str(part) for part in torch_version())
    result["measured"] = measured_section(seconds, device, warmup)
    return result


def _write(document: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document.get('id', 'run')}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="run file (shardsim.run/1)")
    parser.add_argument("-o", "--output", type=Path, default=Path("."), metavar="DIR", help="where the file goes")
    parser.add_argument("--warmup", type=int, default=3, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--fit-world", action="store_true", help="run on as many ranks as torchrun started")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        print("measure_fsdp.py: start it with torchrun (torchrun --nproc-per-node 2 ...)", file=sys.stderr)
        return 2
    device = _device(arguments.device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        document = load_json(arguments.run)
        if arguments.fit_world:
            document = fit_world(document, dist.get_world_size())
        result = measure(document, device, arguments.warmup, arguments.steps)
        if dist.get_rank() == 0:
            print(_write(result, arguments.output))
    except RunFileError as error:
        if dist.get_rank() == 0:
            print(f"measure_fsdp.py: {error}", file=sys.stderr)
        return 2
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
