"""Something to look up that a small network learns within a few hundred steps: spans that come back.

The tokens of one sequence are all different but for the repetition, so that the token just before tells where to look.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from torch import Tensor

from minidsv41.replaced import replaced
from minidsv41.train import loop
from minidsv41.train.data import Batches
from minidsv41.train.recall import Sequences

TOKENS = range(300, 364)  # what spans are made of
SPAN, SPANS = 16, 3  # tokens of a span, and different spans of a sequence


@dataclass(frozen=True)
class Repeats:
    """Endless sequences of `length` targets; those of `step` depend on (seed, step) alone."""

    _: KW_ONLY
    length: int
    seed: int

    def __call__(self, count: int, step: int) -> Sequences:
        """`count` sequences of spans in random order. Where a span has been before, all but its first token can be
        looked up there."""
        draw = np.random.default_rng((self.seed, step, self.length))
        slots = -(-(self.length + 1) // SPAN)
        tokens = np.stack([draw.permutation(TOKENS)[: SPANS * SPAN].reshape(SPANS, SPAN) for _ in range(count)])
        order = draw.integers(SPANS, size=(count, slots))
        back = np.array([[since(row, i) for i in range(slots)] for row in order]) * SPAN  # [B, slots]
        known = np.arange(SPAN) > 0
        ids = np.take_along_axis(tokens, order[:, :, None], 1).reshape(count, -1)[:, : self.length + 1]
        distance = (back[:, :, None] * known).reshape(count, -1)[:, : self.length + 1]
        return Sequences(torch.from_numpy(ids), torch.from_numpy(distance))


def since(order: np.ndarray, i: int) -> int:
    """Slots back to the last one with the span of slot i, 0 if there is none."""
    before = np.flatnonzero(order[:i] == order[i])
    return i - int(before[-1]) if len(before) else 0


@dataclass(frozen=True)
class Mixture:
    """Batches of `text` whose last `share` sequences are spans; a token to be looked up weighs `weight`, others 1."""

    text: Batches
    _: KW_ONLY
    share: int
    weight: float

    def __call__(self, step: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """tokens [B, T + 1] and the weight [B, T] of each target."""
        asked = Repeats(length=self.text.length, seed=self.text.seed)(self.share, step)
        tokens = torch.cat([self.text(step)[: -self.share], asked.tokens])
        weight = torch.ones(tokens[:, 1:].shape)
        weight[-self.share :][asked.answers] = self.weight
        return tokens.to(device), weight.to(device)


@contextmanager
def taught() -> Iterator[None]:
    """What a training mixes into its text is of this kind."""

    def make(text: Batches, lookups, *, share: int, weight: float, **rest) -> Mixture:
        return Mixture(text, share=share, weight=weight)

    with replaced(loop, "Mixed", lambda _: make):
        yield
