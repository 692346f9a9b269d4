"""Rotary position: adjacent pairs of the last dimensions, with YaRN where keys are compressed."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from minidsv41.config import ModelConfig, RopeScaling
from minidsv41.model.norm import wide


def frequencies(config: ModelConfig, *, compressed: bool, device: torch.device | None = None) -> Tensor:
    """[R / 2] float64 angles per position (official code). No magnitude factor anywhere."""
    theta = config.compress_rope_theta if compressed else config.rope_theta
    scaling = config.rope_scaling if compressed else None
    return angles(config.qk_rope_head_dim, theta, scaling, device=device)


def angles(
    dims: int, theta: float, scaling: RopeScaling | None = None, *, device: torch.device | None = None
) -> Tensor:
    """[dims / 2] float64 angles per position, stretched by YaRN where `scaling` says how far."""
    j = torch.arange(dims // 2, dtype=torch.float64, device=device)
    freq = theta ** (-2 * j / dims)
    if scaling is None:
        return freq

    def turns(beta: float) -> float:
        """The pair that turns beta times within the original length."""
        return dims * math.log(scaling.original_max_position_embeddings / (beta * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(turns(scaling.beta_fast)), 0), min(math.ceil(turns(scaling.beta_slow)), dims - 1)
    ramp = ((j - low) / max(high - low, 1e-3)).clamp(0, 1)
    return freq * (1 - ramp) + freq / scaling.factor * ramp


class Rotation(NamedTuple):
    """cos and sin [T, R / 2] of T positions."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def at(cls, positions: Tensor, freq: Tensor, dtype: torch.dtype) -> Rotation:
        angles = positions[:, None].to(torch.float64) * freq
        return cls(angles.cos().to(wide(dtype)), angles.sin().to(wide(dtype)))


def rotate(x: Tensor, rotation: Rotation, *, inverse: bool = False) -> Tensor:
    """Turn the pairs (2j, 2j + 1) of the last R dims of x [T, D] or [T, H, D] by each row's angles."""
    cos, sin = rotation
    if x.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    if inverse:
        sin = -sin
    dims = 2 * cos.shape[-1]
    still, tail = x.split([x.shape[-1] - dims, dims], -1)
    a, b = tail.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([still, turned.to(x.dtype)], -1)
