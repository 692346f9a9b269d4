"""Gradients of window rows: one program owns neighbouring rows of a sequence and visits the queries that see them.

Windows of neighbouring queries overlap, so the queries of N rows are at most N + width - 1 neighbours. A program
keeps its keys in shared memory and their gradient [DIMS, N] in registers; q and gradient of the next query are on
their way while it works at one. Each query is read (N + width - 1) / N times (5 x 128 KiB at N = 32, width 128), by
programs that visit it at about the same time: once from memory, otherwise from L2. Work: 4 products of heads x width
for each query and row visited, 1.25 times those that are read. At N = 32 the matrix unit waits for shared memory: 24
cycles to read what it multiplies in 16.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.attention_rows import generation, places
from minidsv41.kernels.launch import dot_type, launch
from minidsv41.kernels.pairs import load_pair, pair, softmax_gradient
from minidsv41.ops.rows import Rows, Span


class WindowTile(NamedTuple):
    """Heads and rows that one program takes at once. More than two blocks of heads add up in any order."""

    heads: int
    keys: int
    warps: int = 8
    stages: int = 1


TILES = {"prompts": [WindowTile(64, 16), WindowTile(32, 32)]}  # for a sweep


def window_tile(rows: int, heads: int, dtype: torch.dtype, card: int) -> WindowTile:
    """Fewer rows a program where there are few, so that 132 processors have work."""
    if dtype == torch.float32 or card not in (9, 10):
        return WindowTile(16, 16, 4)
    heads = min(64, max(16, triton.next_power_of_2(heads)))
    return WindowTile(heads, 32 if rows >= 4096 and card == 9 else 16, 8 if heads > 32 else 4)


def window_backward(
    grad: Tensor,
    q: Tensor,
    lse: Tensor,
    delta: Tensor,
    window: Rows,
    span: Span,
    d_window: Tensor,
    *,
    tile: WindowTile | None = None,
) -> None:
    """Add the gradients of the window's rows to d_window [R, D] float32; delta [T, H]: gradient . output."""
    tokens, heads, width = q.shape
    tile = tile or window_tile(len(window.data), heads, q.dtype, generation(q.device))
    sequences, pages = window.table.shape
    tiles = triton.cdiv(pages * window.page, tile.keys)
    launch(
        by_key,
        (sequences * tiles, triton.cdiv(heads, tile.heads)),
        **dict(q=q, grad=grad, lse=lse, delta=delta, window=window.data, d_window=d_window),
        **places(span),
        **dict(table=window.table.contiguous(), page=window.page, pages=pages, tiles=tiles, tokens=tokens),
        **dict(steps=tokens.bit_length(), H=heads),
        **dict(D=width, W=span.width, N=tile.keys, HEADS=tile.heads, DIMS=max(16, triton.next_power_of_2(width))),
        **dict(SCALE=width**-0.5, DOT=dot_type(q.dtype), PRECISION="ieee" if q.dtype == torch.float32 else "tf32"),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


@triton.jit
def first_query(seq, last, tokens, steps, wanted, position):
    """The first query of sequence `wanted` that stands at `position` or after it, or the first of a later sequence."""
    low, high = 0, tokens
    for _ in range(steps):
        middle = (low + high) // 2
        inside = low < high
        s, at = tl.load(seq + middle, inside, other=0), tl.load(last + middle, inside, other=0)
        before = inside & ((s < wanted) | ((s == wanted) & (at < position)))
        low, high = tl.where(before, middle + 1, low), tl.where(before, high, tl.where(inside, middle, high))
    return low


@triton.jit
def by_key(
    q, grad, lse, delta, window, d_window, seq, first, last, table, page, pages, tiles, tokens, steps, H: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, N: tl.constexpr, HEADS: tl.constexpr, DIMS: tl.constexpr, SCALE: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    wanted, row0, head0 = tl.program_id(0) // tiles, tl.program_id(0) % tiles * N, tl.program_id(1) * HEADS
    begin = first_query(seq, last, tokens, steps, wanted, row0).to(tl.int64)
    end = first_query(seq, last, tokens, steps, wanted, row0 + N - 1 + W).to(tl.int64)
    if begin < end:
        head, dim, index = head0 + tl.arange(0, HEADS), tl.arange(0, DIMS), row0 + tl.arange(0, N)
        held = index < pages * page
        physical = tl.load(table + wanted * pages + index // page, held, other=0)
        held = held & (physical >= 0)  # a page that does not exist is -1
        row = tl.where(held, physical * page + index % page, 0).to(tl.int64) * D
        keys = tl.load(window + row[:, None] + dim[None, :], held[:, None] & (dim < D)[None, :], other=0.0).to(DOT)
        total = tl.zeros([DIMS, N], tl.float32)
        # Programs start within their queries so that those which see a query visit it at one time, while it is in L2.
        after = begin + ((N + W) - begin % (N + W)) % (end - begin)
        pairs = load_pair(q, grad, after, head0, H, D, HEADS, DIMS)
        for _ in range(begin, end):
            now, token = pairs.to(DOT), after
            after = tl.where(after + 1 < end, after + 1, begin)
            pairs = load_pair(q, grad, after, head0, H, D, HEADS, DIMS)
            at = token * H + head
            log_sum, of_out = tl.load(lse + at, head < H, other=0.0), tl.load(delta + at, head < H, other=0.0)
            final = tl.load(last + token)
            seen = (index >= tl.load(first + token)) & (index <= final) & (index > final - W)
            p, d_score = softmax_gradient(now, keys, log_sum[:, None], of_out[:, None], seen[None, :], SCALE, PRECISION)
            total = tl.dot(now.T, pair(d_score, p).to(DOT), total, input_precision=PRECISION)
        to = d_window + row[None, :] + dim[:, None]
        tl.atomic_add(to, total, held[None, :] & (dim < D)[:, None], sem="relaxed")
