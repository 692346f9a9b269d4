"""Rows between two layers, so that the next layer can run on fewer of them, or later."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41.model.hyper import Streams
from minidsv41.ops import Pool


@dataclass(frozen=True)
class Boundary:
    """All that later layers read of each of T rows.

    streams: settled; features: draft features so far, [T, C] each; selected: index source layer -> topk [T, k];
    pools: candidate source layer -> its candidates.
    """

    streams: Streams
    features: list[Tensor]
    selected: dict[int, Tensor]
    pools: dict[int, Pool]

    def last(self, n: int) -> Boundary:
        """The last n rows, or all if there are fewer."""
        rows = slice(max(0, len(self.streams.X) - n), None)
        return Boundary(
            self.streams.take(rows),
            [f[rows] for f in self.features],
            {layer: topk[rows] for layer, topk in self.selected.items()},
            {layer: Pool(pool.blocks[rows], pool.size) for layer, pool in self.pools.items()},
        )

    def then(self, later: Boundary) -> Boundary:
        """These rows and those of the next call."""
        a, b = self.streams, later.streams
        return Boundary(
            Streams(torch.cat([a.X, b.X]), torch.cat([a.pre, b.pre])),
            [torch.cat(pair) for pair in zip(self.features, later.features, strict=True)],
            {i: torch.cat([topk, later.selected[i]]) for i, topk in self.selected.items()},
            {i: Pool(torch.cat([p.blocks, later.pools[i].blocks]), p.size) for i, p in self.pools.items()},
        )
