"""Choose by blocks: the best key of every block first, then the keys of the k best blocks once more.

The k best keys lie in the k best blocks, ordered by their best key and then by place: of each of these, a key comes
before all that lie in others. So keys are read in one stretch, and a block leaves one number; nothing is kept or cut
on the way. k blocks are scored again; or all of a pool, if one is given, which is then the only reading.
Memory: one number a block, of each row, and two for each key that is scored again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.index_cut import Rowset, cut_bytes, merge, row_of
from minidsv41.kernels.index_keys import in_pages, pages_at, physical
from minidsv41.kernels.index_score import entry, load_problem, operands, tile_scores
from minidsv41.kernels.index_tile import Plan, Tile, constants, in_slices, options, parts_of, runs
from minidsv41.kernels.launch import launch, starts_early
from minidsv41.ops.rows import Batch, Rows
from minidsv41.ops.select import Pool, PoolSize


class Reading(NamedTuple):
    """Of `entries` keys of every row by a tile: each `size` of them leave so many numbers; so many are chosen."""

    tile: Tile
    entries: int
    size: int
    numbers: int
    chosen: tuple[int, ...]

    @property
    def width(self) -> int:
        """Places of a row, whose last few may stay empty, so that many numbers of entries share a kernel."""
        return max(1, triton.cdiv(self.entries, 16 * self.size)) * 16

    def plan(self, sequences: int, length: int) -> Plan:
        """How a run goes through."""
        groups = sequences * triton.cdiv(length, self.tile.rows)
        row = self.width * 4 * self.numbers + sum(cut_bytes(self.width, k, self.tile.cut) for k in self.chosen)
        step = in_slices(groups, row * self.tile.rows)
        return Plan(parts_of(groups, self.entries, self.tile), step, step * self.tile.rows * row)

    def slices(self, batch: Batch) -> Iterator[tuple[Rowset, int]]:
        """Rows that go through together, and how many programs share the keys of a group of them."""
        for row0, seq0, sequences, length in runs(batch.lengths):
            p, groups = self.plan(sequences, length), sequences * triton.cdiv(length, self.tile.rows)
            for group0 in range(0, groups, p.groups):
                count = min(p.groups, groups - group0)
                yield Rowset(row0, seq0, length, group0, count, self.tile.rows), p.parts


def readings(n: int, k: int, pool: Pool | PoolSize | None, tile: Tile) -> list[Reading]:
    """That of blocks, unless a pool is given, and that of the keys of chosen ones: query by query, and where registers
    are bounded, 128 keys at once. Where k blocks have all keys, one reading leaves them all."""
    wide = dict(keys=128, registers=128) if tile.registers else {}
    again = tile._replace(rows=1, programs=tile.again, whole=False, **wide)
    if isinstance(pool, Pool):
        return [Reading(again, pool.blocks.shape[1] * pool.size, 1, 2, (k,))]
    if not pool and n <= k * tile.block:
        return [Reading(tile, n, 1, 1, (k,))]
    size, chosen = (pool.size, (k, pool.blocks)) if pool else (tile.block, (k,))
    return [Reading(tile, n, size, 1, chosen), Reading(again, k * size, 1, 2, (k,))]


def by_blocks(
    q: Tensor, w: Tensor, keys: Rows, visible: Tensor, k: int, pool: Pool | PoolSize | None, batch: Batch, n: int,
    tile: Tile,
) -> tuple[Tensor, Pool | None]:  # fmt: skip
    """Chosen keys topk [T, k], and the pool in force. Until its keys are chosen, topk has the numbers of blocks."""
    *first, last = readings(n, k, pool, tile)
    q, w, keys = q.contiguous(), w.contiguous(), replace(keys, table=keys.table.contiguous())  # once, and first
    topk = torch.empty(len(q), k, dtype=torch.int64, device=q.device)
    built, blocks, size = pool, topk, tile.block
    if isinstance(pool, Pool):
        blocks, size = pool.blocks.contiguous(), pool.size
    elif pool:
        built, size = Pool(topk.new_empty(len(q), pool.blocks), pool.size), pool.size
    elif not first:
        blocks, size = None, 1
    for reading in first:
        for rowset, parts in reading.slices(batch):
            values, _ = scan(q, w, keys, visible, None, rowset, reading, size, parts, early=False)
            given = dict(cut=tile.cut, visible=visible, size=size, more=True)
            if built:
                merge(values, None, built.blocks, rowset, newest=True, **given)
            merge(values, None, topk, rowset, **given)
            del values  # before the next are made
    for rowset, parts in last.slices(batch):
        values, indices = scan(q, w, keys, visible, blocks, rowset, last, size, parts, early=bool(first))
        merge(values, indices, topk, rowset, cut=tile.cut, visible=visible)
        del values, indices
    return topk, built


def scan(
    q: Tensor, w: Tensor, keys: Rows, visible: Tensor, blocks: Tensor | None, rowset: Rowset, reading: Reading,
    size: int, parts: int, *, early: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Maxima [slots, width] of blocks of a row's keys; or, with chosen blocks, scores of each of their keys, and where
    they lie. Both are the bits of float32.

    early: only after launches of this file, since it reads queries, and the cut what is visible, before it waits.
    """
    width = reading.width
    out = torch.empty(reading.numbers, rowset.slots, width, dtype=torch.int32, device=q.device)
    indices = None if blocks is None else out[1]
    launch(
        scan_kernel,
        (rowset.groups, parts),
        **dict(q=q, w=w, words=keys.data.view(torch.int32) if keys.format else keys.data),
        **dict(scales=keys.scales, table=keys.table, pages=keys.table.shape[1], page=keys.page),
        **dict(visible=visible, blocks=blocks, n_blocks=0 if blocks is None else blocks.shape[1]),
        **dict(values=out[0], indices=indices, width=width, seq0=rowset.seq0, SIZE=size, B=reading.size),
        **rowset.numbers(),
        **constants(*q.shape[1:], keys, q.dtype, reading.tile, within=blocks is not None),
        early=early and starts_early(q.device),
        **options(reading.tile),
    )
    return out[0], indices


@triton.jit(do_not_specialize=["group0"])  # slices begin anywhere
def scan_kernel(
    q, w, words, scales, table, visible, blocks, values, indices,
    pages, page, n_blocks, width, row0, seq0, length, group0, per,
    G: tl.constexpr, B: tl.constexpr, SIZE: tl.constexpr, N: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, DIMS: tl.constexpr, PAGE: tl.constexpr,
    PACKED: tl.constexpr, HALVES: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr, ASM: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()  # the cut, which waits for the end of all
    part, parts, group = tl.program_id(1), tl.num_programs(1), tl.program_id(0)
    slot = group * G + tl.arange(0, G)
    row, exists = row_of(slot, group0, per, length, row0, G)
    seq = seq0 + (group0 + group) // per
    seen = tl.load(visible + row, exists, other=0).to(tl.int32)
    query, weight = load_problem(q, w, row, exists, H, D, HEADS, DIMS)
    if PDL and blocks is not None:
        tl.extra.cuda.gdc_wait()  # for the choice of blocks
    limit, last = tl.max(seen, 0), tl.max(seen, 0)
    if blocks is not None:  # one query: positions count the entries of its blocks
        limit = tl.minimum((limit + SIZE - 1) // SIZE, n_blocks) * SIZE
        blocks += (row0 + group0 + group).to(tl.int64) * n_blocks
    stretch = tl.cdiv(tl.cdiv(limit, parts), N) * N
    begin = part * stretch
    end = tl.minimum(begin + stretch, limit)
    to = values + slot.to(tl.int64)[None, :] * width
    near, far, inner = 0, 0, 0
    if WHOLE:
        near, far, inner = pages_at(table, seq, begin, last, pages, PAGE, N)
    q0, q1, weight = operands(query, weight, PACKED, HALVES, DOT, ASM)  # when all that must be waited for is asked for
    for start in range(begin, end, N):
        at = start + tl.arange(0, N)
        index = entry(at, limit, blocks, SIZE)
        if WHOLE:
            first, rows = in_pages(near, far, inner, PAGE, N)
            near, far, inner = pages_at(table, seq, start + N, last, pages, PAGE, N)
        else:
            first, rows = 0, physical(table, seq, index, index < last, pages, page, PAGE)
        score = tile_scores(words, scales, first, rows, q0, q1, weight, G, D, DIMS, PACKED, HALVES, DOT, ASM, PRECISION)
        if G > 1 or B == 1 or start + N > limit:  # other tiles are seen in full
            score = tl.where(index[:, None] < seen[None, :], score, float("-inf"))  # [N, G]
        if B > 1:
            score = tl.max(score.reshape(N // B, B, G), 1)
        place = start // B + tl.arange(0, N // B)
        tl.store(to + place[:, None], score.to(tl.int32, bitcast=True), exists[None, :] & (place < width)[:, None])
        if indices is not None:
            tl.store(indices + slot.to(tl.int64) * width + at, index, at < width)
