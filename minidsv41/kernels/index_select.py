"""Score a query's visible keys and keep the k best, exactly; build the candidate pool, or stay within one.

Two launches: programs score stretches of keys and leave k candidates each (`index_score`), then candidates are merged
(`index_cut`), in further launches where there are many; each starts while the one before ends. Rows of one sequence
share every tile of keys, four at a time.
Memory: a buffer of candidates for each row and stretch, 8 MB for up to 528 of them however long the sequence is, and
block maxima (n / 8 a row) where the pool is built. Long calls go through in slices of queries within 256 MB.
Or, where the tile names a block, by blocks and without candidates (`index_blocks`): n / block and 2 k * block numbers
a row.
Floor, H200, keys of 68 B: 17 us at 1 x 1M, 67 at 32 x 128K, 533 at 32 x 1M, of reading; prefill of 4,096 x 32K 1,390 us
of bfloat16 products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from minidsv41.formats import INDEX
from minidsv41.kernels.index_blocks import scan
from minidsv41.kernels.index_cut import Cut, Rowset, cut_bytes, merge
from minidsv41.kernels.index_score import score_kernel
from minidsv41.kernels.launch import INTERPRETED, dot_type, launch, require, starts_early
from minidsv41.ops.rows import Batch, Rows
from minidsv41.ops.select import Pool, PoolSize

WORKSPACE = 256 << 20  # bytes of scratch, at most


class Tile(NamedTuple):
    """What one program takes, and how many there are.

    rows: queries of a sequence; keys: scored at once; capacity: candidates a query, of which the best k stay when
    less than `segment` are free, moved `step` at once; programs: wanted in all; stretch: keys of one program, at least.
    """

    rows: int
    keys: int
    capacity: int
    segment: int
    step: int = 1024
    programs: int = 528
    stretch: int = 512
    warps: int = 4
    stages: int = 5  # two levels of loads: the page table, then the keys
    registers: int | None = None
    cut: Cut = Cut(8192)  # of candidates; block maxima are cut as Cut() says
    whole: bool = False  # a tile's page or two pages are looked up at once, not those of each key
    block: int = 0  # entries of a block whose best decides what is scored again (`index_blocks`), or 0
    again: int = 528  # programs that do


def select_tile(length: int, k: int, dtype: torch.dtype, *, pool: bool) -> Tile:
    """For `length` queries a sequence (each with a pool of its own, if `pool`)."""
    capacity = max(2048, triton.next_power_of_2(4 * k))
    segment, cut = capacity // 2, Cut(max(8192, triton.next_power_of_2(2 * k)))
    if dtype == torch.float32:
        return Tile(1, 64, capacity, segment, stages=1, cut=cut)
    if length == 1 or pool:
        return Tile(1, 128, capacity, segment, registers=128, cut=cut)
    if length < 20 and length % 4 in (1, 2):  # four at a time would leave too many places empty
        return Tile(2, 64, capacity, segment, programs=396, registers=168, cut=cut)
    return Tile(4, 64, capacity, segment, programs=264, cut=cut)


ONE, SEVERAL = Tile(1, 128, 2048, 1024, registers=128), Tile(4, 64, 2048, 1024, programs=264)
FEW = Tile(1, 64, 2048, 1024, programs=792, registers=80, whole=True, block=16)
MANY = Tile(4, 64, 2048, 1024, programs=5120, registers=168, whole=True, block=4)
TILES = {  # what a sweep tries beside what is chosen
    "one query": [
        FEW,
        FEW._replace(block=32),
        FEW._replace(block=8),
        FEW._replace(block=32, programs=924, registers=72, whole=False),
        FEW._replace(block=32, cut=Cut(8192, warps=8)),
        FEW._replace(block=32, stages=4),
        FEW._replace(programs=1584),
        FEW._replace(keys=128, programs=528, registers=128, block=32),
        FEW._replace(keys=128, programs=660, registers=96),
        ONE._replace(whole=True),
    ],
    "several queries": [
        MANY,
        MANY._replace(block=8),
        MANY._replace(programs=1024, registers=None),
        MANY._replace(cut=Cut(8192, warps=8)),
        MANY._replace(rows=2, registers=128),
        SEVERAL._replace(whole=True),
    ],
}


def runs(lengths: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """(first row, first sequence, sequences, length) of neighbours of equal length."""
    row = first = 0
    for s, length in enumerate(lengths):
        if s + 1 == len(lengths) or lengths[s + 1] != length:
            count = s + 1 - first
            if length:
                yield row, first, count, length
            row, first = row + count * length, s + 1


class Plan(NamedTuple):
    """How a run goes through: parts of a row's keys, groups of rows in a slice, and bytes of scratch of a slice."""

    parts: int
    groups: int
    bytes: int


def parts_of(groups: int, n: int, tile: Tile) -> int:
    """How many programs share the n keys of a group."""
    stretch = triton.cdiv(n, max(1, tile.programs // groups))
    return max(1, triton.cdiv(n, max(tile.stretch, triton.cdiv(stretch, tile.keys) * tile.keys)))


def plan(sequences: int, length: int, n: int, k: int, pool: PoolSize | None, tile: Tile) -> Plan:
    """For `sequences` of `length` queries each, that see n keys at most and build a pool or not."""
    groups = sequences * triton.cdiv(length, tile.rows)
    parts = parts_of(groups, n, tile)
    row = parts * tile.capacity * 8 + cut_bytes(parts * k, k, tile.cut)
    if pool:
        blocks = triton.cdiv(n, pool.size)
        row += blocks * 4 + cut_bytes(blocks, pool.blocks, Cut())
    step = max(1, min(groups, WORKSPACE // (row * tile.rows)))
    return Plan(parts, step, step * tile.rows * row)


def workspace(batch: Batch, n: int, k: int, pool: Pool | PoolSize | None, tile: Tile) -> int:
    """Bytes of scratch that a call takes at most at any time."""
    built, n = (None, pool.blocks.shape[1] * pool.size) if isinstance(pool, Pool) else (pool, n)
    if tile.block and not pool:
        plans = [p for _, _, s, length in runs(batch.lengths) for p in block_plan(s, length, n, k, tile)]
    else:
        plans = [plan(s, length, n, k, built, tile) for _, _, s, length in runs(batch.lengths)]
    return max((p.bytes for p in plans), default=0)


def check(q: Tensor, keys: Rows, pool: Pool | PoolSize | None, tile: Tile, k: int) -> None:
    width = q.shape[-1]
    require(k >= 1, f"k = {k}: allowed are whole numbers from 1")
    require(keys.data.is_contiguous(), "keys: a contiguous tensor of rows is needed")
    if keys.format is None:
        require(keys.data.dtype == q.dtype, f"keys of dtype {keys.data.dtype}: as q, {q.dtype}, or packed")
    else:
        require(keys.format is INDEX, f"keys packed as {keys.format}: allowed is {INDEX}")
        require(width % 32 == 0, f"width {width}: allowed are multiples of 32, with packed keys")
    require(width <= 256, f"width {width}: allowed are 1 to 256")
    require(tile.rows == 1 or not isinstance(pool, Pool), f"tile of {tile.rows} rows: within pools, rows go one by one")
    fits = tile.capacity - tile.segment >= k and tile.segment > 0 and tile.segment % tile.keys == 0
    require(fits, f"segment {tile.segment}: allowed are multiples of {tile.keys}, up to capacity - k")
    sizes = [0] + [2**i for i in range(1, tile.keys.bit_length())]
    require(tile.block in sizes, f"block {tile.block}: allowed are {sizes}")
    if pool:
        powers = [2**i for i in range(tile.keys.bit_length())]
        require(pool.size in powers, f"pool blocks of {pool.size} entries: allowed are {powers}")


@torch.no_grad()
def index_select(
    q: Tensor,
    w: Tensor,
    keys: Rows,
    visible: Tensor,
    k: int,
    pool: Pool | PoolSize | None,
    *,
    batch: Batch,
    n: int,
    tile: Tile | None = None,
) -> tuple[Tensor, Pool | None]:
    """Choose k entries a query: topk [T, k] ascending, -1 padded; and the pool in force. As `ops.index_select`.

    Scores are summed in float32. Keys plain (of q's dtype) or packed as `formats.INDEX`. Raises Unsupported.
    """
    longest = max(batch.lengths, default=0)
    tile = tile or select_tile(longest, k, q.dtype, pool=isinstance(pool, Pool))
    check(q, keys, pool, tile, k)
    visible = visible.contiguous()
    topk = torch.empty(len(q), k, dtype=torch.int64, device=q.device)
    built, limit, blocks = pool, n, None
    if isinstance(pool, Pool):
        limit = pool.blocks.shape[1] * pool.size
    elif pool:
        blocks = topk.new_empty(len(q), pool.blocks)
        built = Pool(blocks, pool.size)
    size = pool if isinstance(pool, PoolSize) else None
    if tile.block and not pool:
        by_blocks(q, w, keys, visible, topk, batch, n, tile)
        return topk, None
    for row0, seq0, sequences, length in runs(batch.lengths):
        p = plan(sequences, length, limit, k, size, tile)
        groups = sequences * triton.cdiv(length, tile.rows)
        for group0 in range(0, groups, p.groups):
            rowset = Rowset(row0, seq0, length, group0, min(p.groups, groups - group0), tile.rows)
            candidates, maxima = score(q, w, keys, visible, k, pool, rowset, p.parts, n, tile)
            merge(*candidates, topk, rowset, run=k, cut=tile.cut)
            if size:
                merge(
                    maxima,
                    None,
                    blocks,
                    rowset,
                    run=maxima.shape[2],
                    cut=Cut(),
                    visible=visible,
                    size=size.size,
                )
    return topk, built


def second(tile: Tile) -> Tile:
    """The tile of keys that are scored again."""
    return ONE._replace(stages=tile.stages, warps=4, programs=tile.again, stretch=128, cut=tile.cut)


def by_blocks(
    q: Tensor, w: Tensor, keys: Rows, visible: Tensor, topk: Tensor, batch: Batch, n: int, tile: Tile
) -> None:  # fmt: skip
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
        step = max(1, min(groups, WORKSPACE // (row * used.rows)))
        plans.append(Plan(parts_of(groups, width, used), step, step * used.rows * row))
    return tuple(plans)


def score(
    q: Tensor, w: Tensor, keys: Rows, visible: Tensor, k: int, pool: Pool | PoolSize | None, rowset: Rowset, parts: int,
    n: int, tile: Tile,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Candidates [2, slots, parts, capacity] (ordered scores, indices; k count) and block maxima [slots, 1, blocks]."""
    heads, width = q.shape[1:]
    candidates = torch.empty(2, rowset.slots, parts, tile.capacity, dtype=torch.int32, device=q.device)
    maxima, n_blocks = None, 0
    if isinstance(pool, PoolSize):
        n_blocks = triton.cdiv(n, pool.size)
        maxima = candidates.new_empty(rowset.slots, 1, n_blocks)
    elif pool:
        n_blocks = pool.blocks.shape[1]
    packed = keys.format is not None
    launch(
        score_kernel,
        (rowset.groups, parts),
        **dict(q=q.contiguous(), w=w.contiguous(), words=keys.data.view(torch.int32) if packed else keys.data),
        **dict(scales=keys.scales, table=keys.table.contiguous(), pages=keys.table.shape[1], page=keys.page),
        **dict(blocks=pool.blocks.contiguous() if isinstance(pool, Pool) else None, n_blocks=n_blocks),
        **dict(visible=visible, values=candidates[0], indices=candidates[1], maxima=maxima, seq0=rowset.seq0),
        **rowset.numbers(),
        **dict(CAP=tile.capacity, SEGMENT=tile.segment, STEP=min(tile.step, tile.segment)),
        **dict(K=k, SIZE=pool.size if pool else 1),
        **constants(heads, width, keys, q.dtype, tile, within=isinstance(pool, Pool)),
        **options(tile),
    )
    return candidates, maxima


def options(tile: Tile) -> dict[str, object]:
    return dict(num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers)


def constants(heads: int, width: int, keys: Rows, dtype: torch.dtype, tile: Tile, *, within: bool) -> dict[str, object]:
    """What a scoring kernel is compiled for, beside its buffers and blocks; within: blocks given to it."""
    packed, several = keys.format is not None, keys.table.shape[1] > 1
    page = keys.page if several else 0
    whole = tile.whole and not within and page > 0 and (page % tile.keys == 0 or 2 * page == tile.keys)
    padded = max(128 if packed else 16, triton.next_power_of_2(width))
    return dict(
        **dict(N=tile.keys, WHOLE=whole, H=heads, HEADS=max(triton.next_power_of_2(heads), 16 // tile.rows)),
        **dict(D=width, DIMS=padded),
        **dict(PAGE=page, PACKED=packed, DOT=dot_type(dtype)),
        HALVES=tile.registers is not None,  # all planes of a key at once take more of them
        **dict(ASM=packed and dtype == torch.bfloat16 and not INTERPRETED),
        PRECISION="ieee" if dtype == torch.float32 else "tf32",
        PDL=starts_early(keys.data.device),
    )


def specimen(
    lengths: tuple[int, ...], n: int, pool: Pool | PoolSize | None = None, *, packed: bool = True, dtype=torch.bfloat16,
    heads: int = 32, width: int = 128, k: int = 512, tile: Tile | None = None,
) -> tuple[Callable[[], object], Batch, Tile]:  # fmt: skip
    """A call on tensors without memory, for a look at its launches; its batch and its tile."""
    rows, pages = sum(lengths), triton.cdiv(n, 64)

    def made(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    stored = (len(lengths) * pages + 1) * 64
    table = made(len(lengths), pages, dtype=torch.int64)
    keys = Rows(made(stored, width), table, 64)
    if packed:
        codes, scales = made(stored, width // 2, dtype=torch.uint8), made(stored, width // 32, dtype=torch.uint8)
        keys = Rows(codes, table, 64, scales, INDEX, dtype)
    if isinstance(pool, Pool):
        pool = Pool(made(rows, *pool.blocks.shape[1:], dtype=torch.int64), pool.size)
    batch = Batch(made(rows, dtype=torch.int64), (0,) * len(lengths), lengths)
    q, w, visible = made(rows, heads, width), made(rows, heads), made(rows, dtype=torch.int64)
    own = tile or select_tile(max(lengths), k, dtype, pool=isinstance(pool, Pool))
    return partial(index_select, q, w, keys, visible, k, pool, batch=batch, n=n, tile=tile), batch, own


# By triton 3.6, outside of the loop over keys: up to 16 bytes of the 128 registers of one query and the 255 of four
# (64 on sm_80), 128 of the 168 of two.
SPILLS = ("score_kernel",)
IN_POOL = Pool(torch.empty(1, 2048, device="meta"), 8)
SPECIMENS = {
    "1 x 1M": specimen((1,), 1 << 20)[0],
    "32 x 128K, pool built": specimen((1,) * 32, 1 << 17, PoolSize(2048, 8))[0],
    "32 x 128K, in a pool": specimen((1,) * 32, 1 << 17, IN_POOL)[0],
    "32 x 128K, bfloat16 keys": specimen((1,) * 32, 1 << 17, packed=False)[0],
    "prefill 4,096 x 32K": specimen((4096,), 1 << 15)[0],
    "1 x 1M, by blocks": specimen((1,), 1 << 20, tile=FEW)[0],
    "prefill 4,096 x 32K, by blocks": specimen((4096,), 1 << 15, tile=MANY)[0],
    "verify 32 x 6 x 128K": specimen((6,) * 32, 1 << 17)[0],
    "toy, float32": specimen((2, 2), 512, PoolSize(12, 4), heads=4, width=32, k=32, dtype=torch.float32)[0],
}
