"""The indexer's selection: decode steps, verification of six rows, and a chunk of a prompt, all on FP4 keys of 68 B.

Every query sees all keys of its sequence, in pages out of order. Floor: the keys once, or 2 x 32 x 128 operations for
each query and key, whichever is later. The plain version waits for the device, so it is timed without a graph; the
compiled peer writes all scores and leaves the choice to torch.topk, whose order among equals is not defined; "topk of
given scores" is that choice alone, half of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from minidsv41.formats import INDEX
from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.kernels.index_select import index_select, select_tile, workspace
from minidsv41.ops import Batch, Pool, PoolSize, Rows, select

PAGE = 64
SAMPLE = 4  # queries compared with float64
CLOSE = 1e-4  # of a row's largest score: so close to the cut, a key may be chosen or not


@dataclass(frozen=True)
class Shape:
    """S sequences of `length` queries and n keys each; building a pool of `blocks`, or within one."""

    S: int
    n: int
    length: int = 1
    heads: int = 32
    width: int = 128
    k: int = 512
    blocks: int = 0
    within: bool = False
    packed: bool = True
    size: int = 8


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    w: Tensor
    keys: Rows
    visible: Tensor
    k: int
    pool: Pool | PoolSize | None
    batch: Batch
    n: int

    def run(self, choose: Callable) -> tuple[Tensor, Pool | None]:
        given = self.q, self.w, self.keys, self.visible, self.k, self.pool
        return choose(*given, batch=self.batch, n=self.n)


def stored(x: Shape, g: torch.Generator) -> Rows:
    """Random records: every code, scales of a few binades."""
    device, pages = g.device, -(-x.n // PAGE) * x.S
    table = torch.randperm(pages, generator=g, device=device).view(x.S, -1)
    if not x.packed:
        data = torch.empty(pages * PAGE, x.width, device=device, dtype=torch.bfloat16).normal_(generator=g)
        return Rows(data, table, PAGE)
    codes = torch.empty(pages * PAGE, x.width // 2, device=device, dtype=torch.uint8).random_(256, generator=g)
    scales = torch.empty(pages * PAGE, x.width // 32, device=device, dtype=torch.uint8).random_(125, 130, generator=g)
    return Rows(codes, table, PAGE, scales, INDEX, torch.bfloat16)


def inputs(x: Shape, device: torch.device, seed: int) -> Inputs:
    g, T = torch.Generator(device).manual_seed(seed), x.S * x.length
    q = torch.empty(T, x.heads, x.width, device=device).normal_(generator=g)
    w = torch.empty(T, x.heads, device=device).normal_(generator=g)
    q, pool = INDEX.fake_quant(q).bfloat16(), None
    if x.within:
        order = torch.rand(T, -(-x.n // x.size), generator=g, device=device).argsort(1)
        pool = Pool(order[:, : x.blocks].sort(1).values, x.size)
    elif x.blocks:
        pool = PoolSize(x.blocks, x.size)
    visible = torch.full((T,), x.n, dtype=torch.int64, device=device)
    batch = Batch.equal(torch.zeros(x.S, x.length, dtype=torch.int64, device=device))
    return Inputs(q, w.bfloat16(), stored(x, g), visible, x.k, pool, batch, x.n)


def exact_scores(x: Inputs, row: int, at: Tensor) -> Tensor:
    """[len(at)] float64 scores of entries of one row."""
    keys = replace(x.keys, dtype=torch.float64) if x.keys.format else x.keys
    q, w = x.q[row, None].double(), x.w[row, None].double()
    seq = torch.full_like(at, row // x.batch.lengths[0])
    parts = zip(seq.split(1 << 16), at.split(1 << 16), strict=True)
    return torch.cat([select.weigh(q, w, keys.gather(s, part).double())[0] for s, part in parts])


def wrong(scores: Tensor, chosen: Tensor, k: int) -> float:
    """Share of k places [of scores] that were given to the wrong one, closeness to the cut allowed for."""
    near = CLOSE * scores[scores.isfinite()].abs().max()
    cut = scores.topk(min(k, len(scores))).values[-1]
    missed = torch.ones_like(scores, dtype=torch.bool).index_fill_(0, chosen, False) & (scores > cut + near)
    absent = max(0, min(k, len(scores)) - len(chosen.unique()))
    return int((scores[chosen] < cut - near).sum() + missed.sum() + absent) / k


def error(x: Inputs) -> float:
    topk, pool = x.run(index_select)
    worst = 0.0
    for row in torch.linspace(0, len(x.q) - 1, min(SAMPLE, len(x.q))).long().tolist():
        at = torch.arange(x.n, device=x.q.device)
        if isinstance(x.pool, Pool):
            at = Pool(x.pool.blocks[row, None], x.pool.size).entries()[0]
            at = at[(at >= 0) & (at < x.n)]
        scores = exact_scores(x, row, at)
        own = topk[row][topk[row] >= 0]
        place = torch.searchsorted(at, own)
        worst = max(worst, wrong(scores, place, x.k) if (at[place.clamp(max=len(at) - 1)] == own).all() else 1.0)
        if isinstance(x.pool, PoolSize):
            padded = torch.nn.functional.pad(scores, (0, -x.n % pool.size), value=-torch.inf)
            best = padded.view(-1, pool.size).amax(1)
            best[-1] = best.max() + 1  # the newest block is always in
            blocks = pool.blocks[row][pool.blocks[row] >= 0]
            worst = max(worst, wrong(best, blocks, x.pool.blocks))
    return worst


def in_two_steps(q: Tensor, w: Tensor, keys: Rows, at: Tensor, k: int) -> Tensor:
    """All scores of equal sequences, then the choice: q [S, L, H, D], at [n]."""
    seq = torch.arange(len(q), device=q.device)[:, None]
    scores = select.weigh(q, w, keys.gather(seq, at[None, :]))
    return scores.topk(min(k, len(at)), dim=-1).indices.sort(-1).values


def contest(x: Shape, device: torch.device, seed: int) -> Contest:
    given = inputs(x, device, seed)
    runs: dict[str, Callable[[], object]] = dict(kernel=partial(given.run, index_select))
    runs["plain"] = partial(given.run, select.index_select)
    if not x.blocks:
        g = torch.Generator(device).manual_seed(seed)
        scores = torch.empty(len(given.q), x.n, device=device).normal_(generator=g)
        runs["topk of given scores"] = partial(scores.topk, min(x.k, x.n), sorted=False)
    if not x.blocks and x.length == 1:
        split = (t.unflatten(0, (x.S, x.length)) for t in (given.q, given.w))
        at = torch.arange(x.n, device=device)
        runs["compile"] = partial(torch.compile(in_two_steps, dynamic=False), *split, given.keys, at, x.k)
    tile = select_tile(given.batch.lengths, x.n, given.q.dtype)
    scratch = workspace(given.batch, x.n, x.k, given.pool, tile)
    return Contest(runs, partial(error, given), 1e-6, scratch, frozenset({"plain"}))


def case(name: str, target_us: float | None = None, **shape) -> Case:
    x = Shape(**shape)
    T, scored = x.S * x.length, min(x.n, x.blocks * x.size) if x.within else x.n
    row = INDEX.row_bytes(x.width) if x.packed else 2 * x.width
    read = (T if x.within else x.S) * scored * row
    moved = read + T * (2 * x.heads * (x.width + 1) + 8 * x.k + 8 * x.blocks)
    return Case("index_select", name, moved, 2 * T * scored * x.heads * x.width, target_us, partial(contest, x))


CASES = [
    case("1 x 128K", S=1, n=1 << 17),
    case("1 x 1M", 45.0, S=1, n=1 << 20),
    case("32 x 128K", 150.0, S=32, n=1 << 17),
    case("32 x 1M", 1100.0, S=32, n=1 << 20),
    case("32 x 1M, pool built", S=32, n=1 << 20, blocks=2048),
    case("1 x 1M, in a pool", S=1, n=1 << 20, blocks=2048, within=True),
    case("32 x 1M, in a pool", S=32, n=1 << 20, blocks=2048, within=True),
    case("verify 1 x 6 x 1M", S=1, n=1 << 20, length=6),
    case("verify 32 x 6 x 128K", S=32, n=1 << 17, length=6),
    case("prefill 4,096 x 32K", 3500.0, S=1, n=1 << 15, length=4096),
    case("prefill 4,096 x 32K, pool built", S=1, n=1 << 15, length=4096, blocks=2048),
    case("32 x 128K, bfloat16 keys", S=32, n=1 << 17, packed=False),
]
