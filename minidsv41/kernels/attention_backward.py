"""Gradients of sparse and of window attention: to q, to the sink, and to rows stored as plain values.

Three kernels. `prepare`, one program a query: delta = gradient . output of each head, and the physical row of each
key. `by_query`, one program a query and 64 heads: for tiles of 32 keys it makes scores and their gradients with one
product (see pairs.py), keeps the query's gradient in registers, and adds the gradients of selected entries, which
any query may share, to float32 rows by atomics. `window_backward.by_key` owns tiles of window rows: no atomics meet.
Gradients of q, sink and window rows are the same in every run; those of entries differ in the order of additions.

Per query at 64 x 512, 128 + 512 keys, bf16: `prepare` reads 128 KiB; `by_query` reads 128 KiB and 640 KiB of keys
(from L2) and writes 64 KiB; 1 MiB of float32 is added in L2; `by_key` reads 640 KiB, mostly from L2. Work: 5 products
of 64 x 640 x 512 (210 MFLOP), 52 more where `by_key` makes scores again. A tile of 32 keys takes 2,560 cycles of the
matrix unit but some 4,700 of shared memory: that, and the additions in L2, are what binds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.attention_rows import generation, located, places
from minidsv41.kernels.launch import dot_type, launch, require
from minidsv41.kernels.pairs import load_pair, pair, softmax_gradient
from minidsv41.kernels.window_backward import WindowTile, window_backward
from minidsv41.ops.rows import Rows, Span


class Tile(NamedTuple):
    """Heads and keys that one program of `by_query` takes at once; `window`: the tile of `by_key`."""

    heads: int
    keys: int
    warps: int = 8
    stages: int = 2
    window: WindowTile | None = None


class Gradients(NamedTuple):
    q: Tensor
    window: Tensor
    entries: Tensor | None
    sink: Tensor


SMALL = Tile(16, 16, 4, 1, window=WindowTile(16, 16, 4))


def tile_for(heads: int, dtype: torch.dtype, card: int) -> Tile:
    """213 KB of shared memory on Hopper, 180 on Blackwell, below 100 elsewhere."""
    if dtype == torch.float32 or card not in (9, 10):
        return SMALL
    heads = min(64, max(16, triton.next_power_of_2(heads)))
    return Tile(heads, 32, 8 if heads > 32 else 4, 3 if card == 9 else 1)


def attention_backward(
    grad: Tensor,
    q: Tensor,
    out: Tensor,
    lse: Tensor,
    window: Rows,
    entries: Rows | None,
    topk: Tensor | None,
    sink: Tensor,
    span: Span,
    *,
    tile: Tile | None = None,
) -> Gradients:
    """Gradients of sum(grad * out), where out, lse = attention of q over window rows and selected entries.

    grad, q, out [T, H, D]; lse [T, H] float32, logarithm of the softmax's denominator, the sink included; the rest
    as for `ops.sparse_attention`, entries (or topk) None where there is only a window. Queries of a sequence are
    neighbours, in the order of their positions.
    """
    check(q, window, entries, topk)
    check_result(q, grad, out, lse)
    tokens, heads, width = q.shape
    tile = tile or tile_for(heads, q.dtype, generation(q.device))
    grad, q, out, lse = grad.contiguous(), q.contiguous(), out.contiguous(), lse.contiguous()
    delta, rows, ends, slots = prepared(grad, out, window, entries, topk, span, tile.keys)
    d_q, d_window = torch.empty_like(q), torch.zeros_like(window.data, dtype=torch.float32)
    d_entries = None if entries is None else torch.zeros_like(entries.data, dtype=torch.float32)
    launch(
        by_query,
        (tokens, triton.cdiv(heads, tile.heads)),
        **dict(q=q, grad=grad, lse=lse, delta=delta, rows=rows, ends=ends, d_q=d_q, H=heads, D=width),
        **dict(window=window.data, entries=entries.data if rows.shape[1] > slots else None, d_entries=d_entries),
        **dict(slots=slots, width=rows.shape[1], N=tile.keys, HEADS=tile.heads, DIMS=padded(width)),
        **dict(SCALE=width**-0.5, DOT=dot_type(q.dtype), PRECISION=precision(q.dtype)),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    window_backward(grad, q, lse, delta, window, span, d_window, tile=tile.window)
    d_sink = -((sink.float() - lse).exp() * delta).sum(0)
    d_entries = None if d_entries is None else d_entries.to(entries.data.dtype)
    return Gradients(d_q, d_window.to(window.data.dtype), d_entries, d_sink.to(sink.dtype))


def check(q: Tensor, window: Rows, entries: Rows | None, topk: Tensor | None) -> None:
    """Raises Unsupported where attention of q over these rows has no backward kernel."""
    dot_type(q.dtype)
    require(q.shape[2] <= 512, f"D = {q.shape[2]}: allowed are widths up to 512")
    for name, rows in (("window", window), ("entries", entries)):
        if rows is not None:
            require(rows.format is None, f"{name}.format = {rows.format}: allowed is None, codes have no gradient")
            dot_type(rows.data.dtype)
            width = rows.data.shape[1]
            require(width == q.shape[2], f"{name}.data.shape[1] = {width}: allowed is q's width {q.shape[2]}")
            require(rows.data.is_contiguous(), f"{name}.data: allowed are contiguous rows")
    require(topk is None or entries is not None, "entries = None: allowed are rows, where topk is given")


def check_result(q: Tensor, grad: Tensor, out: Tensor, lse: Tensor) -> None:
    for name, value, shape in (("grad", grad, q.shape), ("out", out, q.shape), ("lse", lse, q.shape[:2])):
        require(value.shape == shape, f"{name}.shape = {tuple(value.shape)}: allowed is {tuple(shape)}")
    require(lse.dtype == torch.float32, f"lse.dtype = {lse.dtype}: allowed is torch.float32")


def padded(width: int) -> int:
    return max(16, triton.next_power_of_2(width))


def precision(dtype: torch.dtype) -> str:
    return "ieee" if dtype == torch.float32 else "tf32"


def prepared(grad, out, window, entries, topk, span, tile) -> tuple[Tensor, Tensor, Tensor, int]:
    """delta [T, H] float32; physical rows [T, slots + n] int32 of a query's keys, those of its window in the first
    `slots`, -1: none, both parts padded to whole tiles; ends [T] int32, behind a query's last key; slots."""
    tokens, heads, width = out.shape
    k = 0 if topk is None else topk.shape[1]
    slots, more = triton.cdiv(span.width, tile) * tile, triton.cdiv(k, tile) * tile
    delta = torch.empty(tokens, heads, dtype=torch.float32, device=out.device)
    rows = torch.empty(tokens, slots + more, dtype=torch.int32, device=out.device)
    ends = torch.empty(tokens, dtype=torch.int32, device=out.device)
    last = entries or window
    launch(
        prepare,
        (tokens,),
        **dict(grad=grad, out=out, delta=delta, rows=rows, ends=ends),
        **places(span),
        **dict(window_table=window.table.contiguous(), window_page=window.page, window_pages=window.table.shape[1]),
        **dict(entry_table=last.table.contiguous(), entry_page=last.page, entry_pages=last.table.shape[1]),
        **dict(topk=topk if k == 0 else topk.contiguous(), H=heads, D=width, DIMS=padded(width), W=span.width, K=k),
        **dict(SLOTS=slots, MORE=more, WINDOW=triton.next_power_of_2(slots), CHOSEN=triton.next_power_of_2(more or 1)),
    )
    return delta, rows, ends, slots


@triton.jit
def prepare(
    grad, out, delta, rows, ends, seq, first, last, window_table, window_page, window_pages, entry_table, entry_page,
    entry_pages, topk, H, D: tl.constexpr, DIMS: tl.constexpr, W: tl.constexpr, K: tl.constexpr,
    SLOTS: tl.constexpr, MORE: tl.constexpr, WINDOW: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    s, dim = tl.load(seq + token), tl.arange(0, DIMS)
    for head0 in range(0, H, 8):
        head = head0 + tl.arange(0, 8)
        at, inside = (token * H + head)[:, None] * D + dim[None, :], (head < H)[:, None] & (dim < D)[None, :]
        g, o = tl.load(grad + at, inside, other=0.0).to(tl.float32), tl.load(out + at, inside, other=0.0)
        tl.store(delta + token * H + head, tl.sum(g * o.to(tl.float32), 1), head < H)
    slot, end = tl.arange(0, WINDOW), tl.load(last + token)
    position = end - (W - 1) + slot
    read = (position >= tl.load(first + token)) & (position >= 0) & (slot < W)
    row = located(window_table, window_pages, window_page, s, tl.where(read, position, -1))
    tl.store(rows + token * (SLOTS + MORE) + slot, row, slot < SLOTS)
    if K > 0:
        slot = tl.arange(0, CHOSEN)
        chosen = tl.load(topk + token * K + slot, slot < K, other=-1)
        row = located(entry_table, entry_pages, entry_page, s, chosen)
        tl.store(rows + token * (SLOTS + MORE) + SLOTS + slot, row, slot < MORE)
        tl.store(ends + token, SLOTS + tl.max(tl.where(chosen >= 0, slot + 1, 0), 0))


@triton.jit
def load_keys(data, row, D: tl.constexpr, DIMS: tl.constexpr, DOT: tl.constexpr):
    """Rows `row` [N] of data [N, DIMS], zeros where it is -1."""
    dim = tl.arange(0, DIMS)
    at = (row.to(tl.int64) * D)[:, None] + dim[None, :]
    return tl.load(data + at, (row >= 0)[:, None] & (dim < D)[None, :], other=0.0).to(DOT)


@triton.jit
def add_keys(d_data, rows, given, pairs, inputs, D: tl.constexpr, PRECISION: tl.constexpr):
    """Add the gradients of N keys, inputs [2 * HEADS, N] times a pair's rows, to their rows, if these are given."""
    row = tl.load(rows, given, other=-1)
    d_keys = tl.dot(pairs.T, inputs, input_precision=PRECISION)  # [DIMS, N]
    dim = tl.arange(0, pairs.shape[1])
    at = (row.to(tl.int64) * D)[None, :] + dim[:, None]
    tl.atomic_add(d_data + at, d_keys, (row >= 0)[None, :] & (dim < D)[:, None], sem="relaxed")


@triton.jit
def by_query(
    q, grad, lse, delta, rows, ends, window, entries, d_q, d_entries, slots, width, H: tl.constexpr, D: tl.constexpr,
    N: tl.constexpr, HEADS: tl.constexpr, DIMS: tl.constexpr, SCALE: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    token, head0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS
    head, dim = head0 + tl.arange(0, HEADS), tl.arange(0, DIMS)
    pairs = load_pair(q, grad, token, head0, H, D, HEADS, DIMS).to(DOT)
    at = token * H + head
    log_sum, of_out = tl.load(lse + at, head < H, other=0.0)[:, None], tl.load(delta + at, head < H, other=0.0)[:, None]
    total = tl.zeros([HEADS, DIMS], tl.float32)
    own = rows + token * width + tl.arange(0, N)
    for slot in range(0, slots, N):
        row = tl.load(own + slot)
        keys = load_keys(window, row, D, DIMS, DOT)
        p, d_score = softmax_gradient(pairs, keys, log_sum, of_out, (row >= 0)[None, :], SCALE, PRECISION)
        total = tl.dot(d_score.to(DOT), keys, total, input_precision=PRECISION)
    if entries is not None:
        inputs, end = tl.zeros([2 * HEADS, N], DOT), tl.load(ends + token)  # inputs: of the tile before
        for slot in range(slots, end, N):
            add_keys(d_entries, own + slot - N, slot > slots, pairs, inputs, D, PRECISION)
            row = tl.load(own + slot)
            keys = load_keys(entries, row, D, DIMS, DOT)
            p, d_score = softmax_gradient(pairs, keys, log_sum, of_out, (row >= 0)[None, :], SCALE, PRECISION)
            total = tl.dot(d_score.to(DOT), keys, total, input_precision=PRECISION)
            inputs = pair(d_score, p).to(DOT)
        add_keys(d_entries, own + (end - 1) // N * N, end > slots, pairs, inputs, D, PRECISION)
    inside = (head < H)[:, None] & (dim < D)[None, :]
    tl.store(d_q + at[:, None] * D + dim[None, :], total.to(d_q.dtype.element_ty), inside)


def specimen(*, k: int = 512, tile: Tile | None = None):
    def made(*shape: int, dtype=torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    tokens, heads, width = 4096, 64, 512
    place = made(tokens, dtype=torch.int64)
    rows = Rows(made(tokens, width), made(1, 1, dtype=torch.int64), page=tokens)
    q = made(tokens, heads, width)
    chosen = made(tokens, k, dtype=torch.int64) if k else None
    lse, sink = made(tokens, heads, dtype=torch.float32), made(heads, dtype=torch.float32)
    span = Span(place, place, place, 128)
    return attention_backward(q, q, q, lse, rows, rows if k else None, chosen, sink, span, tile=tile)


SPILLS = ("by_query", "by_key")  # 4 to 14 of 255 registers, those of addresses
SPECIMENS = {
    "sparse T=4096": specimen,
    "window T=4096": lambda: specimen(k=0),
    "sparse T=4096, small tile": lambda: specimen(tile=SMALL),  # of cards other than Hopper and Blackwell
}
