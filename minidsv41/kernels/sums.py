"""Gradients of a seam's own tensors, added up in one kernel from what programs left of each: small sums, many launches
otherwise. The first program makes those of base and scale, some the norm's, all others the predictor's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.launch import launch
from minidsv41.kernels.streams import narrow

COLUMNS = 32  # of the norm's gradient, for a program
NUMBERS = 1024  # of the predictor's gradient, for a program


def add_up(of_logits: Tensor, of_norm: Tensor, of_fn: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """From parts [., 2, 24], [., C] and [., 24, 4C]: gradients of fn, base, scale, and norm (in dtype)."""
    width = of_norm.shape[1]
    base, scale, fn = of_fn.new_empty(24), of_fn.new_empty(3), of_fn.new_empty(24, 4 * width)
    norm = of_fn.new_empty(width, dtype=dtype)
    launch(
        added_up,
        (1 + triton.cdiv(width, COLUMNS) + triton.cdiv(96 * width, NUMBERS),),
        **dict(of_logits=of_logits, of_norm=of_norm, of_fn=of_fn, base=base, scale=scale, norm=norm, fn=fn),
        **dict(TOKENS=of_logits.shape[0], TILES=of_norm.shape[0], GROUPS=of_fn.shape[0], C=width),
        **dict(COLUMNS=COLUMNS, NUMBERS=NUMBERS),
    )
    return fn, base, scale, norm


@triton.jit
def column_sums(at, rows, c, inside, STRIDE, M: tl.constexpr, N: tl.constexpr):
    total = tl.zeros([M, N], tl.float32)
    for first in range(0, rows, M):
        row = first + tl.arange(0, M)
        there = (row < rows)[:, None] & inside[None, :]
        total += tl.load(at + row.to(tl.int64)[:, None] * STRIDE + c[None, :], there, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def added_up(
    of_logits, of_norm, of_fn, base, scale, norm, fn, TOKENS, TILES, GROUPS: tl.constexpr, C: tl.constexpr,
    COLUMNS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    NORMS: tl.constexpr = tl.cdiv(C, COLUMNS)
    if program == 0:
        k = tl.arange(0, 64)
        of_k = column_sums(of_logits, TOKENS, k, k < 48, 48, 64, 64)
        tl.store(base + k, of_k, k < 24)
        tl.store(scale, tl.sum(tl.where((k >= 24) & (k < 28), of_k, 0.0), 0))
        tl.store(scale + 1, tl.sum(tl.where((k >= 28) & (k < 32), of_k, 0.0), 0))
        tl.store(scale + 2, tl.sum(tl.where((k >= 32) & (k < 48), of_k, 0.0), 0))
    elif program <= NORMS:
        c = (program - 1) * COLUMNS + tl.arange(0, COLUMNS)
        total = column_sums(of_norm, TILES, c, c < C, C, 64, COLUMNS)
        tl.store(norm + c, narrow(total, norm.dtype.element_ty), c < C)
    else:
        at = (program - 1 - NORMS) * NUMBERS + tl.arange(0, NUMBERS)
        of_all = tl.zeros([NUMBERS], tl.float32)
        for part in tl.static_range(GROUPS):
            of_all += tl.load(of_fn + part * (96 * C) + at, at < 96 * C, other=0.0)
        tl.store(fn + at, of_all, at < 96 * C)
