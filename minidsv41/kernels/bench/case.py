"""A case: one operation at one shape, with the fewest bytes it can move and the time it is meant to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Contest:
    """Fresh inputs of one slot with everything that runs on them.

    runs: name -> the call, "kernel" first, then peers that do the same work; each can be captured in a CUDA graph
    after a warm-up unless named in `eager`. error: runs the kernel and a reference (float64 or float32, in chunks)
    and returns the relative error, or the share of wrong selections. workspace: bytes of scratch memory.
    """

    runs: dict[str, Callable[[], object]]
    error: Callable[[], float]
    tolerance: float
    workspace: int = 0
    eager: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Case:
    """bytes: fewest bytes through device memory; flops: of the matrix unit, 0 where none matters.

    build: (device, seed) -> a Contest on fresh random inputs; it is called once for each of the rotating slots.
    """

    operation: str
    shape: str
    bytes: int
    flops: int
    target_us: float | None
    build: Callable[[torch.device, int], Contest]

    @property
    def name(self) -> str:
        return f"{self.operation} {self.shape}"
