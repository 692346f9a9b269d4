"""The yardstick: a plain pre-norm Transformer with RMSNorm, RoPE, SDPA and SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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


class PlainCache:
    """Keys and values of one sequence, for `limit` tokens: keys, values [L, H, limit, D]."""

    def __init__(self, config: PlainConfig, limit: int, dtype: torch.dtype = torch.float32) -> None:
        heads = config.num_heads
        shape = config.num_layers, heads, limit, config.hidden_size // heads
        self.keys, self.values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        self.length = 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [1, H, T, D] behind the tokens so far -> all keys and values [1, H, length + T, D]."""
        end = self.length + k.shape[2]
        self.keys[layer, :, self.length : end], self.values[layer, :, self.length : end] = k[0], v[0]
        return self.keys[None, layer, :, :end], self.values[None, layer, :, :end]

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held."""
        return 2 * self.keys[:, :, : self.length].numel() * self.keys.element_size()


class PlainTransformer(nn.Module):
    """Causal: tokens [B, T] -> logits [B, T, V]."""

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

    def forward(self, tokens: Tensor, cache: PlainCache | None = None) -> Tensor:
        """With a `cache`: one sequence, of which `tokens` are the next ones -> logits of the last [1, 1, V]."""
        start, x = cache.length if cache else 0, self.embed(tokens)  # [B, T, C]
        turns = rotation(start + tokens.shape[1], self.config, x.device)[start:]
        for i, layer in enumerate(self.layers):
            x = layer(x, turns, partial(cache.extend, i) if cache else None)
        if cache:
            cache.length += tokens.shape[1]
            x = x[:, -1:]
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

    def forward(self, x: Tensor, turns: Tensor, extend: Callable | None = None) -> Tensor:
        y = self.attn_norm(x)
        q, k, v = (w(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, turns), rotate(k, turns)
        if extend:
            k, v = extend(k, v)
        new, old = q.shape[2], k.shape[2] - q.shape[2]
        mask = None if old == 0 else torch.ones(new, old + new, dtype=torch.bool, device=x.device).tril(old)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)  # [B, H, T, D]
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
