"""Applies FSDP2, FSDP1, DDP or ZeroRedundancyOptimizer to a model as a run file says."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Iterator

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh

from decoder import CausalLM
from run_file import Run, RunFileError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def torch_version() -> tuple[int, int]:
    """Major and minor version of PyTorch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def fsdp2() -> Any:
    """The module that holds `fully_shard`: public since PyTorch 2.6."""
    try:
        from torch.distributed import fsdp as module

        module.fully_shard  # noqa: B018 - raises where it is not public yet
    except AttributeError:
        from torch.distributed._composable import fsdp as module
    return module


def freeze(model: nn.Module, paths: tuple[str, ...]) -> None:
    """Parameters below the modules at `paths` do not train. `*` stands for one component."""
    for pattern in paths:
        compiled = re.compile(re.escape(pattern).replace(r"\*", "[^.]+") + r"(\.|$)")
        for name, parameter in model.named_parameters():
            if compiled.match(name):
                parameter.requires_grad_(False)


def _per_op_contexts() -> Any:
    """Contexts of torchtitan's per-op policy: attention is kept and every second matmul of a block."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept = {aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default}
    matmuls = {aten.mm.default, aten.linear.default, aten.addmm.default}

    seen = {"forward": 0, "recompute": 0}

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> Any:
        phase = "recompute" if context.is_recompute else "forward"
        if op in matmuls:
            seen[phase] += 1
            second = seen[phase] % 2 == 0
            return CheckpointPolicy.PREFER_RECOMPUTE if second else CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def add_checkpoints(model: CausalLM, run: Run) -> None:
    """Activation checkpointing of blocks; torchtitan counts them from 1, so that every n-th means blocks n, 2n, ..."""
    if run.recompute == "none":
        return
    if run.recompute == "selective" and run.document.get("recompute", {}).get("modules") is not None:
        raise RunFileError("recompute.modules: only the per-op policy exists in PyTorch")
    blocks = model.blocks
    for index, block in enumerate(list(blocks)):
        if (index + 1) % run.recompute_every != 0:
            continue
        options: dict[str, Any] = {"preserve_rng_state": run.model.dropout > 0.0}
        if run.recompute == "selective":
            options["context_fn"] = _per_op_contexts
        blocks[index] = checkpoint_wrapper(block, **options)


def _modules_matching(model: nn.Module, pattern: str) -> list[nn.Module]:
    compiled = re.compile(re.escape(pattern).replace(r"\*", "[^.]+") + "$")
    return [module for name, module in model.named_modules() if compiled.match(name)]


def units(model: CausalLM, run: Run) -> list[list[nn.Module]]:
    """Modules of each unit below the root, in the order in which they are wrapped."""
    blocks = list(model.blocks)
    wrap = run.wrap
    if wrap == "root":
        return []
    if wrap == "block":
        return [[block] for block in blocks]
    if wrap == "block_and_ends":
        ends = [model.final_norm, model.lm_head]
        if run.model.tied_embeddings:
            return [[block] for block in blocks] + [[model.embedding, *ends]]
        return [[model.embedding], *([block] for block in blocks), ends]
    if isinstance(wrap, dict) and "every" in wrap:
        return [blocks[i : i + wrap["every"]] for i in range(0, len(blocks), wrap["every"])]
    if isinstance(wrap, list):
        return [[module] for pattern in wrap for module in _modules_matching(model, pattern)]
    raise RunFileError(f"data_parallel.wrap: {wrap!r} has no counterpart in FSDP2")


def apply_fsdp2(model: CausalLM, run: Run, mesh: DeviceMesh) -> nn.Module:
    """`fully_shard` on every unit, then on the model."""
    api = fsdp2()
    policy = api.MixedPrecisionPolicy(
        param_dtype=DTYPES[run.param], reduce_dtype=DTYPES[run.reduce], cast_forward_inputs=True
    )
    common: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    if run.reshard is not None:
        common["reshard_after_forward"] = run.reshard
    ends = {id(model.lm_head)}
    groups = units(model, run)
    for modules in groups:
        options = dict(common)
        # The usual wrapping keeps [norm, head] gathered: backward wants it first.
        if run.reshard is None and run.wrap == "block_and_ends" and id(modules[-1]) in ends:
            options["reshard_after_forward"] = False
        api.fully_shard(modules if len(modules) > 1 else modules[0], **options)
    api.fully_shard(model, **common)
    _set_prefetch(groups, run)
    return model


def _set_prefetch(groups: list[list[nn.Module]], run: Run) -> None:
    """Explicit prefetch lists, where the run asks for more than what FSDP2 does by itself."""
    firsts = [modules[0] for modules in groups]
    if run.forward_prefetch:
        for index, module in enumerate(firsts):
            module.set_modules_to_forward_prefetch(firsts[index + 1 : index + 1 + run.forward_prefetch])
    if run.backward_prefetch is not None and run.backward_prefetch != 1:
        for index, module in enumerate(firsts):
            first = max(0, index - run.backward_prefetch)
            module.set_modules_to_backward_prefetch(list(reversed(firsts[first:index])))


def _fsdp1_policy(model: CausalLM, run: Run) -> Any:
    from functools import partial

    from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy, size_based_auto_wrap_policy

    if run.wrap == "root":
        return None
    if isinstance(run.wrap, dict) and "min_params" in run.wrap:
        return partial(size_based_auto_wrap_policy, min_num_params=int(run.wrap["min_params"]))
    chosen = units(model, run)
    if any(len(modules) > 1 for modules in chosen):
        raise RunFileError(f"data_parallel.wrap: {run.wrap!r}: a unit of FSDP1 is one module")
    wrapped = {id(modules[0]) for modules in chosen}
    return partial(lambda_auto_wrap_policy, lambda_fn=lambda module: id(module) in wrapped)


def apply_fsdp1(model: CausalLM, run: Run, mesh: DeviceMesh, device: torch.device) -> nn.Module:
    """`FullyShardedDataParallel` with one auto-wrap policy."""
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy

    hybrid = mesh.ndim == 2
    keeps = run.reshard is False
    strategy = {
        (False, False): ShardingStrategy.FULL_SHARD,
        (False, True): ShardingStrategy.SHARD_GRAD_OP,
        (True, False): ShardingStrategy.HYBRID_SHARD,
        (True, True): ShardingStrategy._HYBRID_SHARD_ZERO2,
    }[hybrid, keeps]
    prefetch = {1: BackwardPrefetch.BACKWARD_PRE, 0: BackwardPrefetch.BACKWARD_POST, -1: None}
    lowers = run.param != run.master
    precision = MixedPrecision(param_dtype=DTYPES[run.param], reduce_dtype=DTYPES[run.reduce]) if lowers else None
    return FullyShardedDataParallel(
        model,
        device_mesh=mesh,
        sharding_strategy=strategy,
        auto_wrap_policy=_fsdp1_policy(model, run),
        backward_prefetch=prefetch[1 if run.backward_prefetch is None else run.backward_prefetch],
        forward_prefetch=bool(run.forward_prefetch),
        limit_all_gathers=run.limit_all_gathers,
        mixed_precision=precision,
        device_id=device,
        use_orig_params=False,
    )


def apply_ddp(model: CausalLM, run: Run) -> nn.Module:
    """`DistributedDataParallel` with the run's bucket size. The rotary table is the only buffer and the same on every rank."""
    from torch.nn.parallel import DistributedDataParallel

    bucket = 25.0 if run.bucket_bytes is None else run.bucket_bytes / 2**20
    return DistributedDataParallel(model, bucket_cap_mb=bucket, broadcast_buffers=False)


def make_optimizer(parameters: Any, run: Run) -> torch.optim.Optimizer:
    """The optimizer of the run over the trainable ones of `parameters`; sharded over the ranks for ZeRO 1."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    options: dict[str, Any] = {"lr": 1e-4}
    if run.implementation == "fused":
        options["fused"] = True
    else:
        options["foreach"] = run.implementation == "foreach"
    kinds = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "sgd_momentum": torch.optim.SGD,
    }
    if run.optimizer not in kinds:
        raise RunFileError(f"optimizer.name: {run.optimizer!r} is not one of {', '.join(kinds)}")
    if run.optimizer == "sgd_momentum":
        options["momentum"] = 0.9
    if run.strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(trained, optimizer_class=kinds[run.optimizer], **options)
    return kinds[run.optimizer](trained, **options)


@contextlib.contextmanager
def accumulation(model: nn.Module, run: Run, last: bool) -> Iterator[None]:
    """Whether this micro-batch's backward reduces gradients."""
    skips = run.accumulate_unsharded and not last
    if run.strategy == "fsdp2":
        model.set_requires_gradient_sync(not skips)
        if run.accumulate_sharded and run.dp_replicate > 1:
            model.set_requires_all_reduce(last)
        yield
        return
    with model.no_sync() if skips else contextlib.nullcontext():
        yield


def clip_gradients(model: nn.Module, run: Run) -> None:
    """Clips by the global norm, as the wrapper wants it done."""
    if run.clip_grad_norm is None:
        return
    if run.strategy == "fsdp1":
        model.clip_grad_norm_(run.clip_grad_norm)
        return
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    torch.nn.utils.clip_grad_norm_(trained, run.clip_grad_norm)


def data_parallel_mesh(run: Run, device_type: str) -> DeviceMesh:
    """One dimension of shards, or replicas of them."""
    from torch.distributed.device_mesh import init_device_mesh

    if run.dp_replicate > 1:
        return init_device_mesh(
            device_type, (run.dp_replicate, run.dp_shard), mesh_dim_names=("dp_replicate", "dp_shard")
        )
    return init_device_mesh(device_type, (run.dp_shard,), mesh_dim_names=("dp_shard",))


def shard(model: CausalLM, run: Run, mesh: DeviceMesh, device: torch.device) -> nn.Module:
    """The model as the run's strategy wraps it."""
    if run.strategy == "fsdp2":
        return apply_fsdp2(model, run, mesh)
    if run.strategy == "fsdp1":
        return apply_fsdp1(model, run, mesh, device)
    if run.strategy in ("ddp", "zero1"):
        return apply_ddp(model, run)
    raise RunFileError(f"data_parallel.strategy: {run.strategy!r} is not one of fsdp2, fsdp1, ddp, zero1")
