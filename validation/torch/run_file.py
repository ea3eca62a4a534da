"""Run files (`shardsim.run/1`) as far as the PyTorch backend needs them.

Only what PyTorch itself can be told is read: the model, the data-parallel layout, the batch, dtypes, recomputation and the optimizer.
Anything else that a run asks for (tensor, pipeline, context or expert parallelism, offload) is refused by name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

LLAMA_LIKE = ("llama", "mistral", "qwen2")


class RunFileError(ValueError):
    """A run that this backend cannot play, with the reason."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder-only transformer."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated_mlp: bool = True
    positions: str = "rope"  # rope | learned
    max_positions: int = 2048
    norm: str = "rmsnorm"  # rmsnorm | layernorm
    activation: str = "silu"  # silu | gelu
    qkv_bias: bool = False
    linear_bias: bool = False
    tied_embeddings: bool = False
    dropout: float = 0.0
    gpt2_names: bool = False  # module tree, fused projection and transposed weights of GPT2LMHeadModel


@dataclass(frozen=True)
class Run:
    """What one training run is made of; sizes are per rank where nothing else is said."""

    id: str
    model: ModelConfig
    world: int
    dp_replicate: int
    dp_shard: int
    strategy: str
    wrap: Any
    reshard: bool | int | None
    forward_prefetch: int | None
    backward_prefetch: int | None
    limit_all_gathers: bool
    accumulate_unsharded: bool
    accumulate_sharded: bool
    bucket_bytes: int | None
    sequence_length: int
    micro_batch: int
    micro_batches: int
    param: str
    reduce: str
    master: str
    recompute: str
    recompute_every: int
    optimizer: str
    implementation: str
    clip_grad_norm: float | None
    attention: str
    frozen: tuple[str, ...] = ()
    document: dict[str, Any] = field(default_factory=dict, compare=False)


def strip_comments(text: str) -> str:
    """JSON text without its `//` comments; strings keep theirs."""
    pattern = r'"(?:\\.|[^"\\])*"|//[^\n]*'
    return re.sub(pattern, lambda match: match[0] if match[0].startswith('"') else "", text)


def load_json(path: Path) -> Any:
    """Reads a JSON file that may hold comments."""
    return json.loads(strip_comments(path.read_text(encoding="utf-8")))


def _model_document(model: Any) -> dict[str, Any]:
    if isinstance(model, dict):
        return model
    path = Path(model) if "/" in model or model.endswith(".json") else ROOT / "models" / f"{model}.json"
    return load_json(path)


def _llama(config: dict[str, Any]) -> ModelConfig:
    heads = config["num_attention_heads"]
    return ModelConfig(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        ffn_hidden=config["intermediate_size"],
        vocab=config["vocab_size"],
        qkv_bias=config.get("attention_bias", config["model_type"] == "qwen2"),
        tied_embeddings=config.get("tie_word_embeddings", False),
    )


def _gpt2(config: dict[str, Any]) -> ModelConfig:
    return ModelConfig(
        layers=config["n_layer"],
        hidden=config["n_embd"],
        heads=config["n_head"],
        kv_heads=config["n_head"],
        head_dim=config["n_embd"] // config["n_head"],
        ffn_hidden=config.get("n_inner") or 4 * config["n_embd"],
        vocab=config["vocab_size"],
        gated_mlp=False,
        positions="learned",
        max_positions=config["n_positions"],
        norm="layernorm",
        activation="gelu",
        qkv_bias=True,
        linear_bias=True,
        tied_embeddings=True,
        dropout=config.get("resid_pdrop", 0.1),
        gpt2_names=True,
    )


def _inline(config: dict[str, Any]) -> ModelConfig:
    for key in ("moe", "mla", "qk_norm"):
        if config.get(key):
            raise RunFileError(f"model.{key}: the plain decoder of this backend has none")
    heads = config["heads"]
    bias = config.get("linear_bias", False)
    return ModelConfig(
        layers=config["layers"],
        hidden=config["hidden"],
        heads=heads,
        kv_heads=config.get("kv_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden"] // heads,
        ffn_hidden=config["ffn_hidden"],
        vocab=config["vocab"],
        gated_mlp=config.get("gated_mlp", True),
        positions=config.get("positions", "rope"),
        max_positions=config.get("max_positions", 2048),
        norm=config.get("norm", "rmsnorm"),
        activation=config.get("activation", "silu"),
        qkv_bias=config.get("qkv_bias", bias),
        linear_bias=bias,
        tied_embeddings=config.get("tied_embeddings", False),
        dropout=config.get("dropout", 0.0),
    )


def read_model(model: Any) -> ModelConfig:
    """The model that a run file names, points to or holds."""
    config = _model_document(model)
    family = config.get("model_type")
    if family in LLAMA_LIKE:
        return _llama(config)
    if family == "gpt2":
        return _gpt2(config)
    if family == "transformer":
        return _inline(config)
    raise RunFileError(f"model.model_type: {family!r} is not one of {', '.join(LLAMA_LIKE)}, gpt2, transformer")


def _refuse_what_is_not_data_parallel(document: dict[str, Any]) -> None:
    layout = document.get("layout", {})
    for degree in ("tp", "pp", "cp", "ep"):
        if layout.get(degree, 1) != 1:
            raise RunFileError(f"layout.{degree}: this backend runs data-parallel layouts only")
    for part, target in document.get("offload", {}).items():
        if target != "none":
            raise RunFileError(f"offload.{part}: this backend keeps everything on the device")


def read_run(document: dict[str, Any], frozen: tuple[str, ...] = ()) -> Run:
    """A run document as values. `frozen`: module paths whose parameters do not train."""
    _refuse_what_is_not_data_parallel(document)
    world = document["cluster"]["gpus"]
    layout = document.get("layout", {})
    replicate = layout.get("dp_replicate", 1)
    shard = layout.get("dp_shard", -1)
    shard = world // replicate if shard == -1 else shard
    if replicate * shard != world:
        raise RunFileError(f"layout: {replicate} x {shard} ranks are not the {world} of the cluster")
    parallel = document.get("data_parallel", {})
    batch = document.get("batch", {})
    micro = batch.get("micro_batch", 1)
    whole = batch.get("global_batch", micro * world) or micro * world
    if whole % (micro * world) != 0:
        raise RunFileError(f"batch.global_batch: {whole} is no multiple of {micro} x {world}")
    precision = document.get("precision", {})
    recompute = document.get("recompute", {})
    optimizer = document.get("optimizer", {})
    return Run(
        id=document.get("id", "run"),
        model=read_model(document["model"]),
        world=world,
        dp_replicate=replicate,
        dp_shard=shard,
        strategy=parallel.get("strategy", "fsdp2"),
        wrap=parallel.get("wrap", "block"),
        reshard=parallel.get("reshard_after_forward"),
        forward_prefetch=parallel.get("forward_prefetch"),
        backward_prefetch=parallel.get("backward_prefetch"),
        limit_all_gathers=parallel.get("limit_all_gathers", True),
        accumulate_unsharded=parallel.get("accumulate_unsharded", False),
        accumulate_sharded=parallel.get("accumulate_sharded", False),
        bucket_bytes=parallel.get("bucket_bytes"),
        sequence_length=batch.get("sequence_length", 2048),
        micro_batch=micro,
        micro_batches=whole // (micro * world),
        param=precision.get("param", "bf16"),
        reduce=precision.get("reduce", "fp32"),
        master=precision.get("master", "fp32"),
        recompute=recompute.get("policy", "none"),
        recompute_every=recompute.get("every", 1),
        optimizer=optimizer.get("name", "adamw"),
        implementation=optimizer.get("implementation", "fused"),
        clip_grad_norm=optimizer.get("clip_grad_norm", 1.0),
        attention=document.get("software", {}).get("attention", "flash2"),
        frozen=frozen,
        document=document,
    )


def load_run(path: Path) -> Run:
    """Reads one run file. Errors: RunFileError when it is not one, or one that this backend cannot play."""
    document = load_json(path)
    if document.get("schema") != "shardsim.run/1":
        raise RunFileError(f"{path}: schema is {document.get('schema')!r}, not 'shardsim.run/1'")
    return read_run(document)
