"""Attention of single queries: one program takes a query, its heads, and all of its keys or one of several parts.

The program first writes the physical rows of all of its keys (4 bytes a key, read back at once), then takes tile after
tile: rows are decoded into shared memory once and multiplied twice, as keys and as values; where queries are few, the
next tile's bytes are on their way to registers meanwhile. One program fills a multiprocessor: what it does not overlap
waits. Where a query's keys are in parts, `combine` adds up their outputs, kept in the dtype of q (an eighth more error
than without parts, half of the traffic of float32).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.formats import MAIN
from minidsv41.kernels.attention_heads import LOWEST, combine, finish, load_heads, rotation
from minidsv41.kernels.attention_rows import LARGE, LOG2E, UNIT, arguments, common, fetch_words, located, pairs, places
from minidsv41.kernels.attention_tiles import over_tiles
from minidsv41.kernels.launch import launch, starts_early
from minidsv41.ops.rows import Rows, Span


class Tile(NamedTuple):
    """Heads of a program, keys that it takes at once, and into how many parts (programs) a query's keys are split."""

    heads: int
    keys: int
    splits: int = 1
    warps: int = 8
    stages: int = 1
    rows: int = 4  # heads that one program of `combine` takes
    ahead: bool = False  # codes of the next tile wait in registers; each thread finds those of the first one itself
    early: bool = True  # programs start while the kernel before them still ends, and wait for it then


PROGRAMS = 128  # fewer queries than this are split over programs


def tile_for(
    tokens: int, heads: int, keys: int, dtype: torch.dtype, *, packed: bool = True, card: int = 9
) -> Tile:  # fmt: skip
    """As many parts of a query as fill the card, none smaller than a tile; what fits shared memory.

    Plain values are fetched for two tiles at a time by the compiler's pipeline.
    """
    programs = max(1, tokens * triton.cdiv(heads, 64))
    if dtype == torch.float32:
        tile = Tile(16, 16, warps=8)
    elif card in LARGE and heads > 32 and packed:
        wide = keys <= 128 or 2 * programs >= PROGRAMS
        tile = Tile(64, 128) if wide else Tile(64, 64, ahead=card == 9)
    elif card in LARGE and heads > 32:
        tile = Tile(64, 64, stages=4)
    else:
        tile = Tile(min(32, max(16, triton.next_power_of_2(heads))), 32, warps=8 if heads > 16 else 4)
    programs = max(1, tokens * triton.cdiv(heads, tile.heads))
    splits = max(1, min(PROGRAMS // programs, keys // tile.keys))
    return tile._replace(splits=splits, rows=1 if tokens < 64 else 4)


def attend(
    q: Tensor, window: Rows, entries: Rows | None, topk: Tensor | None, sink: Tensor, span: Span,
    rotation: tuple[Tensor, Tensor] | None, tile: Tile, *, with_lse: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output [T, H, D] and lse [T, H], for arguments that have been checked. topk None: window only.

    with_lse False: lse may hold anything.
    """
    tokens, heads, _ = q.shape
    shared, turn = common(q, tile.keys, tile.warps), pairs(rotation)
    k = 0 if topk is None else topk.shape[1]
    packed = shared["PACKED"] and k > 0 and entries.format == MAIN
    ahead, runs = tile.ahead and packed, 4 if packed else 2
    early = tile.early and starts_early(q.device)
    near, far = (triton.cdiv(n, tile.keys) * tile.keys for n in (span.width, k))
    several = {name: triton.next_power_of_2(max(1, n)) for name, n in (("NEAR", near), ("FAR", far))}

    def empty(*shape: int, dtype=torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=q.device)

    out, lse = torch.empty_like(q), empty(tokens, heads)
    blocks, parts = triton.cdiv(heads, tile.heads), tile.splits if tile.splits > 1 else 0
    stat, part = empty(2, tokens, parts, heads), empty(tokens, parts, heads, 2 * shared["HALF"], dtype=q.dtype)
    launch(
        by_query,
        (tokens, blocks, tile.splits),
        **dict(q=q, out=out, lse=lse, stat=stat, part=part, sink=sink, topk=topk),
        **dict(rows=empty(tokens, blocks, near + far, dtype=torch.int32)),
        **places(span),
        **arguments("window", window),
        **arguments("entry", window if entries is None else entries),
        **shared | turn,
        **dict(W=span.width, K=k, N=tile.keys, HEADS=tile.heads, SPLITS=tile.splits, STAGES=tile.stages, **several),
        **dict(AHEAD=ahead, RUNS=runs, PDL=early),
        num_warps=tile.warps,
        num_stages=tile.stages,
        early=early,
    )
    if parts:
        names = ("H", "D", "HALF")
        launch(
            combine,
            (tokens, triton.cdiv(heads, tile.rows)),
            **dict(out=out, lse=lse if with_lse else None, stat=stat, part=part),
            **turn | {name: shared[name] for name in names},
            **dict(HEADS=tile.rows, SPLITS=tile.splits, RUNS=runs, PDL=early),
            num_warps=4,
            early=early,
        )
    return out, lse


@triton.jit
def by_query(
    q, out, lse, stat, part, sink, topk, rows, seq, first, last,
    window_data, window_scales, window_table, window_pages, window_page,
    entry_data, entry_scales, entry_table, entry_pages, entry_page,
    cos, sin, WINDOW_FORMAT: tl.constexpr, ENTRY_FORMAT: tl.constexpr, H, D: tl.constexpr, HALF: tl.constexpr,
    W: tl.constexpr, K: tl.constexpr, N: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr,
    PAIRS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, FP8: tl.constexpr, PACKED: tl.constexpr,
    NEAR: tl.constexpr, FAR: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr, RUNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token, split, head0 = tl.program_id(0).to(tl.int64), tl.program_id(2), tl.program_id(1) * HEADS
    WINDOW: tl.constexpr = (W + N - 1) // N
    TILES: tl.constexpr = WINDOW + (K + N - 1) // N
    start, stop = split * TILES // SPLITS, (split + 1) * TILES // SPLITS
    between = tl.minimum(tl.maximum(start, WINDOW), stop)
    rows += (token * tl.num_programs(1) + tl.program_id(1)) * (TILES * N)
    s, begin, end = tl.load(seq + token), tl.load(first + token), tl.load(last + token)
    near = tl.arange(0, NEAR)
    own_near = (near >= start * N) & (near < between * N)
    index = end - (W - 1) + near
    index = tl.where(own_near & (near < W) & (index >= begin), index, -1)
    if K > 0:
        far = WINDOW * N + tl.arange(0, FAR)
        own_far = (far >= between * N) & (far < stop * N)
        chosen = tl.load(topk + token * K - WINDOW * N + far, own_far & (far < WINDOW * N + K), other=-1)
    words, pairs = 0, 0
    if AHEAD:
        key = (between - WINDOW) * N + tl.arange(0, N)
        key = tl.load(topk + token * K + key, (key < K) & (between < stop), other=-1)
        row = located(entry_table, entry_pages, entry_page, s, key)
        words, pairs = fetch_words(entry_data, entry_scales, row, HALF)
    head = head0 + tl.arange(0, HEADS)
    queries = load_heads(q, token, head, H, D, HALF, RUNS).to(DOT)
    own = tl.where(split == 0, 1.0, 0.0)  # the sink counts once
    m = tl.where(split == 0, tl.load(sink + head, head < H, other=0.0).to(tl.float32) * LOG2E, LOWEST)
    row = located(window_table, window_pages, window_page, s, index)
    lowest = tl.where(own_near, row, 0)
    tl.store(rows + near, row, own_near)
    if K > 0:
        row = located(entry_table, entry_pages, entry_page, s, chosen)
        tl.store(rows + far, row, own_far)
        lowest = tl.minimum(tl.min(lowest, 0), tl.min(tl.where(own_far, row, 0), 0))
    else:
        lowest = tl.min(lowest, 0)
    total = tl.where(tl.arange(0, 8) == 0, own, 0.0)[None, :].broadcast_to(HEADS, 8).reshape(HEADS, 2, 4)
    acc = tl.zeros([HEADS, 2 * HALF], tl.float32)
    tl.debug_barrier()
    m, total, acc = over_tiles(
        queries, rows, start, between, window_data, window_scales, 0, 0, lowest, m, total, acc, D, HALF, N,
        WINDOW_FORMAT, PRECISION, FP8, PACKED, STAGES, RUNS, False,
    )  # fmt: skip
    NEAR_UNIT: tl.constexpr = UNIT if PACKED and WINDOW_FORMAT == "main" else 1.0
    FAR_UNIT: tl.constexpr = NEAR_UNIT if K == 0 else (UNIT if PACKED and ENTRY_FORMAT == "main" else 1.0)
    if K > 0:
        acc *= NEAR_UNIT / FAR_UNIT
        m, total, acc = over_tiles(
            queries, rows, between, stop, entry_data, entry_scales, words, pairs, lowest, m, total, acc, D, HALF, N,
            ENTRY_FORMAT, PRECISION, FP8, PACKED, STAGES, RUNS, AHEAD,
        )  # fmt: skip
    total = tl.sum(tl.sum(total, 2), 1)
    if SPLITS > 1:
        at = (token * SPLITS + split) * H + head
        tl.store(stat + at, m, head < H)
        tl.store(stat + tl.num_programs(0).to(tl.int64) * SPLITS * H + at, total, head < H)
        c = tl.arange(0, 2 * HALF)
        acc = (acc * FAR_UNIT).to(part.dtype.element_ty)
        tl.store(part + at[:, None] * (2 * HALF) + c[None, :], acc, (head < H)[:, None])
    else:
        tl.store(lse + token * H + head, (m + tl.log2(total)) / LOG2E, head < H)
        turn = rotation(cos, sin, token, D, HALF, PAIRS)
        finish(out, acc * (1.0 / total * FAR_UNIT)[:, None], head, token, turn, H, D, HALF, PAIRS, RUNS)
