"""Exact reconstruction of lost window rows: the reference for bounded replay.

The last row of layer l reads W - 1 rows before its own, each of which was made by layer l - 1 from W - 1 more. So
one new token needs L(W - 1) old ones: a rectangle if every layer runs on all of them, a staircase if each
runs only on those that a later layer needs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from minidsv41.cache.state import Cache, State
from minidsv41.config import ModelConfig
from minidsv41.model import Model
from minidsv41.model.attention import Context
from minidsv41.model.boundary import Boundary
from minidsv41.model.engram import DEAD
from minidsv41.ops import Batch

Shape = Literal["staircase", "rectangle"]


def halo(config: ModelConfig) -> int:
    """Old tokens that make the windows behind them exact: L(W - 1)."""
    return config.num_hidden_layers * (config.sliding_window - 1)


def first_rows(config: ModelConfig, hit: int, *, shape: Shape = "staircase", old: int | None = None) -> list[int]:
    """First row of each layer, of rows up to hit - 1; `old` tokens in all, `halo` if not given."""
    layers, window = config.num_hidden_layers, config.sliding_window
    start = max(0, hit - max(1, halo(config) if old is None else old))
    if shape == "rectangle":
        return [start] * layers
    return [max(start, hit - max(1, (layers - layer) * (window - 1))) for layer in range(layers)]


@torch.no_grad()
def reconstruct(
    model: Model, cache: Cache, state: State, ids: Tensor, *, shape: Shape = "staircase", old: int | None = None
) -> None:
    """Compute the window rows of a hit again, the draft's and the open pairs too, as if they had not been lost.

    ids [T] begin with the H = state.length tokens whose entries the sequence holds. old: how many of them run
    again; fewer than `halo` make the result inexact.
    """
    config, hit = model.config, state.length
    firsts = first_rows(config, hit, shape=shape, old=old)
    lookback = config.engram_max_ngram_size - 1
    compressed = torch.cat([ids.new_full((lookback,), DEAD), model.token_map[ids[:hit]]])

    def rows(start: int) -> Batch:
        return Batch.ragged([ids[start:hit]], [start], floor=torch.full_like(ids[start:hit], start))

    keys = cache.keys([state], rows(firsts[0]), kept=[hit])
    at = Boundary(model.start(rows(firsts[0])), [], {}, {})
    for layer, first in enumerate(firsts):
        at, keys.batch = at.last(hit - first), rows(first)
        state.history = compressed[first : first + lookback]
        ctx = Context(config, keys.batch, keys, model.dtype, at.selected, at.pools)
        streams, features = model.run(range(layer, layer + 1), at.streams, ctx, None, at.features)
        at = Boundary(streams, features, ctx.selected, ctx.pools)
    model.mtp.remember(torch.cat(at.features, -1), keys.batch, keys)
    keys.commit()
    state.history = compressed[hit:].clone()
