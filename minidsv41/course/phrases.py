"""The n-grams of a text, the rows of Engram's tables that they fall into, and what is lost without those rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.model import Model
from minidsv41.model.engram import Engram


def hashing(config: ModelConfig, layer: int) -> Engram:
    """A layer's Engram without storage: it can hash at any size, and nothing else."""
    with torch.device("meta"):
        return Engram(config, layer)


def distinct(ids: np.ndarray, n: int) -> Tensor:
    """[N, n] the different n-grams of compressed ids [T], newest id first, in a fixed order."""
    size = int(ids.max()) + 1
    left, columns = np.unique(keys(ids, n, size)), []
    for _ in range(n):
        left, oldest = np.divmod(left, size)
        columns.append(oldest)
    return torch.from_numpy(np.stack(columns[::-1], 1))


def keys(ids: np.ndarray, n: int, size: int) -> np.ndarray:
    """[T - n + 1] one number for each n-gram of ids below `size`; size ** n must stay below 2 ** 63."""
    return sum(ids[place : len(ids) - n + 1 + place] * size**place for place in range(n))


def rows_of(engram: Engram, grams: Tensor) -> Tensor:
    """[N, heads] table rows of whole n-grams [N, n], newest id first, in the heads of their order."""
    order, places = grams.shape[1] - 2, len(engram.primes) + 1
    filled = torch.cat([grams, grams.new_zeros(len(grams), places - grams.shape[1])], 1)
    return engram.rows(filled, 0).unflatten(1, (len(engram.primes), -1))[:, order]


def shared(rows: Tensor) -> Tensor:
    """[N, heads] bool: another n-gram has the same row."""
    counts = [torch.unique(column, return_inverse=True, return_counts=True)[1:] for column in rows.unbind(1)]
    return torch.stack([count[inverse] > 1 for inverse, count in counts], 1)


class Phrases:
    """The n-grams that a text holds: compressed ids [T] of which `size` exist, n from 2 to `longest`."""

    def __init__(self, ids: np.ndarray, size: int, longest: int = 4) -> None:
        self.size = size
        self.known = {n: np.unique(keys(ids, n, size)) for n in range(2, longest + 1)}

    def holds(self, ids: np.ndarray) -> Tensor:
        """[T, orders] bool: the text holds the n-gram that ends here, n = 2, 3, …"""
        held = np.zeros((len(ids), len(self.known)), dtype=bool)
        for n, known in self.known.items():
            wanted = keys(ids, n, self.size)
            held[n - 1 :, n - 2] = known[np.searchsorted(known, wanted).clip(max=len(known) - 1)] == wanted
        return torch.from_numpy(held)

    def length(self, ids: np.ndarray) -> Tensor:
        """[T] length of the longest known n-gram that ends here; 1 if not even the last two ids were seen together."""
        return 1 + self.holds(ids).sum(1)


@contextmanager
def forgotten(model: Model, orders: Sequence[int] = (2, 3, 4)) -> Iterator[None]:
    """While the block runs, the table rows of these orders are zero in every Engram layer."""
    kept = []
    for layer in model.config.engram_layer_ids:
        engram = model.layers[layer].engram
        ends = [0, *accumulate(map(sum, engram.primes))]
        for n in orders:
            rows = engram.embed.weight.data[ends[n - 2] : ends[n - 1]]
            kept.append((rows, rows.clone()))
            rows.zero_()
    try:
        yield
    finally:
        for rows, values in kept:
            rows.copy_(values)


@torch.no_grad()
def read(model: Model, passages: Tensor) -> tuple[Tensor, Tensor]:
    """passages [P, T] -> nats [P, T - 1] that each next token costs, gates [P, T - 1, layers] (mean of the streams)."""
    nats, gates = [], []
    for ids in passages:
        trace = model.trace(ids)
        nats.append(F.cross_entropy(trace["logits"][:-1], ids[1:], reduction="none"))
        each = [trace[f"L{layer}.engram.gate"].mean(1) for layer in model.config.engram_layer_ids]
        gates.append(torch.stack(each, 1)[:-1])
    return torch.stack(nats), torch.stack(gates)
