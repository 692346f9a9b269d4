"""A model that runs as after a hit: entries and index keys are there, window rows are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.cache.replay import reconstruct
from minidsv41.model import Model, SequenceKeys
from minidsv41.model.attention import Context
from minidsv41.model.hyper import Streams
from minidsv41.ops import Batch, Rows
from minidsv41.serve import Prefill
from minidsv41.serve.generate import step
from minidsv41.serve.prefill import CHUNK


class OnDisk(SequenceKeys):
    """Window rows of this run; entries and index keys of an earlier one, whatever this one writes."""

    def __init__(self, earlier: SequenceKeys, batch: Batch) -> None:
        super().__init__(earlier.config, batch)
        self.earlier = earlier

    def read(self, kind: str, layer: int) -> Rows:
        return (self if kind == "window" else self.earlier).rows[kind, layer]


@torch.no_grad()
def states(
    model: Model, ids: Tensor, *, x: Tensor | None = None, disk: SequenceKeys | None = None, floor: int = 0
) -> tuple[Tensor, SequenceKeys]:
    """Residual streams [L, T, n * C] after each layer for a prompt ids [T], and the keys that were written.

    x [T, C]: embeddings in place of the tokens' own. disk: keys of an earlier run, whose entries are read.
    floor: rows from there on read no window row before it.
    """
    at = torch.arange(len(ids))
    batch = Batch.equal(ids[None], floor=torch.where(at >= floor, floor, 0))
    keys = OnDisk(disk, batch) if disk else SequenceKeys(model.config, batch)
    ctx = Context(model.config, batch, keys, model.dtype)
    x = model.embed(ids) if x is None else x
    streams, found = Streams.start(x, model.config.hc_mult, x.dtype), []
    for layer in range(model.config.num_hidden_layers):
        streams, _ = model.run(range(layer, layer + 1), streams, ctx, None, [])
        found.append(streams.X.flatten(1))
    return torch.stack(found), keys


@torch.no_grad()
def exactly(model: Model, ids: Tensor, hit: int) -> Tensor:
    """Log-probabilities [T - hit, V] after each token from `hit` on; nothing was ever lost."""
    cache = Cache(model.config, dtype=model.dtype)
    return model.logits(step(model, cache, cache.new(), ids).hidden[hit:]).log_softmax(-1)


@torch.no_grad()
def replayed(
    model: Model, ids: Tensor, hit: int, *, chunk: int = CHUNK, neighbour: Tensor | None = None, **rebuild: Any
) -> Tensor:
    """The same after a hit that lost its windows: bounded replay, or `reconstruct` with its arguments.

    neighbour [n]: another conversation, which had the window pages before this one came back.
    """
    cache = Cache(model.config, dtype=model.dtype)
    state = cache.new()
    step(model, cache, state, ids[:hit])
    cache.truncate(state, hit)
    if neighbour is not None:
        other = cache.new()
        step(model, cache, other, neighbour)
        cache.release(other)
    if rebuild:
        reconstruct(model, cache, state, ids, **rebuild)
    hidden = Prefill(model, cache, state, ids, cut=None).finish(chunk)
    return model.logits(hidden[hit - len(ids) :]).log_softmax(-1)


def divergence(exact: Tensor, other: Tensor) -> Tensor:
    """KL divergence [T] in nats of log-probabilities [T, V] from the exact ones."""
    return (exact.exp() * (exact - other)).sum(-1)
