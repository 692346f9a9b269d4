"""Window attention in runs with q and output through shared memory: to be measured beside window_runs.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels import codes
from minidsv41.kernels.attention_rows import LOG2E, arguments, common, located, pairs, places
from minidsv41.kernels.launch import INTERPRETED, launch
from minidsv41.ops.rows import Rows, Span

ON_CARD = tl.constexpr(not INTERPRETED)


def by_run(q, window: Rows, sink, span: Span, rotation, tile) -> tuple[Tensor, Tensor]:
    tokens, heads, width = q.shape
    out, lse = torch.empty_like(q), torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    near, more = max(16, triton.next_power_of_2(span.width)), max(16, tile.queries)
    shared = common(q, near, tile.warps)
    block = min(tile.block, max(32, triton.next_power_of_2(width)))
    blocks = triton.cdiv(width, block)
    launch(
        runs,
        (triton.cdiv(tokens, tile.queries), triton.cdiv(heads, tile.heads)),
        **dict(q=q, out=out, lse=lse, sink=sink, T=tokens, **places(span)),
        **arguments("window", window),
        **{name: shared[name] for name in ("H", "D", "DOT", "PRECISION", "FP8")} | pairs(rotation),
        **dict(W=span.width, QUERIES=tile.queries, HEADS=tile.heads, TOGETHER=tile.together),
        **dict(NEAR=near, MORE=more, BLOCK=block, BLOCKS=blocks, AHEAD=min(tile.ahead, blocks)),
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
        keys = keys + (values.to(DOT),)
    return keys


@triton.jit
def query_blocks(
    q, token, end, place, head, H, begin: tl.constexpr, stop: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """[queries * heads, BLOCK] of some blocks of dimensions of queries token + place; zeros from query `end` on."""
    real, column = ((token + place < end) & (head < H))[:, None], tl.arange(0, BLOCK)[None, :]
    at, first = (place * H + head)[:, None] * D + column, q + tl.cast(token, tl.int64) * H * D
    found = ()
    for block in tl.static_range(begin, stop):
        inside = real if (block + 1) * BLOCK <= D else real & (block * BLOCK + column < D)
        found = found + (tl.load(first + block * BLOCK + at, inside, other=0.0).to(DOT),)
    return found


@triton.jit
def held(x):
    """x itself, which stays in registers up to here: by itself a block goes to shared memory as soon as it is there."""
    if ON_CARD and x.dtype == tl.bfloat16:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], tl.bfloat16, is_pure=False, pack=2)
    return x


@triton.jit
def scores(s, t, blocks, near, more, begin: tl.constexpr, stop: tl.constexpr, PRECISION: tl.constexpr):
    """Products of some blocks of dimensions of q with those of both kinds of keys, added to s and t."""
    for block in tl.static_range(begin, stop):
        x = held(blocks[block - begin]) if begin > 0 else blocks[block]
        s = tl.dot(x, tl.trans(near[block]), s, input_precision=PRECISION)
        t = tl.dot(x, tl.trans(more[block]), t, input_precision=PRECISION)
    return s, t


@triton.jit
def masked(s, begin: tl.constexpr, lowest, highest, SCALE: tl.constexpr):
    """Scores (base 2) of rows begin, begin + 1, ... of a run; -inf outside each query's lowest..highest."""
    slot = begin + tl.arange(0, s.shape[1])[None, :]
    return tl.where((slot >= lowest[:, None]) & (slot <= highest[:, None]), s * (SCALE * LOG2E), float("-inf"))


@triton.jit
def turned_back(
    o, cos, sin, token, end, place, block: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr
):
    """Undo the rotation of the last PAIRS pairs of D dimensions in one block of outputs."""
    pair = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2) - (D // 2 - PAIRS)
    turned = (pair >= 0) & (pair < PAIRS)
    at, after = tl.cast(token, tl.int64) * PAIRS + pair, turned & (token + 1 < end)
    second = (place > 0)[:, None]
    c, other_c = tl.load(cos + at, turned, other=1.0), tl.load(cos + PAIRS + at, after, other=1.0)
    s, other_s = tl.load(sin + at, turned, other=0.0), tl.load(sin + PAIRS + at, after, other=0.0)
    c = tl.where(second, other_c[None, :], c[None, :]).to(tl.float32)
    s = tl.where(second, other_s[None, :], s[None, :]).to(tl.float32)
    a, b = o.reshape(o.shape[0], BLOCK // 2, 2).split()
    return tl.join(a * c + b * s, b * c - a * s).reshape(o.shape[0], BLOCK)


@triton.jit
def runs(
    q, out, lse, sink, seq, first, last, T, window_data, window_scales, window_table, window_pages, window_page,
    cos, sin, WINDOW_FORMAT: tl.constexpr, H, D: tl.constexpr, W: tl.constexpr, QUERIES: tl.constexpr,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, NEAR: tl.constexpr, MORE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, AHEAD: tl.constexpr, PAIRS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    """Runs of queries, each within one sequence and NEAR + MORE rows from the first query's window on."""
    at = tl.program_id(0) * QUERIES
    number, end = at + tl.arange(0, QUERIES), tl.minimum(at + QUERIES, T)
    seqs, lasts = tl.load(seq + number, number < T, other=-1), tl.load(last + number, number < T, other=-1)
    firsts = tl.load(first + number, number < T, other=0)
    line = tl.arange(0, TOGETHER * HEADS)  # of queries and heads that are multiplied together
    place, head, column = line // HEADS, tl.program_id(1) * HEADS + line % HEADS, tl.arange(0, BLOCK)
    m = tl.load(sink + head, head < H, other=0.0).to(tl.float32) * LOG2E
    for _ in tl.range(0, QUERIES, num_stages=1, disable_licm=True):
        if at < end:  # a run: usually there is only one
            own_seq, newest = tl.load(seq + at), tl.load(last + at)
            start = tl.maximum(newest - (W - 1), 0)
            fits = (seqs == own_seq) & (lasts >= newest) & (lasts < start + NEAR + MORE)
            stop = tl.min(tl.where((number > at) & (fits == 0), number, end), 0)
            own = (number >= at) & (number < stop)
            lowest, highest = tl.min(tl.where(own, firsts, newest), 0), tl.max(tl.where(own, lasts, 0), 0)
            near, near_scale = fetched(
                window_data, window_scales, window_table, window_pages, window_page, own_seq, start, lowest, highest,
                NEAR, D, BLOCK, BLOCKS, WINDOW_FORMAT,
            )  # fmt: skip
            more, more_scale = fetched(
                window_data, window_scales, window_table, window_pages, window_page, own_seq, start + NEAR, lowest,
                highest, MORE, D, BLOCK, BLOCKS, WINDOW_FORMAT,
            )  # fmt: skip
            soon = query_blocks(q, at, stop, place, head, H, 0, AHEAD, D, BLOCK, DOT)
            near = decoded(near, near_scale, BLOCKS, WINDOW_FORMAT, DOT, FP8)
            more = decoded(more, more_scale, BLOCKS, WINDOW_FORMAT, DOT, FP8)
            for t in tl.range(at, stop, TOGETHER, num_stages=1, disable_licm=True):
                rest = query_blocks(q, t, stop, place, head, H, AHEAD, BLOCKS, D, BLOCK, DOT)
                after = tl.minimum(t + 1, stop - 1)
                low, high = tl.load(first + t), tl.load(last + t)
                other_low, other_high = tl.load(first + after), tl.load(last + after)
                low = tl.where(place > 0, tl.maximum(other_low, other_high - (W - 1)), tl.maximum(low, high - (W - 1)))
                high = tl.where(place > 0, other_high, high)
                low, high = (low - start).to(tl.int32), (high - start).to(tl.int32)

                s = tl.zeros([TOGETHER * HEADS, NEAR], tl.float32)
                r = tl.zeros([TOGETHER * HEADS, MORE], tl.float32)
                s, r = scores(s, r, soon, near, more, 0, AHEAD, PRECISION)
                s, r = scores(s, r, rest, near, more, AHEAD, BLOCKS, PRECISION)
                soon = query_blocks(q, t + TOGETHER, stop, place, head, H, 0, AHEAD, D, BLOCK, DOT)
                s, r = masked(s, 0, low, high, D**-0.5), masked(r, NEAR, low, high, D**-0.5)
                top = tl.maximum(m, tl.maximum(tl.max(s, 1), tl.max(r, 1)))
                s, r = tl.exp2(s - top[:, None]), tl.exp2(r - top[:, None])
                total = tl.exp2(m - top) + tl.sum(s, 1) + tl.sum(r, 1)
                real, to = (t + place < stop) & (head < H), tl.cast(t, tl.int64) * H
                tl.store(lse + to + place * H + head, (top + tl.log2(total)) / LOG2E, real)
                s, r = (s / total[:, None]).to(DOT), (r / total[:, None]).to(DOT)
                for block in tl.static_range(BLOCKS):
                    o = tl.dot(s, near[block], input_precision=PRECISION)
                    o = tl.dot(r, more[block], o, input_precision=PRECISION)
                    if (block + 1) * BLOCK > D - 2 * PAIRS:
                        o = turned_back(o, cos, sin, t, stop, place, block, D, BLOCK, PAIRS)
                    inside = real[:, None] & (block * BLOCK + column < D)[None, :]
                    where = (place * H + head)[:, None] * D + column[None, :]
                    tl.store(out + to * D + block * BLOCK + where, o.to(out.dtype.element_ty), inside)
            at = stop
