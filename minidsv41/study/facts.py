"""Something to look up that a small network learns within a few hundred steps: facts of one token.

A fact says which value one of KEYS holds, a question names the key, and the value follows. What a key holds is drawn
anew for each sequence: nothing but the fact, and an earlier answer, tells it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from minidsv41.replaced import replaced
from minidsv41.train import loop
from minidsv41.train.data import Batches
from minidsv41.train.recall import Sequences

KEYS, VALUES = 8, 8
LAST = 4096  # the shipped tokenizer's size: its last, rarest tokens are used
FACT = LAST - KEYS * VALUES  # + key * VALUES + value
QUESTION = FACT - KEYS  # + key
VALUE = QUESTION - VALUES  # + value
TOLD, ASKED = 8, 28  # facts and questions of a sequence of 128 tokens


@dataclass(frozen=True)
class Facts:
    """Endless sequences of `length` targets; those of `step` depend on (seed, step) alone.

    text int64 [N]: the stream that facts and questions are strewn into.
    """

    text: np.ndarray
    _: KW_ONLY
    length: int
    seed: int

    def sequence(self, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and distances [T + 1]: from an answer back to the last place that tells it, a fact or an answer."""
        told, asked = TOLD * self.length // 128, ASKED * self.length // 128
        keys, values = draw.permutation(KEYS)[:told], draw.integers(VALUES, size=told)
        kinds = np.repeat([0, 1, 2], [told - 1, asked, self.length + 1 - told - 2 * asked])
        start, tokens, distance, places = draw.integers(len(self.text) - self.length), [], [], []
        for kind in (0, *draw.permutation(kinds)):
            if kind == 2:
                tokens.append(self.text[start := start + 1])
                distance.append(0)
            elif kind == 0:
                i = len(places)
                places.append(len(tokens))
                tokens.append(FACT + keys[i] * VALUES + values[i])
                distance.append(0)
            else:
                i = draw.integers(len(places))
                tokens += [QUESTION + keys[i], VALUE + values[i]]
                distance += [0, len(tokens) - 1 - places[i]]
                places[i] = len(tokens) - 1
        return np.array(tokens), np.array(distance)

    def __call__(self, count: int, step: int) -> Sequences:
        """`count` sequences."""
        draw = np.random.default_rng((self.seed, step, self.length))
        tokens, distance = zip(*(self.sequence(draw) for _ in range(count)), strict=True)
        return Sequences(torch.from_numpy(np.stack(tokens)), torch.from_numpy(np.stack(distance)))


@dataclass(frozen=True)
class Strewn:
    """Batches of `text`, the last `share` sequences with facts and questions; an answer weighs `weight`, all else 1."""

    text: Batches
    _: KW_ONLY
    share: int
    weight: float

    @cached_property
    def facts(self) -> Facts:
        return Facts(self.text.tokens, length=self.text.length, seed=self.text.seed)

    def __call__(self, step: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """tokens [B, T + 1] and the weight [B, T] of each target."""
        tokens, asked = self.text(step), self.facts(self.share, step)
        weight = torch.ones(tokens[:, 1:].shape)
        weight[-self.share :][asked.answers] = self.weight
        return torch.cat([tokens[: -self.share], asked.tokens]).to(device), weight.to(device)


@contextmanager
def taught() -> Iterator[None]:
    """What a training mixes into its text is of this kind."""

    def make(text: Batches, lookups, *, share: int, weight: float, **rest) -> Strewn:
        return Strewn(text, share=share, weight=weight)

    with replaced(loop, "Mixed", lambda _: make):
        yield
