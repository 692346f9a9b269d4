"""How often float32 with fake quantisation tells apart two ways of cutting a prompt, or a crowd from one alone.

Another order of summation can move a value across a rounding border; from there on the two runs differ
by a quantisation step. In float64 the ways agree to 1e-9 (tests), so every divergence here is such a flip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.serve.generate import step

TOLERANCE = 2e-4  # of max(1, largest logit)


@dataclass(frozen=True)
class Divergence:
    """One prompt, cut at random: its length, and the largest difference of its logits over their scale."""

    length: int
    error: float

    @property
    def flipped(self) -> bool:
        return self.error > TOLERANCE


@torch.no_grad()
def divergence(model: Model, ids: Tensor, generator: torch.Generator) -> Divergence:
    """Compare the logits of ids [n] fed at once and in random pieces."""
    batch = Batch.equal(ids[None])
    whole = model.logits(model(batch, SequenceKeys(model.config, batch)).hidden)
    cache = Cache(model.config, dtype=model.dtype)
    state, rows, at = cache.new(), [], 0
    while at < len(ids):
        size = int(torch.randint(1, 2 * model.config.sliding_window, (1,), generator=generator))
        rows.append(model.logits(step(model, cache, state, ids[at : at + size]).hidden))
        at += size
    return compared(torch.cat(rows), whole)


def compared(logits: Tensor, wanted: Tensor) -> Divergence:
    scale = max(1.0, float(wanted.abs().max()))
    return Divergence(len(wanted), float((logits - wanted).abs().max()) / scale)


@torch.no_grad()
def divergences(model: Model, prompts: list[Tensor]) -> list[Divergence]:
    """Compare the logits of prompts fed in one pass with those of each fed alone."""
    batch = Batch.ragged(prompts, [0] * len(prompts))
    cache = Cache(model.config, dtype=model.dtype)
    hidden = model(batch, cache.keys([cache.new() for _ in prompts], batch)).hidden
    together = model.logits(hidden).split(batch.lengths)
    alone = [model.logits(step(model, cache, cache.new(), ids).hidden) for ids in prompts]
    return [compared(a, b) for a, b in zip(together, alone, strict=True)]


def slices(tokens: Tensor, *, prompts: int, length: int, generator: torch.Generator) -> Iterator[Tensor]:
    for _ in range(prompts):
        start = int(torch.randint(0, len(tokens) - length, (1,), generator=generator))
        yield tokens[start : start + length]


def study(model: Model, tokens: Tensor, *, prompts: int, length: int, seed: int) -> Iterator[Divergence]:
    """Random slices [length] of `tokens`, each cut at random."""
    generator = torch.Generator().manual_seed(seed)
    for ids in slices(tokens, prompts=prompts, length=length, generator=generator):
        yield divergence(model, ids, generator)


def study_crowd(model: Model, tokens: Tensor, *, prompts: int, length: int, seed: int) -> Iterator[Divergence]:
    """Random slices of `tokens`, up to `length` tokens long, eight in a pass."""
    generator = torch.Generator().manual_seed(seed)
    some = [
        ids[: int(torch.randint(1, length + 1, (1,), generator=generator))]
        for ids in slices(tokens, prompts=prompts, length=length, generator=generator)
    ]
    for at in range(0, prompts, 8):
        yield from divergences(model, some[at : at + 8])
