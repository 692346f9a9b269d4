"""Drown the needle: one entry, a pool of blocks chosen by one layer, and a later layer that wants the entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41.ops.select import Pool, PoolSize, best_blocks, lowest_topk

ENTRIES, NEEDLE, POOL = 512, 203, PoolSize(12, 8)
LURE = 4.0  # a distractor's score


@dataclass(frozen=True)
class Drowned:
    """Block maxima [blocks] of the layer that builds the pool; the pool; whether each layer reads the needle."""

    maxima: Tensor
    pool: tuple[int, ...]
    rank: int
    read: bool
    wanted: bool
    later: bool

    @property
    def block(self) -> int:
        return NEEDLE // POOL.size


def drown(score: float, distractors: int, k: int = 32) -> Drowned:
    """`score`: what the pool's builder gives the needle; `distractors`: other blocks that hold one entry of LURE.

    All else is noise. To the later layer the needle is the best entry of all.
    """
    noise = torch.randn(2, ENTRIES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = noise.clone()
    others = [b for b in range(ENTRIES // POOL.size) if b != NEEDLE // POOL.size]
    spread = torch.randperm(len(others), generator=torch.Generator().manual_seed(1))[:distractors].tolist()
    first[[others[i] * POOL.size + 3 for i in spread]] = LURE
    first[NEEDLE], second[NEEDLE] = score, second.max() + 1
    visible = torch.tensor([ENTRIES])
    pool = Pool(best_blocks(first[None], visible, POOL), POOL.size)
    maxima = first.unflatten(0, (-1, POOL.size)).amax(-1)
    own = maxima[NEEDLE // POOL.size]
    inside = pool.mask(ENTRIES)[0]
    return Drowned(
        maxima,
        tuple(b for b in pool.blocks[0].tolist() if b >= 0),
        1 + int((maxima > own).sum()),
        NEEDLE in lowest_topk(first[None], k)[0].tolist(),
        NEEDLE in lowest_topk(second[None], k)[0].tolist(),
        NEEDLE in lowest_topk(second.masked_fill(~inside, -torch.inf)[None], k)[0].tolist(),
    )


def described(score: float, distractors: int) -> str:
    """Two lines of HTML."""
    d = drown(score, distractors)
    inside = "in" if d.block in d.pool else "out"
    reads = {True: "reads it", False: "does not read it"}
    later = "reads it" if d.later else "cannot read it"
    return (
        f"score {score:.1f} against {distractors} blocks of {LURE:.1f}: the needle's block ranks {d.rank} of "
        f"{len(d.maxima)}, {inside} of a pool of {POOL.blocks}<br>"
        f"the layer that built the pool {reads[d.read]}; the later layer, whose best entry it is, {later}"
    )
