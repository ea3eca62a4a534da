"""The configurations whose traces are kept under validation/measured/torch_fake."""

from __future__ import annotations

from typing import Any

from run_file import Run, read_run

TORCH = "2.14"

TINY = {
    "model_type": "transformer",
    "layers": 4,
    "hidden": 1024,
    "heads": 16,
    "kv_heads": 4,
    "ffn_hidden": 2816,
    "vocab": 32000,
    "activation": "silu",
    "norm": "rmsnorm",
    "gated_mlp": True,
    "positions": "rope",
    "linear_bias": False,
    "tied_embeddings": False,
}
TINY_TIED = {**TINY, "tied_embeddings": True}
# Few tokens and words: gathered parameters, gradients and communication buffers make the peaks.
WEIGHTS = {**TINY, "layers": 6, "vocab": 2048}
# No dimension is a multiple of the world sizes that it runs on.
UNEVEN = {**TINY, "hidden": 1000, "heads": 10, "kv_heads": 5, "head_dim": 104, "ffn_hidden": 2730, "vocab": 32003}
ALL_FP32 = {
    "param": "fp32",
    "reduce": "fp32",
    "master": "fp32",
    "gradient": "fp32",
    "optimizer_state": "fp32",
    "compute": "fp32",
}
ALL_BF16 = {"param": "bf16", "reduce": "bf16", "master": "bf16", "gradient": "bf16", "optimizer_state": "bf16"}


def run_document(
    name: str,
    model: Any,
    gpus: int,
    length: int,
    micro: int = 1,
    micro_batches: int = 1,
    profile: str = "dgx-h100",
    layout: dict[str, Any] | None = None,
    precision: dict[str, Any] | None = None,
    recompute: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    attention: str = "flash2",
    **parallel: Any,
) -> dict[str, Any]:
    """A run file; what is not given takes the format's default."""
    document: dict[str, Any] = {
        "schema": "shardsim.run/1",
        "id": name,
        "model": model,
        "cluster": {"profile": profile, "gpus": gpus},
    }
    if layout:
        document["layout"] = layout
    document["data_parallel"] = {"strategy": "fsdp2", "wrap": "block", **parallel}
    document["batch"] = {
        "sequence_length": length,
        "micro_batch": micro,
        "global_batch": micro * micro_batches * gpus,
    }
    for key, section in (("precision", precision), ("recompute", recompute), ("optimizer", optimizer)):
        if section:
            document[key] = section
    document["software"] = {"stack": "torch_eager", "attention": attention, "torch": TORCH}
    return document


def _small() -> list[dict[str, Any]]:
    """One thing at a time on a model of four blocks."""
    hsdp = {"dp_replicate": 4, "dp_shard": 8}
    accumulates: dict[str, Any] = {"micro": 1, "micro_batches": 3}
    make = run_document
    return [
        make("tiny-block-2", TINY, 2, 2048),
        make("tiny-block-8", TINY, 8, 2048, micro=2),
        make("tiny-root-8", TINY, 8, 2048, wrap="root"),
        make("tiny-every2-8", TINY, 8, 2048, wrap={"every": 2}),
        make("tiny-every3-8", TINY, 8, 2048, wrap={"every": 3}),
        make("tiny-ends-8", TINY, 8, 2048, wrap="block_and_ends"),
        make("tiny-ends-reshard-8", TINY, 8, 2048, wrap="block_and_ends", reshard_after_forward=True),
        make("tiny-reshard-true-8", TINY, 8, 2048, reshard_after_forward=True),
        make("tiny-reshard-false-8", TINY, 8, 2048, reshard_after_forward=False),
        make("tiny-reshard-2-8", TINY, 8, 2048, reshard_after_forward=2),
        make("tiny-reshard-8-64", TINY, 64, 2048, reshard_after_forward=8),
        make("tiny-hsdp-4x8", TINY, 32, 2048, layout=hsdp),
        make("tiny-hsdp-bf16-4x8", TINY, 32, 2048, layout=hsdp, precision=ALL_BF16),
        make("tiny-accumulate-8", TINY, 8, 2048, **accumulates),
        make("tiny-accumulate-nosync-8", TINY, 8, 2048, **accumulates, accumulate_unsharded=True),
        make("tiny-accumulate-bf16-nosync-8", TINY, 8, 2048, **accumulates, accumulate_unsharded=True, precision=ALL_BF16),
        make("tiny-hsdp-accumulate-4x8", TINY, 32, 2048, **accumulates, layout=hsdp),
        make("tiny-hsdp-accumulate-sharded-4x8", TINY, 32, 2048, **accumulates, layout=hsdp, accumulate_sharded=True),
        make("tiny-fp32-8", TINY, 8, 2048, precision=ALL_FP32),
        make("tiny-bf16-reduce-8", TINY, 8, 2048, precision={"reduce": "bf16"}),
        make("tiny-all-bf16-8", TINY, 8, 2048, precision=ALL_BF16),
        make("tiny-recompute-8", TINY, 8, 4096, recompute={"policy": "full"}),
        make("tiny-recompute-every2-8", TINY, 8, 4096, recompute={"policy": "full", "every": 2}),
        make("tiny-selective-8", TINY, 8, 4096, recompute={"policy": "selective"}),
        make("tiny-tied-8", TINY_TIED, 8, 2048),
        make("tiny-tied-ends-8", TINY_TIED, 8, 2048, wrap="block_and_ends"),
        make("tiny-uneven-7", UNEVEN, 7, 2048),
        make("tiny-uneven-48", UNEVEN, 48, 2048),
        make("tiny-more-ranks-than-rows-1024", UNEVEN, 1024, 2048),
        make("tiny-sdpa-8", TINY, 8, 2048, attention="sdpa"),
        make("tiny-foreach-8", TINY, 8, 256, optimizer={"implementation": "foreach"}),
        make("tiny-forloop-8", TINY, 8, 256, optimizer={"implementation": "forloop"}),
        make("tiny-sgd-8", TINY, 8, 256, optimizer={"name": "sgd", "implementation": "foreach", "clip_grad_norm": None}),
        make("tiny-momentum-8", TINY, 8, 256, optimizer={"name": "sgd_momentum", "implementation": "foreach"}),
        make("tiny-forward-prefetch-8", TINY, 8, 2048, forward_prefetch=2),
        make("tiny-backward-prefetch-8", TINY, 8, 2048, backward_prefetch=2),
    ]


def _weights() -> list[dict[str, Any]]:
    """Steps whose peaks are units in flight, not activations."""
    hsdp = {"dp_replicate": 4, "dp_shard": 8}
    accumulates: dict[str, Any] = {"micro": 1, "micro_batches": 2}
    make = run_document
    return [
        make("weights-block-8", WEIGHTS, 8, 64),
        make("weights-root-8", WEIGHTS, 8, 64, wrap="root"),
        make("weights-every2-64", WEIGHTS, 64, 64, wrap={"every": 2}),
        make("weights-ends-64", WEIGHTS, 64, 64, wrap="block_and_ends"),
        make("weights-reshard-true-64", WEIGHTS, 64, 64, reshard_after_forward=True),
        make("weights-reshard-false-64", WEIGHTS, 64, 64, reshard_after_forward=False),
        make("weights-reshard-8-64", WEIGHTS, 64, 64, reshard_after_forward=8),
        make("weights-fp32-64", WEIGHTS, 64, 64, precision=ALL_FP32),
        make("weights-bf16-64", WEIGHTS, 64, 64, precision=ALL_BF16),
        make("weights-hsdp-4x8", WEIGHTS, 32, 64, layout=hsdp),
        make("weights-hsdp-bf16-reduce-4x8", WEIGHTS, 32, 64, layout=hsdp, precision={"reduce": "bf16"}),
        make("weights-hsdp-accumulate-4x8", WEIGHTS, 32, 64, **accumulates, layout=hsdp),
        make("weights-hsdp-accumulate-sharded-4x8", WEIGHTS, 32, 64, **accumulates, layout=hsdp, accumulate_sharded=True),
        make("weights-accumulate-64", WEIGHTS, 64, 64, **accumulates),
        make("weights-nosync-64", WEIGHTS, 64, 64, **accumulates, accumulate_unsharded=True),
        make("weights-forward-prefetch-64", WEIGHTS, 64, 64, forward_prefetch=2),
        make("weights-backward-prefetch-64", WEIGHTS, 64, 64, backward_prefetch=2),
        make("weights-recompute-64", WEIGHTS, 64, 64, recompute={"policy": "full"}),
        make("weights-fsdp1-64", WEIGHTS, 64, 64, strategy="fsdp1"),
        make("weights-fsdp1-post-64", WEIGHTS, 64, 64, strategy="fsdp1", backward_prefetch=0),
        make("weights-fsdp1-nosync-64", WEIGHTS, 64, 64, **accumulates, strategy="fsdp1", accumulate_unsharded=True),
    ]


def _published() -> list[dict[str, Any]]:
    """Shapes that people train."""
    make = run_document
    return [
        make("gpt2-block-4", "gpt2", 4, 1024, micro=8),
        make("gpt2-xl-block-16", "gpt2-xl", 16, 1024, micro=4, recompute={"policy": "full"}),
        make("llama-3.2-1b-block-8", "llama-3.2-1b", 8, 4096, micro=2),
        make("qwen2.5-7b-block-16", "qwen2.5-7b", 16, 4096),
        make("llama-2-7b-ends-32", "llama-2-7b", 32, 4096),
        make("llama-3.1-8b-block-64", "llama-3.1-8b", 64, 8192),
        make("llama-3.1-8b-ends-recompute-8", "llama-3.1-8b", 8, 8192, wrap="block_and_ends", recompute={"policy": "full"}),
        make("llama-2-13b-every4-128", "llama-2-13b", 128, 4096, wrap={"every": 4}, recompute={"policy": "full"}),
        make("llama-2-70b-hsdp-8x32", "llama-2-70b", 256, 4096, layout={"dp_replicate": 8, "dp_shard": 32},
             recompute={"policy": "full"}),
        make("llama-3.1-70b-ends-512", "llama-3.1-70b", 512, 8192, wrap="block_and_ends", recompute={"policy": "full"}),
        make("llama-3.1-70b-reshard8-1024", "llama-3.1-70b", 1024, 8192, reshard_after_forward=8, recompute={"policy": "full"}),
    ]


def _other_systems() -> list[dict[str, Any]]:
    """FSDP1 on the small model."""
    make = run_document
    return [
        make("fsdp1-block-8", TINY, 8, 2048, strategy="fsdp1"),
        make("fsdp1-keep-8", TINY, 8, 2048, strategy="fsdp1", reshard_after_forward=False),
        make("fsdp1-post-8", TINY, 8, 2048, strategy="fsdp1", backward_prefetch=0),
        make("fsdp1-uneven-7", UNEVEN, 7, 2048, strategy="fsdp1"),
        make("fsdp1-hybrid-4x8", TINY, 32, 2048, strategy="fsdp1", layout={"dp_replicate": 4, "dp_shard": 8}),
        make("fsdp1-accumulate-8", TINY, 8, 2048, micro_batches=3, strategy="fsdp1"),
        make("fsdp1-accumulate-nosync-8", TINY, 8, 2048, micro_batches=3, strategy="fsdp1", accumulate_unsharded=True),
        make("fsdp1-llama-3.1-8b-64", "llama-3.1-8b", 64, 8192, strategy="fsdp1"),
    ]


def runs() -> list[Run]:
    """Every configuration, ready to be traced."""
    plain = [read_run(document) for document in (*_small(), *_weights(), *_published(), *_other_systems())]
    frozen = [
        read_run(run_document("tiny-frozen-embedding-8", TINY, 8, 2048), ("model.embed_tokens",)),
        read_run(run_document("tiny-frozen-blocks-8", TINY, 8, 2048), ("model.layers.0", "model.layers.1")),
    ]
    return plain + frozen
