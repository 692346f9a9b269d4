"""The funnel of selection: blocks, pool and choice of one query in two layers, from their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from minidsv41 import paths
from minidsv41.config import ModelConfig
from minidsv41.ops import Batch, Pool, PoolSize, Rows, index_select
from minidsv41.ops.select import best_blocks, lowest_topk
from minidsv41.tokens import load_tokenizer
from minidsv41.train.recall import Lookups, Sequences


def pool_of(scores: Tensor, blocks: int, size: int) -> Tensor:
    """bool [T, n]: the entries that a pool built from scores [T, n] holds; -inf is an entry that cannot be seen."""
    visible = (scores > -torch.inf).sum(-1)
    inside = Pool(best_blocks(scores, visible, PoolSize(blocks, size)), size).mask(scores.shape[-1])
    return inside & (scores > -torch.inf)


def choose(scores: Tensor, k: int, within: Tensor | None = None) -> Tensor:
    """[T, k] the best of scores [T, n], lowest index first among equals, -1 padded; `within` bool [T, n] limits it."""
    return lowest_topk(scores if within is None else scores.masked_fill(~within, -torch.inf), k)


def outside(topk: Tensor, inside: Tensor) -> Tensor:
    """bool [T, k]: which of the chosen are not in `inside` [T, n]."""
    return ~inside.gather(-1, topk.clamp(min=0)) & (topk >= 0)


@dataclass(frozen=True)
class Funnel:
    """One query: scores [n] of what it sees in the layer that builds the pool, and in a later one bound to it."""

    source: Tensor
    later: Tensor
    k: int
    blocks: int
    size: int

    @cached_property
    def pool(self) -> Tensor:
        """bool [n]"""
        return pool_of(self.source[None], self.blocks, self.size)[0]

    def best(self, scores: Tensor, within: Tensor | None = None) -> Tensor:
        """Indices of the best k, ascending."""
        chosen = choose(scores[None], self.k, None if within is None else within[None])[0]
        return chosen[chosen >= 0]

    @cached_property
    def own(self) -> Tensor:
        """What the source itself selects."""
        return self.best(self.source)

    @cached_property
    def wanted(self) -> Tensor:
        """What the later layer would select without a pool."""
        return self.best(self.later)

    @cached_property
    def got(self) -> Tensor:
        """What it does select."""
        return self.best(self.later, self.pool)

    def missing(self, chosen: Tensor) -> Tensor:
        """Those of the chosen that are not in the pool."""
        return chosen[~self.pool[chosen]]

    @property
    def best_is_lost(self) -> bool:
        return not bool(self.pool[self.later.argmax()])


def funnel(trace: Mapping[str, Tensor], query: int, *, config: ModelConfig, k: int, blocks: int) -> Funnel:
    """The query's Funnel in `model.trace(ids)`: the candidate source's scores, and the first Reindex layer's."""
    source, later = pooled_layers(config)
    seen = (query + 1) // config.ratio(source)
    scores = (trace[f"L{layer}.idx.scores"][query, :seen] for layer in (source, later))
    return Funnel(*scores, k, blocks, config.candidate_block_size)


def pooled_layers(config: ModelConfig) -> tuple[int, int]:
    """The layer that builds the pool and the first that chooses from it."""
    source = config.candidate_source_layer_id
    return source, min(layer for layer in config.index_source_layer_ids if layer > source)


def described(f: Funnel, names: tuple[int, int], kept: tuple[float, float]) -> str:
    """HTML. kept: shares of the later layer's attention mass on entries, free and from the pool."""
    n, (source, later) = len(f.source), names
    lost = len(f.missing(f.wanted))
    best = ", the best among them" if f.best_is_lost else ""
    return (
        f"{n} entries in {-(-n // f.size)} blocks; the pool: {min(f.blocks, -(-n // f.size))} blocks, "
        f"{int(f.pool.sum())} entries<br>"
        f"layer {source}'s own {len(f.own)}: {len(f.missing(f.own))} outside the pool · "
        f"layer {later}'s {len(f.wanted)}: {lost} outside{best if lost else ''}<br>"
        f"attention mass kept {kept[1]:.0%}, without a pool {kept[0]:.0%}"
    )


def lookups(*, length: int = 512, seed: int = 5, step: int = 0) -> Sequences:
    """One sequence of `length` targets: Hamlet with facts and spans to look up; training never asked these names."""
    hamlet = (paths.text_dir() / "plays" / "hamlet.txt").read_text(encoding="utf-8")
    text = np.array(load_tokenizer().encode(hamlet).ids)
    return Lookups(text, length=length, seed=seed, held_out=True)(1, step)


class Outcome(NamedTuple):
    """The later layer's best entry, the pool's blocks, and whether the entry lies outside them."""

    best: int
    blocks: tuple[int, ...]
    lost: bool

    def __repr__(self) -> str:
        where = "outside" if self.lost else "inside"
        return f"best entry {self.best}, {where} the pool of blocks {', '.join(map(str, self.blocks))}"


def tried(keys: Tensor, own: Tensor, later: Tensor, *, blocks: int, size: int) -> Outcome:
    """Ask the package: keys [n, D]; own, later [D] the index query of each layer (one head, weight 1)."""
    n, one = len(keys), keys.new_ones(1, 1)
    rows = Rows(keys, torch.zeros(1, 1, dtype=torch.int64), page=n)
    ask = dict(batch=Batch.ragged([torch.zeros(1, dtype=torch.int64)], [n - 1]), n=n)
    seen = torch.tensor([n])
    _, pool = index_select(own[None, None], one, rows, seen, 1, PoolSize(blocks, size), **ask)
    free, _ = index_select(later[None, None], one, rows, seen, 1, None, **ask)
    bound, _ = index_select(later[None, None], one, rows, seen, 1, pool, **ask)
    held = tuple(b for b in pool.blocks[0].tolist() if b >= 0)
    return Outcome(int(free), held, bool(free != bound))
