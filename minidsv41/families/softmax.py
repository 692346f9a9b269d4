"""Softmax attention as all its families use it, and the rotation of its queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.model.rope import Rotation, rotate


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, *, scale: float, sink: Tensor | None = None
) -> Tensor:
    """q [T, H, D], k [N, G, D], v [N, G, E], visible [T, N] of bool, sink [H] -> [T, H, E].

    Head h reads key head h // (H / G). The sink takes weight and gives nothing.
    """
    grouped = q.unflatten(1, (k.shape[1], -1))  # [T, G, H / G, D]
    scores = torch.einsum("tghd,ngd->tghn", grouped, k) * scale
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    if sink is not None:
        column = sink.view(1, k.shape[1], -1, 1).expand(len(q), -1, -1, 1)
        scores = torch.cat([scores, column.to(scores.dtype)], -1)
    weights = scores.softmax(-1)[..., : len(k)]
    return torch.einsum("tghn,nge->tghe", weights, v).flatten(1, 2)


def causal(positions: Tensor, keys: int, *, window: int | None = None) -> Tensor:
    """[T, N] of bool: which of `keys` tokens, the last of them at positions[-1], each query may read."""
    at = torch.arange(keys, device=positions.device) + (int(positions[-1]) + 1 - keys)
    seen = at <= positions[:, None]
    return seen if window is None else seen & (at > positions[:, None] - window)


def rotate_halves(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn the pairs (j, j + R / 2) of the first R dims of x [T, D] or [T, H, D], as Qwen and V3.2's indexer do."""
    dims = 2 * rotation.cos.shape[-1]
    head, still = x.split([dims, x.shape[-1] - dims], -1)
    paired = head.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    turned = rotate(paired, rotation).unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return torch.cat([turned, still], -1)
