"""RMSNorm, and the precision in which statistics are taken."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minidsv41.ops import rms_norm


def wide(dtype: torch.dtype) -> torch.dtype:
    """float64 stays, everything narrower computes its statistics in float32."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """x [..., D] -> weight * x / rms(x). eps is 1e-20 in the released model."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
