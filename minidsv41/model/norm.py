"""RMSNorm, and the precision in which statistics are taken."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minidsv41.ops import rms_norm


def wide(dtype: torch.dtype) -> torch.dtype:
    """float64 stays, everything narrower computes its statistics in float32."""
    return torch.promote_types(dtype, torch.float32)


def wide_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., C], weight [O, C] -> [..., O] in the wide type; a GPU widens nothing but the result."""
    dtype = wide(x.dtype)
    if x.is_cuda and x.dtype == weight.dtype == torch.bfloat16 and not torch.is_grad_enabled():
        return torch.mm(x.flatten(0, -2), weight.T, out_dtype=dtype).unflatten(0, x.shape[:-1])
    return F.linear(x.to(dtype), weight.to(dtype))


class RMSNorm(nn.Module):
    """x [..., D] -> weight * x / rms(x). eps is 1e-20 in the released model."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
