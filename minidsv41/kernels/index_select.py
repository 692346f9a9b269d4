"""Score a query's visible keys and keep the k best, exactly; build the candidate pool, or stay within one.

Four launches, or more where one program cannot choose from all (`index_cut`): scan blocks of keys, choose the best
blocks, score their keys again, choose among them (`index_blocks`); each of the last three starts while the one before
ends. A pool that is built is chosen from the same maxima of blocks; within a pool, its keys alone are scored; so are
all of a few. Rows of one sequence share every tile of keys, four at a time.
Memory: n / block and 2 k * block numbers a row, block being 8 or more. Long calls go through in slices of queries
within 256 MB.
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
from minidsv41.kernels.index_blocks import by_blocks, readings
from minidsv41.kernels.index_tile import FULL, Tile, runs
from minidsv41.kernels.launch import require
from minidsv41.ops.rows import Batch, Rows
from minidsv41.ops.select import Pool, PoolSize


def select_tile(lengths: tuple[int, ...], n: int, dtype: torch.dtype) -> Tile:
    """For sequences of so many queries that see n keys at most; several queries leave 32,768 block maxima each, or
    fewer. Steps fill the card several times if programs keep 2,600 keys: its multiprocessors then end together."""
    block, length = min(32, max(8, triton.next_power_of_2(n) // 32768)), max(lengths, default=0)
    if dtype == torch.float32:
        return Tile(1, 64, block, stages=1)
    if length == 1:
        rounds = max(1, min(16, len(lengths) * n // (FULL * 2600)))
        return Tile(1, 128, 16, rounds * FULL, registers=128, whole=True)
    if length < 20 and length % 4 in (1, 2):  # four at a time would leave too many places empty
        return Tile(2, 64, block, programs=1584, registers=128, whole=True)
    return Tile(4, 64, block, programs=5120, registers=168, whole=True)


def workspace(batch: Batch, n: int, k: int, pool: Pool | PoolSize | None, tile: Tile) -> int:
    """Bytes of scratch that a call takes at most at any time."""
    every = [r.plan(s, length) for _, _, s, length in runs(batch.lengths) for r in readings(n, k, pool, tile)]
    return max((p.bytes for p in every), default=0)


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
    size = pool.size if pool else tile.block
    powers = [2**i for i in range(tile.keys.bit_length())]
    require(size in powers, f"{'pool ' if pool else ''}blocks of {size} entries: allowed are {powers}")


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
    tile = tile or select_tile(batch.lengths, n, q.dtype)
    check(q, keys, pool, tile, k)
    return by_blocks(q, w, keys, visible.contiguous(), k, pool, batch, n, tile)


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
    own = tile or select_tile(lengths, n, dtype)
    return partial(index_select, q, w, keys, visible, k, pool, batch=batch, n=n, tile=tile), batch, own


IN_POOL = Pool(torch.empty(1, 2048, device="meta"), 8)
SPECIMENS = {
    "1 x 4K": specimen((1,), 1 << 12)[0],
    "1 x 1M": specimen((1,), 1 << 20)[0],
    "32 x 128K, pool built": specimen((1,) * 32, 1 << 17, PoolSize(2048, 8))[0],
    "32 x 128K, in a pool": specimen((1,) * 32, 1 << 17, IN_POOL)[0],
    "32 x 128K, bfloat16 keys": specimen((1,) * 32, 1 << 17, packed=False)[0],
    "prefill 4,096 x 32K": specimen((4096,), 1 << 15)[0],
    "verify 32 x 6 x 4K": specimen((6,) * 32, 1 << 12)[0],
    "verify 32 x 6 x 128K": specimen((6,) * 32, 1 << 17)[0],
    "toy, float32": specimen((2, 2), 512, PoolSize(12, 4), heads=4, width=32, k=32, dtype=torch.float32)[0],
}
