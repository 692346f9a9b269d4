"""What the card can do at best, measured in the same run as the kernels: bandwidths, matrix products, a launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from minidsv41.kernels.bench.timing import GraphTimer, Timer
from minidsv41.kernels.launch import launch

GIB = 1 << 30
BLOCK, STEPS = 4096, 16  # int32 values that a program of `read` or `copied` takes at once, and how often


@triton.jit
def read(x, out, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """One program finds the largest of BLOCK * STEPS values."""
    at = tl.program_id(0).to(tl.int64) * (BLOCK * STEPS) + tl.arange(0, BLOCK)
    best = tl.load(x + at)
    for i in range(1, STEPS):
        best = tl.maximum(best, tl.load(x + at + i * BLOCK))
    tl.store(out + tl.program_id(0), tl.max(best, 0))


@triton.jit
def copied(x, out, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """One program copies BLOCK * STEPS values."""
    at = tl.program_id(0).to(tl.int64) * (BLOCK * STEPS) + tl.arange(0, BLOCK)
    for i in range(STEPS):
        tl.store(out + at + i * BLOCK, tl.load(x + at + i * BLOCK))


@triton.jit
def nothing(x):
    pass


@dataclass(frozen=True)
class Ceilings:
    """GB/s of a copy (read and written bytes), of reading, and of copying from pinned memory; bf16 TFLOP/s of a
    product of 8192 x 8192 matrices; µs of an empty launch in a graph."""

    copy: float
    read: float
    pinned: float
    matmul: float
    launch_us: float

    def floor_us(self, moved: int, flops: int) -> float:
        """No run can take less: bytes at the rate of a copy, or products at the rate of the large one."""
        return max(moved / self.copy / 1e3, flops / self.matmul / 1e6)


def measure(device: torch.device, timer: Timer | None = None, *, size: int = 4 * GIB, side: int = 8192) -> Ceilings:
    """Measure all five on buffers of `size` bytes, far beyond any cache, filled with random bits.

    A graph would make a slow node of `copy_`, so that is started alone; a kernel may be faster still.
    """
    timer, g = timer or GraphTimer(span_us=20_000.0), torch.Generator(device).manual_seed(0)
    limits = dict(low=-(2**31), high=2**31 - 1, dtype=torch.int32, device=device, generator=g)
    x = torch.randint(size=(size // 4,), **limits)
    y, programs = torch.empty_like(x), size // 4 // (BLOCK * STEPS)
    largest = torch.empty(programs, dtype=torch.int32, device=device)
    grid, options = (programs,), dict(BLOCK=BLOCK, STEPS=STEPS, num_warps=8)
    ways = (
        timer([lambda: y.copy_(x)], capture=False),
        timer([lambda: launch(copied, grid, x=x, out=y, **options)]),
    )
    copy = min(way.median for way in ways)
    reading = timer([lambda: launch(read, grid, x=x, out=largest, **options)]).median
    a, b = (torch.randn(side, side, device=device, generator=g).bfloat16() for _ in range(2))
    product = timer([lambda: a @ b]).median
    part = min(len(x), GIB // 4)
    host = torch.empty(part, dtype=torch.int32, pin_memory=device.type == "cuda").copy_(x[:part])
    pinned = timer([lambda: y[:part].copy_(host, non_blocking=True)], capture=False).median
    empty = timer([lambda: launch(nothing, (1,), x=largest)]).median
    rates = 2 * size / copy / 1e3, programs * BLOCK * STEPS * 4 / reading / 1e3, 4 * part / pinned / 1e3
    return Ceilings(*(round(r, 1) for r in rates), round(2 * side**3 / product / 1e6, 1), round(empty, 3))
