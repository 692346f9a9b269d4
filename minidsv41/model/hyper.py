"""Hyper-connections: four residual streams with delayed mixing (mHC paper; the delay: official code)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41 import ops


@dataclass(frozen=True)
class Streams:
    """The residual state between sublayers.

    X [T, n, C]; pre [T, n], the mix for the next sublayer's input; pending, the last sublayer's output
    F [T, C] with its post [T, n] and comb [T, n, n], not yet added to X (None: X is up to date).
    """

    X: Tensor
    pre: Tensor
    pending: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def start(cls, x: Tensor, n: int, dtype: torch.dtype) -> Streams:
        """n copies of x [T, C]; the first mix is one-hot on stream 0."""
        pre = torch.zeros(len(x), n, dtype=dtype, device=x.device)
        pre[:, 0].fill_(1)
        return cls(x[:, None].expand(-1, n, -1), pre)

    def settled(self) -> Streams:
        """The same state with the pending output added."""
        if self.pending is None:
            return self
        return Streams(ops.update(self.X, *self.pending), self.pre)

    def take(self, rows: Tensor | slice) -> Streams:
        """Some rows of a settled state."""
        assert self.pending is None
        return Streams(self.X[rows], self.pre[rows])

    def collapsed(self) -> Tensor:
        """[T, C] the streams mixed by the last sublayer's coefficients: the head's input."""
        return ops.collapse(self.X, self.pre)
