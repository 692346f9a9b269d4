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

from collections.abc import Callable
from functools import partial

import torch
import triton
from torch import Tensor

from minidsv41.formats import INDEX
from minidsv41.kernels.index_blocks import block_plan, by_blocks
from minidsv41.kernels.index_cut import Cut, Rowset, cut_bytes, merge
from minidsv41.kernels.index_score import score_kernel
from minidsv41.kernels.index_tile import Plan, Tile, constants, in_slices, options, parts_of, runs
from minidsv41.kernels.launch import launch, require
from minidsv41.ops.rows import Batch, Rows
from minidsv41.ops.select import Pool, PoolSize


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


def plan(sequences: int, length: int, n: int, k: int, pool: PoolSize | None, tile: Tile) -> Plan:
    """For `sequences` of `length` queries each, that see n keys at most and build a pool or not."""
    groups = sequences * triton.cdiv(length, tile.rows)
    parts = parts_of(groups, n, tile)
    row = parts * tile.capacity * 8 + cut_bytes(parts * k, k, tile.cut)
    if pool:
        blocks = triton.cdiv(n, pool.size)
        row += blocks * 4 + cut_bytes(blocks, pool.blocks, Cut())
    step = in_slices(groups, row * tile.rows)
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
