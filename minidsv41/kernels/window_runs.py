"""Runs of neighbouring queries of a sequence, which see almost the same window rows.

A program takes 32 queries, decodes their 160 rows into shared memory once, and multiplies two queries at a time with
them, each half of the warps its own. All keys of a query are there at once: its softmax is one pass, and the output
leaves in blocks of dimensions, which need few registers; in their place half of the next queries is on its way. q and
output do not pass shared memory (fragments.py): within the loop no thread waits for another.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels import codes
from minidsv41.kernels.attention_rows import LOG2E, arguments, common, located, pairs, places
from minidsv41.kernels.fragments import arrived, bring_near, exchanged, held, lines_of, operand, result
from minidsv41.kernels.launch import launch
from minidsv41.ops.rows import Rows, Span


class RunTile(NamedTuple):
    """Neighbouring queries that share their rows, and heads, of one program.

    together: queries (1 or 2) multiplied at once; block: dimensions of a product; ahead: blocks of the next queries
    that are on their way meanwhile.
    """

    queries: int
    heads: int = 64
    warps: int = 8
    together: int = 2
    block: int = 64
    ahead: int = 4
    near: bool = True  # the next queries are brought into L2 before


def by_run(
    q: Tensor, window: Rows, sink: Tensor, span: Span, rotation: tuple[Tensor, Tensor] | None, tile: RunTile, *,
    with_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Output [T, H, D] and lse [T, H], for arguments that have been checked."""
    tokens, heads, width = q.shape
    out = torch.empty_like(q)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device) if with_lse else None
    near, more = max(16, triton.next_power_of_2(span.width)), max(16, tile.queries)
    shared = common(q, near, tile.warps)
    block = min(tile.block, max(32, triton.next_power_of_2(width)))
    blocks, aligned = triton.cdiv(width, block), q.is_meta or q.data_ptr() % 16 == 0
    launch(
        runs,
        (triton.cdiv(tokens, tile.queries), triton.cdiv(heads, tile.heads)),
        **dict(q=q, out=out, lse=lse, sink=sink, T=tokens, **places(span)),
        **arguments("window", window),
        **{name: shared[name] for name in ("H", "D", "DOT", "PRECISION", "FP8")} | pairs(rotation),
        **dict(W=span.width, QUERIES=tile.queries, HEADS=tile.heads, TOGETHER=tile.together),
        **dict(NEAR=near, MORE=more, BLOCK=block, BLOCKS=blocks, AHEAD=min(tile.ahead, blocks)),
        **dict(BYTES=heads * width * q.element_size() if tile.near and aligned else 0),
        num_warps=tile.warps,
        num_stages=1,
    )
    return out, lse


@triton.jit
def fetched(
    data, scales, table, pages, page, seq, start, lowest, highest, N: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """What is stored of rows start, start + 1, ... of a sequence, and scales, each block of dimensions apart.

    Zeros outside lowest..highest.
    """
    index = start + tl.arange(0, N)
    row = located(table, pages, page, seq, tl.where((index >= lowest) & (index <= highest), index, -1))
    real, row = (row >= 0)[:, None], row.to(tl.int64)[:, None]
    stored, scale = (), ()
    for block in tl.static_range(BLOCKS):
        column = (block * BLOCK + tl.arange(0, BLOCK))[None, :]
        inside = real if (block + 1) * BLOCK <= D else real & (column < D)
        stored = stored + (tl.load(data + row * D + column, inside, other=0),)
        if FORMAT == "window":
            group = (block * (BLOCK // 32) + tl.arange(0, BLOCK // 32))[None, :]
            inside = real if (block + 1) * BLOCK <= D else real & (group < D // 32)
            scale = scale + (tl.load(scales + row * (D // 32) + group, inside, other=0),)
    return stored, scale


@triton.jit
def decoded(stored, scale, BLOCKS: tl.constexpr, FORMAT: tl.constexpr, DOT: tl.constexpr, FP8: tl.constexpr):
    """Values of fetched rows, each block of dimensions apart."""
    N: tl.constexpr = stored[0].shape[0]
    BLOCK: tl.constexpr = stored[0].shape[1]
    keys = ()
    for block in tl.static_range(BLOCKS):
        values = stored[block]
        if FORMAT == "window":
            factor = codes.ue8m0_decode(scale[block])[:, :, None].broadcast_to(N, BLOCK // 32, 32).reshape(N, BLOCK)
            values = codes.e4m3_decode(values, FP8).to(tl.float32) * factor
        keys = keys + (exchanged(values.to(DOT)),)
    return keys


@triton.jit
def query_block(
    q, token, end, head0, H: tl.constexpr, block: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    HEADS: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """One block of dimensions of queries from `token` on, as rows of 32 columns; zeros from query `end` on."""
    line, begin = lines_of(LINES, BLOCK // 32)
    column = begin[:, None] + tl.arange(0, 32)[None, :]
    real, row = row_of(line, token, end, head0, H, HEADS)
    inside = real[:, None] if (block + 1) * BLOCK <= D else real[:, None] & (block * BLOCK + column < D)
    return tl.load(q + tl.cast(token, tl.int64) * H * D + block * BLOCK + row[:, None] * D + column, inside, other=0.0)


@triton.jit
def row_of(line, token, end, head0, H: tl.constexpr, HEADS: tl.constexpr):
    """Whether a line's query and head exist, and its row from the query `token` on."""
    if H == HEADS:
        real, row = token + line // HEADS < end, line
    else:
        head = head0 + line % HEADS
        real, row = (token + line // HEADS < end) & (head < H), line // HEADS * H + head
    return real, row


@triton.jit
def masked(s, begin: tl.constexpr, lowest, highest):
    """Products with rows begin, begin + 1, ... of a run; -inf outside each query's lowest..highest."""
    slot = begin + tl.arange(0, s.shape[1])[None, :]
    return tl.where((slot >= lowest[:, None]) & (slot <= highest[:, None]), s, float("-inf"))


@triton.jit
def turned_back(o, cos, sin, token, inside, line, pair, HEADS: tl.constexpr, PAIRS: tl.constexpr):
    """Undo the rotation of pairs 0..PAIRS - 1 in rows of outputs; `pair` [rows, 16] may lie outside."""
    at = (tl.cast(token, tl.int64) + line // HEADS)[:, None] * PAIRS + pair
    turned = (pair >= 0) & (pair < PAIRS) & inside
    c = tl.load(cos + at, turned, other=1.0).to(tl.float32)
    s = tl.load(sin + at, turned, other=0.0).to(tl.float32)
    a, b = o.reshape(o.shape[0], 16, 2).split()
    return tl.join(a * c + b * s, b * c - a * s).reshape(o.shape[0], 32)


@triton.jit
def runs(
    q, out, lse, sink, seq, first, last, T, window_data, window_scales, window_table, window_pages, window_page,
    cos, sin, WINDOW_FORMAT: tl.constexpr, H: tl.constexpr, D: tl.constexpr, W: tl.constexpr, QUERIES: tl.constexpr,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, NEAR: tl.constexpr, MORE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, AHEAD: tl.constexpr, PAIRS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    FP8: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """Runs of queries, each within one sequence and NEAR + MORE rows from the first query's window on."""
    at = tl.program_id(0) * QUERIES
    number, end = at + tl.arange(0, QUERIES), tl.minimum(at + QUERIES, T)
    seqs, lasts = tl.load(seq + number, number < T, other=-1), tl.load(last + number, number < T, other=-1)
    firsts = tl.load(first + number, number < T, other=0)
    SCALE: tl.constexpr = D**-0.5 * LOG2E
    LINES: tl.constexpr = TOGETHER * HEADS  # of queries and heads that are multiplied together
    line, head0 = tl.arange(0, LINES), tl.program_id(1) * HEADS
    place, head = line // HEADS, head0 + line % HEADS
    m = tl.load(sink + head, head < H, other=0.0).to(tl.float32) * LOG2E
    for _ in tl.range(0, QUERIES, num_stages=1, disable_licm=True):
        if at < end:  # a run: usually there is only one
            own_seq, newest = tl.load(seq + at), tl.load(last + at)
            start = tl.maximum(newest - (W - 1), 0)
            fits = (seqs == own_seq) & (lasts >= newest) & (lasts < start + NEAR + MORE)
            stop = tl.min(tl.where((number > at) & (fits == 0), number, end), 0)
            own = (number >= at) & (number < stop)
            lowest, highest = tl.min(tl.where(own, firsts, newest), 0), tl.max(tl.where(own, lasts, 0), 0)
            if BYTES > 0:
                bring_near(q + tl.cast(at, tl.int64) * H * D, tl.minimum(stop - at, TOGETHER) * BYTES, FP8)
            near, near_scale = fetched(
                window_data, window_scales, window_table, window_pages, window_page, own_seq, start, lowest, highest,
                NEAR, D, BLOCK, BLOCKS, WINDOW_FORMAT,
            )  # fmt: skip
            more, more_scale = fetched(
                window_data, window_scales, window_table, window_pages, window_page, own_seq, start + NEAR, lowest,
                highest, MORE, D, BLOCK, BLOCKS, WINDOW_FORMAT,
            )  # fmt: skip
            soon = ()
            for block in tl.static_range(AHEAD):
                soon = soon + (query_block(q, at, stop, head0, H, block, D, BLOCK, HEADS, LINES),)
            near = decoded(near, near_scale, BLOCKS, WINDOW_FORMAT, DOT, FP8)
            more = decoded(more, more_scale, BLOCKS, WINDOW_FORMAT, DOT, FP8)
            arrived(at, FP8)
            for t in tl.range(at, stop, TOGETHER, num_stages=1, disable_licm=True):
                if BYTES > 0:
                    after = t + TOGETHER
                    bring_near(q + tl.cast(after, tl.int64) * H * D, tl.minimum(stop - after, TOGETHER) * BYTES, FP8)
                after = tl.minimum(t + 1, stop - 1)
                low, high = tl.load(first + t), tl.load(last + t)
                other_low, other_high = tl.load(first + after), tl.load(last + after)
                low = tl.where(place > 0, tl.maximum(other_low, other_high - (W - 1)), tl.maximum(low, high - (W - 1)))
                high = tl.where(place > 0, other_high, high)
                low, high = (low - start).to(tl.int32), (high - start).to(tl.int32)

                s, r = tl.zeros([LINES, NEAR], tl.float32), tl.zeros([LINES, MORE], tl.float32)
                for block in tl.static_range(BLOCKS):
                    x = held(operand(soon[0].to(DOT), BLOCK // 32))
                    s = tl.dot(x, tl.trans(near[block]), s, input_precision=PRECISION)
                    r = tl.dot(x, tl.trans(more[block]), r, input_precision=PRECISION)
                    if block + AHEAD < BLOCKS:
                        later = query_block(q, t, stop, head0, H, block + AHEAD, D, BLOCK, HEADS, LINES)
                    else:
                        later = query_block(
                            q, t + TOGETHER, stop, head0, H, block + AHEAD - BLOCKS, D, BLOCK, HEADS, LINES
                        )
                    soon = soon[1:] + (later,)
                s, r = masked(s, 0, low, high), masked(r, NEAR, low, high)
                top = tl.maximum(m, tl.maximum(tl.max(s, 1), tl.max(r, 1)) * SCALE)  # scores are to base 2
                s, r = tl.exp2(s * SCALE - top[:, None]), tl.exp2(r * SCALE - top[:, None])
                total = tl.exp2(m - top) + tl.sum(s, 1) + tl.sum(r, 1)
                share, to = (1.0 / total)[:, None], tl.cast(t, tl.int64) * H
                if lse is not None:
                    real, row = row_of(line, t, stop, head0, H, HEADS)
                    tl.store(lse + to + row, (top + tl.log2(total)) / LOG2E, real)
                s, r = (s * share).to(DOT), (r * share).to(DOT)
                places, begin = lines_of(LINES, BLOCK // 32)
                real, row = row_of(places, t, stop, head0, H, HEADS)
                real, column = real[:, None], begin[:, None] + tl.arange(0, 32)[None, :]
                for block in tl.static_range(BLOCKS):
                    o = tl.dot(s, near[block], input_precision=PRECISION)
                    o = result(tl.dot(r, more[block], o, input_precision=PRECISION))
                    if (block + 1) * BLOCK > D - 2 * PAIRS:
                        pair = (block * BLOCK + begin[:, None]) // 2 + tl.arange(0, 16)[None, :] - (D // 2 - PAIRS)
                        o = turned_back(o, cos, sin, t, real, places, pair, HEADS, PAIRS)
                    inside = real if (block + 1) * BLOCK <= D else real & (block * BLOCK + column < D)
                    where = to * D + block * BLOCK + row[:, None] * D + column
                    tl.store(out + where, o.to(out.dtype.element_ty), inside)
            at = stop
