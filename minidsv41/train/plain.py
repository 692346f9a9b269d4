"""The yardstick: a plain pre-norm Transformer with RMSNorm, RoPE, SDPA and SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class PlainConfig:
    """Shape of a plain Transformer. Nothing is tied, no linear has a bias."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    rope_theta: float = 10000.0

    @property
    def parameters(self) -> int:
        """Parameters without embedding and head; all are active for each token."""
        c = self.hidden_size
        return self.num_layers * (4 * c * c + 3 * c * self.intermediate_size + 2 * c) + c

    @classmethod
    def with_parameters(cls, count: int, **shape: int) -> PlainConfig:
        """The config whose `intermediate_size` brings `parameters` closest to `count`."""
        base = cls(**shape, intermediate_size=0)
        per_unit = 3 * base.hidden_size * base.num_layers
        if (units := round((count - base.parameters) / per_unit)) < 1:
            raise ValueError(f"{count} parameters: norms and attention of {base} alone have {base.parameters}")
        return cls(**shape, intermediate_size=units)


class PlainTransformer(nn.Module):
    """`forward(tokens [B, T]) -> logits [B, T, V]`, causal."""

    def __init__(self, config: PlainConfig, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(PlainBlock(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for name, p in self.named_parameters():
            if not name.endswith("norm.weight"):
                nn.init.normal_(p, std=0.02, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)  # [B, T, C]
        turns = rotation(tokens.shape[1], self.config, x.device)
        for layer in self.layers:
            x = layer(x, turns)
        return self.head(self.norm(x))


class PlainBlock(nn.Module):
    """x + attention(norm(x)), then x + SwiGLU(norm(x))."""

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        c, wide = config.hidden_size, config.intermediate_size
        self.heads = config.num_heads
        self.attn_norm, self.ffn_norm = nn.RMSNorm(c), nn.RMSNorm(c)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(c, c, bias=False) for _ in range(4))
        self.w1, self.w3 = (nn.Linear(c, wide, bias=False) for _ in range(2))
        self.w2 = nn.Linear(wide, c, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        y = self.attn_norm(x)
        q, k, v = (w(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(rotate(q, turns), rotate(k, turns), v, is_causal=True)  # [B, H, T, D]
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


def rotation(length: int, config: PlainConfig, device: torch.device) -> Tensor:
    """Complex turns [T, D / 2] of RoPE."""
    half = config.hidden_size // config.num_heads // 2
    speed = config.rope_theta ** -(torch.arange(half, device=device) / half)
    angle = torch.arange(length, device=device)[:, None] * speed
    return torch.polar(torch.ones_like(angle), angle)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn neighbouring pairs of the last axis of `x` [B, H, T, D]."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)
