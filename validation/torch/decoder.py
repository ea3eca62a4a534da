"""A decoder-only transformer in plain PyTorch, with the module names of Hugging Face's classes.

Every tensor that eager PyTorch would keep or make is written out here, so that what a memory tracker sees can be laid beside the model
graph of the simulator op by op.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from run_file import ModelConfig


def _fused_kernels_by_hand(x: torch.Tensor) -> bool:
    """Fake accelerators have no kernels that a dispatcher could choose: the CUDA choice is made here."""
    return x.device.type == "gpu"


class FusedRmsNorm(torch.autograd.Function):
    """Memory of CUDA's fused RMSNorm (aten/src/ATen/native/cuda/layer_norm_kernel.cu, fused_rms_norm_cuda): the result and one fp32
    statistic a row; input, weight and statistic are saved. Values are not computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        statistic = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, statistic)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight) if ctx.needs_input_grad[1] else None


class FusedSilu(torch.autograd.Function):
    """Memory of CUDA's SiLU (aten/src/ATen/native/cuda/ActivationSiluKernel.cu): one result forward and one backward; the input is
    saved. Other devices compute the backward from elementwise ops. Values are not computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.empty_like(x)


def silu(x: torch.Tensor) -> torch.Tensor:
    """`F.silu`, as CUDA runs it."""
    return FusedSilu.apply(x) if _fused_kernels_by_hand(x) else F.silu(x)


class RMSNorm(nn.Module):
    """`torch.nn.RMSNorm`; the fused kernel where CUDA would take it."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if _fused_kernels_by_hand(x):
            return FusedRmsNorm.apply(x, self.weight)
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class LayerNorm(nn.Module):
    """`torch.nn.LayerNorm`."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)


class TransposedLinear(nn.Module):
    """GPT-2's `Conv1D`: a linear layer whose weight is stored [in, out]."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, out))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], self.weight.shape[1])


def _norm(config: ModelConfig) -> nn.Module:
    return RMSNorm(config.hidden) if config.norm == "rmsnorm" else LayerNorm(config.hidden)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float, attention: str) -> torch.Tensor:
    """Causal attention of [batch, heads, length, width]; fewer key than query heads are taken as they are by flash
    kernels and repeated for plain SDPA."""
    few = k.shape[1] < q.shape[1]
    if few and attention in ("sdpa", "unfused"):
        repeats = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(repeats, dim=1)
        v = v.repeat_interleave(repeats, dim=1)
        few = False
    if _fused_kernels_by_hand(q):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True)[0]
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=few)


def rotary_table(length: int, width: int, theta: float = 10000.0) -> torch.Tensor:
    """Complex rotations [length, width / 2]."""
    frequencies = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [batch, length, heads, width] in fp32, as torchtitan computes it."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table[:, None, :]).flatten(3).type_as(x)


class Attention(nn.Module):
    """Separate projections, as Llama has them."""

    def __init__(self, config: ModelConfig, attention: str) -> None:
        super().__init__()
        self.config = config
        self.attention = attention
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, width, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden, kv_width, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden, kv_width, bias=config.qkv_bias)
        self.o_proj = nn.Linear(width, config.hidden, bias=config.linear_bias)

    def forward(self, x: torch.Tensor, table: torch.Tensor | None) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, -1, self.config.head_dim)
        k = self.k_proj(x).view(batch, length, -1, self.config.head_dim)
        v = self.v_proj(x).view(batch, length, -1, self.config.head_dim)
        if table is not None:
            q = rotate(q, table)
            k = rotate(k, table)
        dropout = self.config.dropout if self.training else 0.0
        out = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout, self.attention)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class FusedAttention(nn.Module):
    """One projection for query, key and value, as GPT-2 has it."""

    def __init__(self, config: ModelConfig, attention: str) -> None:
        super().__init__()
        self.config = config
        self.attention = attention
        self.c_attn = TransposedLinear(config.hidden, 3 * config.hidden)
        self.c_proj = TransposedLinear(config.hidden, config.hidden)

    def forward(self, x: torch.Tensor, table: torch.Tensor | None) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        q, k, v = (part.view(batch, length, -1, self.config.head_dim).transpose(1, 2) for part in parts)
        dropout = self.config.dropout if self.training else 0.0
        out = attend(q, k, v, dropout, self.attention)
        return self.c_proj(out.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    """Gated (three matrices) or plain (two)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.act = silu if config.activation == "silu" else F.gelu
        self.gated = config.gated_mlp
        if self.gated:
            self.gate_proj = nn.Linear(config.hidden, config.ffn_hidden, bias=config.linear_bias)
        self.up_proj = nn.Linear(config.hidden, config.ffn_hidden, bias=config.linear_bias)
        self.down_proj = nn.Linear(config.ffn_hidden, config.hidden, bias=config.linear_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gated:
            return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(self.act(self.up_proj(x)))


class Gpt2Mlp(nn.Module):
    """GPT-2's two matrices."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_fc = TransposedLinear(config.hidden, config.ffn_hidden)
        self.c_proj = TransposedLinear(config.ffn_hidden, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and a residual."""

    def __init__(self, config: ModelConfig, attention: str) -> None:
        super().__init__()
        self.input_layernorm = _norm(config)
        self.self_attn = Attention(config, attention)
        self.post_attention_layernorm = _norm(config)
        self.mlp = Mlp(config)

    def forward(self, x: torch.Tensor, table: torch.Tensor | None) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), table)
        return x + self.mlp(self.post_attention_layernorm(x))


class Gpt2Block(nn.Module):
    """GPT-2's block, with dropout after both parts."""

    def __init__(self, config: ModelConfig, attention: str) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.hidden)
        self.attn = FusedAttention(config, attention)
        self.ln_2 = LayerNorm(config.hidden)
        self.mlp = Gpt2Mlp(config)
        self.dropout = config.dropout

    def forward(self, x: torch.Tensor, table: torch.Tensor | None) -> torch.Tensor:
        x = x + F.dropout(self.attn(self.ln_1(x), table), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.ln_2(x)), self.dropout, self.training)


class LlamaModel(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, config: ModelConfig, attention: str, length: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.embed_positions = (
            nn.Embedding(config.max_positions, config.hidden) if config.positions == "learned" else None
        )
        self.layers = nn.ModuleList(Block(config, attention) for _ in range(config.layers))
        self.norm = _norm(config)
        table = rotary_table(length, config.head_dim) if config.positions == "rope" else None
        self.register_buffer("table", table, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        if self.embed_positions is not None:
            x = x + self.embed_positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x, self.table)
        return self.norm(x)


class Gpt2Model(nn.Module):
    """GPT-2's embeddings, blocks and final norm."""

    def __init__(self, config: ModelConfig, attention: str) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab, config.hidden)
        self.wpe = nn.Embedding(config.max_positions, config.hidden)
        self.h = nn.ModuleList(Gpt2Block(config, attention) for _ in range(config.layers))
        self.ln_f = LayerNorm(config.hidden)
        self.dropout = config.dropout

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.h:
            x = block(x, None)
        return self.ln_f(x)


class CausalLM(nn.Module):
    """A decoder with its language-model head; returns logits."""

    def __init__(self, config: ModelConfig, attention: str, length: int) -> None:
        super().__init__()
        self.body_name = "transformer" if config.gpt2_names else "model"
        body = Gpt2Model(config, attention) if config.gpt2_names else LlamaModel(config, attention, length)
        self.add_module(self.body_name, body)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        if config.tied_embeddings:
            self.lm_head.weight = self.embedding.weight

    @property
    def body(self) -> nn.Module:
        """Everything below the head."""
        return self.get_submodule(self.body_name)

    @property
    def embedding(self) -> nn.Embedding:
        """The table of token embeddings."""
        body = self.body
        return body.wte if isinstance(body, Gpt2Model) else body.embed_tokens

    @property
    def blocks(self) -> nn.ModuleList:
        """The repeated blocks."""
        body = self.body
        return body.h if isinstance(body, Gpt2Model) else body.layers

    @property
    def final_norm(self) -> nn.Module:
        """The norm in front of the head."""
        body = self.body
        return body.ln_f if isinstance(body, Gpt2Model) else body.norm

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.body(tokens))
