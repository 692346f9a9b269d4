"""Attention over window rows alone, with a sink (`ops.window_attention`; layers without entries, and replay).

Neighbouring queries of a sequence see almost the same rows: a program takes up to 32 queries, decodes their 160 rows
into shared memory once, and multiplies all heads of one query after the other with them. Read once: q, and 528 bytes
an FP8 row and 32 queries; written once: the output, after the inverse rotation. 2 x 64 KB a query at 64 x 512 are the
floor (126 us at 4,096 queries, 1,000 us at 32,768); the products of 160 rows cost 42 MFLOP a query, half of that time.
Queries that are few, or of many sequences, are taken one a program instead (attention_split.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.formats import WINDOW
from minidsv41.kernels.attention_rows import (
    LOG2E,
    arguments,
    check,
    common,
    decoded,
    fetch,
    generation,
    located,
    pairs,
    places,
    specimen_rows,
)
from minidsv41.kernels.attention_split import Tile, attend, finish, load_heads, tile_for
from minidsv41.kernels.launch import launch
from minidsv41.ops.rows import Rows, Span


class RunTile(NamedTuple):
    """Neighbouring queries that share their rows, and heads, of one program."""

    queries: int
    heads: int = 64
    warps: int = 8


def run_tile_for(
    tokens: int, heads: int, width: int, sequences: int, dtype: torch.dtype, card: int = 9
) -> RunTile | None:  # fmt: skip
    """None where queries share too little, being few or of many sequences, and where memory is not as on Hopper."""
    if dtype == torch.float32 or heads < 64 or width != 512 or card != 9:
        return None
    queries = min(32, tokens // max(128, 2 * sequences))
    return RunTile(1 << (queries.bit_length() - 1)) if queries >= 4 else None


def window_attention(
    q: Tensor,
    window: Rows,
    sink: Tensor,
    span: Span,
    *,
    tile: RunTile | Tile | None = None,
    with_lse: bool = False,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`sparse_attention` without entries: q [T, H, D] over rows span.first..last of each query's sequence.

    rotation: cos and sin [T, R / 2], each query's own, undone on the last R dims of the output. with_lse: also
    [T, H] float32, the logarithm of the softmax's denominator, sink included. Not differentiable by itself.
    Raises Unsupported.
    """
    check(q, sink, span, rotation, window=window)
    tokens, heads, width = q.shape
    q, sequences, card = q.contiguous(), len(window.table), generation(q.device)
    tile = tile or run_tile_for(tokens, heads, width, sequences, q.dtype, card)
    if isinstance(tile, RunTile):
        out, lse = by_run(q, window, sink, span, rotation, tile)
    else:
        packed = window.format is not None
        tile = tile or tile_for(tokens, heads, span.width, q.dtype, packed=packed, card=card)
        out, lse = attend(q, window, None, None, sink, span, rotation, tile)
    return (out, lse) if with_lse else out


def by_run(q, window: Rows, sink, span: Span, rotation, tile: RunTile) -> tuple[Tensor, Tensor]:
    tokens, heads, _ = q.shape
    out, lse = torch.empty_like(q), torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    near, more = max(16, triton.next_power_of_2(span.width)), max(16, tile.queries)
    launch(
        runs,
        (triton.cdiv(tokens, tile.queries), triton.cdiv(heads, tile.heads)),
        **dict(q=q, out=out, lse=lse, sink=sink, T=tokens, **places(span)),
        **arguments("window", window),
        **common(q, more, tile.warps) | pairs(rotation),
        **dict(W=span.width, QUERIES=tile.queries, HEADS=tile.heads),
        **dict(NEAR=near, MORE=more),
        num_warps=tile.warps,
        num_stages=1,
    )
    return out, lse


@triton.jit
def keys_from(
    data, scales, table, pages, page, seq, start, lowest, highest, N: tl.constexpr, D: tl.constexpr,
    HALF: tl.constexpr, FORMAT: tl.constexpr, DOT: tl.constexpr, FP8: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Values [N, .] of rows start, start + 1, ... of a sequence; zeros outside lowest..highest."""
    index = start + tl.arange(0, N)
    row = located(table, pages, page, seq, tl.where((index >= lowest) & (index <= highest), index, -1))
    stored, scale = fetch(data, scales, row, D, HALF, FORMAT, PACKED)
    return decoded(stored, scale, HALF, FORMAT, DOT, FP8, PACKED)


@triton.jit
def masked(s, start, lowest, highest, SCALE: tl.constexpr):
    """Scores (base 2) of rows start, start + 1, ...; -inf outside lowest..highest."""
    index = start + tl.arange(0, s.shape[1])
    return tl.where(((index >= lowest) & (index <= highest))[None, :], s * (SCALE * LOG2E), float("-inf"))


@triton.jit
def attended(q, near, more, start, lowest, highest, m, once, SCALE: tl.constexpr, PRECISION: tl.constexpr):
    """Outputs [heads, .], maximum and denominator of one query; m: its sink."""
    s = tl.dot(q, tl.trans(near), input_precision=PRECISION)
    t = tl.dot(q, tl.trans(more), input_precision=PRECISION)
    # Always once > 0 and highest >= 0. Without such branches, and with one condition for both, each half of the warps
    # would make all of a product that feeds another one (the compiler's layout of chained products).
    first, total = m, m
    if once > 0:
        s = masked(s, start, lowest, highest, SCALE)
        first = tl.maximum(m, tl.max(s, 1))
        s = tl.exp2(s - first[:, None])
        total = tl.exp2(m - first) + tl.sum(s, 1)
    acc = tl.zeros(q.shape, tl.float32)
    if highest >= 0:
        acc = tl.dot(s.to(near.dtype), near, input_precision=PRECISION)
    top = first
    if once > 0:
        t = masked(t, start + near.shape[0], lowest, highest, SCALE)
        top = tl.maximum(first, tl.max(t, 1))
        t = tl.exp2(t - top[:, None])
        total = total * tl.exp2(first - top) + tl.sum(t, 1)
    acc = tl.dot(t.to(near.dtype), more, acc * tl.exp2(first - top)[:, None], input_precision=PRECISION)
    return acc, top, total


@triton.jit
def runs(
    q, out, lse, sink, seq, first, last, T, window_data, window_scales, window_table, window_pages, window_page,
    cos, sin, WINDOW_FORMAT: tl.constexpr, H, D: tl.constexpr, HALF: tl.constexpr, W: tl.constexpr,
    QUERIES: tl.constexpr, HEADS: tl.constexpr, NEAR: tl.constexpr, MORE: tl.constexpr, PAIRS: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, FP8: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Runs of queries, each within one sequence and NEAR + MORE rows from the first query's window on."""
    at = tl.program_id(0) * QUERIES
    place, end = at + tl.arange(0, QUERIES), tl.minimum(at + QUERIES, T)
    seqs, lasts = tl.load(seq + place, place < T, other=-1), tl.load(last + place, place < T, other=-1)
    firsts = tl.load(first + place, place < T, other=0)
    head0 = tl.program_id(1) * HEADS
    head, once = head0 + tl.arange(0, HEADS), tl.minimum(H - head0, 1)
    m = tl.load(sink + head, head < H, other=0.0).to(tl.float32) * LOG2E
    for _ in tl.range(0, QUERIES, num_stages=1, disable_licm=True):
        if at < end:  # a run: usually there is only one
            s, newest = tl.load(seq + at), tl.load(last + at)
            start = tl.maximum(newest - (W - 1), 0)
            fits = (seqs == s) & (lasts >= newest) & (lasts < start + NEAR + MORE)
            stop = tl.min(tl.where((place > at) & (fits == 0), place, end), 0)
            own = (place >= at) & (place < stop)
            lowest, highest = tl.min(tl.where(own, firsts, newest), 0), tl.max(tl.where(own, lasts, 0), 0)
            near = keys_from(
                window_data, window_scales, window_table, window_pages, window_page, s, start, lowest, highest, NEAR,
                D, HALF, WINDOW_FORMAT, DOT, FP8, PACKED,
            )  # fmt: skip
            more = keys_from(
                window_data, window_scales, window_table, window_pages, window_page, s, start + NEAR, lowest, highest,
                MORE, D, HALF, WINDOW_FORMAT, DOT, FP8, PACKED,
            )  # fmt: skip
            for t in tl.range(at, stop, num_stages=1, disable_licm=True):
                token, newest = tl.cast(t, tl.int64), tl.load(last + t)
                lowest = tl.maximum(tl.load(first + t), newest - (W - 1))
                queries = load_heads(q, token, head, H, D, HALF).to(DOT)
                acc, top, total = attended(queries, near, more, start, lowest, newest, m, once, D**-0.5, PRECISION)
                tl.store(lse + token * H + head, (top + tl.log2(total)) / LOG2E, head < H)
                finish(out, acc / total[:, None], head, token, cos, sin, H, D, HALF, PAIRS)
            at = stop


def specimen(tokens: int, sequences: int):
    def made(*shape: int, dtype=torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    place, turn = made(tokens, dtype=torch.int64), (made(tokens, 32), made(tokens, 32))
    q, window = made(tokens, 64, 512, dtype=torch.bfloat16), specimen_rows(512, WINDOW, sequences)
    return window_attention(q, window, made(64), Span(place, place, place, 128), rotation=turn)


SPECIMENS = {"T=4096": lambda: specimen(4096, 1), "T=128": lambda: specimen(128, 128)}
