"""Choose by blocks: the best key of every block first, then the keys of the k best blocks once more.

The k best keys lie in the k best blocks, ordered by their best key and then by place: of each of these, a key comes
before all that lie in others. So keys are read in one stretch, and a block leaves one number; nothing is kept or cut
on the way. k blocks are scored again.
Memory: one number a block, of each row, and two for each key that is scored again.
"""

from __future__ import annotations

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


def second(tile: Tile) -> Tile:
    """The tile of keys that are scored again: of one query, and where registers are bounded, of 128 keys."""
    wide = dict(keys=128, registers=128) if tile.registers else {}
    return tile._replace(rows=1, programs=tile.again, stretch=128, whole=False, block=0, **wide)


def by_blocks(
    q: Tensor, w: Tensor, keys: Rows, visible: Tensor, topk: Tensor, batch: Batch, n: int, tile: Tile
) -> None:
    """Choose the best blocks of every row, put their numbers in topk [T, k], then the best keys in their place."""
    k, size, again = topk.shape[1], tile.block, second(tile)
    for step, used, width in ((0, tile, n), (1, again, k * size)):
        made = constants(*q.shape[1:], keys, q.dtype, used, within=step == 1)
        for row0, seq0, sequences, length in runs(batch.lengths):
            p = block_plan(sequences, length, n, k, tile)[step]
            groups = sequences * triton.cdiv(length, used.rows)
            for group0 in range(0, groups, p.groups):
                rowset = Rowset(row0, seq0, length, group0, min(p.groups, groups - group0), used.rows)
                values, indices = scan(
                    q, w, keys, visible, topk if step else None, rowset, size=size, n=width, parts=p.parts,
                    constants=made, options=options(used),
                )  # fmt: skip
                merge(
                    values, indices, topk, rowset, run=values.shape[2], cut=tile.cut, visible=visible,
                    size=1 if step else size, raw=True, more=step == 0,
                )  # fmt: skip
                del values, indices  # before the next are made


def block_plan(sequences: int, length: int, n: int, k: int, tile: Tile) -> tuple[Plan, Plan]:
    """How a run goes through the choice of blocks, and through that of keys."""
    plans = []
    for used, width, numbers in ((tile, n, 1), (second(tile), k * tile.block, 2)):
        groups = sequences * triton.cdiv(length, used.rows)
        left = triton.cdiv(width, tile.block) if numbers == 1 else width
        row = max(1, left) * 4 * numbers + cut_bytes(left, k, tile.cut)
        step = in_slices(groups, row * used.rows)
        plans.append(Plan(parts_of(groups, width, used), step, step * used.rows * row))
    return tuple(plans)


def scan(
    q: Tensor, w: Tensor, keys: Rows, visible: Tensor, blocks: Tensor | None, rowset: Rowset, *,
    size: int, n: int, parts: int, constants: dict[str, object], options: dict[str, object],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Maxima [slots, 1, n / size] of blocks of a row's n keys; or, with chosen blocks [T, k], scores of each of their
    n = k * size keys, and where they lie. Both are the bits of float32."""
    width = n if blocks is not None else triton.cdiv(n, size)
    out = torch.empty(1 if blocks is None else 2, rowset.slots, 1, width, dtype=torch.int32, device=q.device)
    indices = None if blocks is None else out[1]
    launch(
        scan_kernel,
        (rowset.groups, parts),
        **dict(q=q.contiguous(), w=w.contiguous(), words=keys.data.view(torch.int32) if keys.format else keys.data),
        **dict(scales=keys.scales, table=keys.table.contiguous(), pages=keys.table.shape[1], page=keys.page),
        **dict(visible=visible, blocks=blocks, n_blocks=0 if blocks is None else blocks.shape[1]),
        **dict(values=out[0], indices=indices, width=width, seq0=rowset.seq0),
        **rowset.numbers(),
        **dict(SIZE=size, B=size if blocks is None else 1, **constants),
        early=blocks is not None and starts_early(q.device),
        **options,
    )
    return out[0], indices


@triton.jit
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
            rows = in_pages(near, far, inner, PAGE, N)
            near, far, inner = pages_at(table, seq, start + N, last, pages, PAGE, N)
        else:
            rows = physical(table, seq, index, index < last, pages, page, PAGE)
        score = tile_scores(words, scales, rows, q0, q1, weight, G, D, DIMS, PACKED, HALVES, DOT, ASM, PRECISION)
        score = tl.where(index[:, None] < seen[None, :], score, float("-inf"))  # [N, G]
        if B > 1:
            score = tl.max(score.reshape(N // B, B, G), 1)
        place = start // B + tl.arange(0, N // B)
        tl.store(to + place[:, None], score.to(tl.int32, bitcast=True), exists[None, :] & (place < width)[:, None])
        if indices is not None:
            tl.store(indices + slot.to(tl.int64) * width + at, index, at < width)
