"""How often float32 with fake quantisation tells two ways of cutting a prompt apart.

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
    scale = max(1.0, float(whole.abs().max()))
    return Divergence(len(ids), float((torch.cat(rows) - whole).abs().max()) / scale)


def study(model: Model, tokens: Tensor, *, prompts: int, length: int, seed: int) -> Iterator[Divergence]:
    """Random slices [length] of `tokens`, each cut at random."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(prompts):
        start = int(torch.randint(0, len(tokens) - length, (1,), generator=generator))
        yield divergence(model, tokens[start : start + length], generator)
