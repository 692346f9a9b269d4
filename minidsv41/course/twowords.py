"""A language of two words, small enough to see exactly what a schedule does to the text (DSpark paper's example)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch

from minidsv41.serve.schedule import verify_lengths

TARGET = Fraction(7, 10), Fraction(3, 10)
DRAFT = Fraction(1, 2), Fraction(1, 2)
SPEED = {1: 1.0, 2: 0.5, 3: 0.45}  # steps a second by rows

Plan = Callable[..., list[int]]  # as `verify_lengths`


def chances(word: int) -> list[float]:
    """Two drafts of one request, the first of which is `word`: the second is sure behind 0 and hopeless behind 1."""
    return [float(sum(map(min, TARGET, DRAFT))), float(word == 0)]


def first_word(length: Callable[[int], int]) -> tuple[Fraction, ...]:
    """Exact distribution of the first word out, if length(first draft) drafts are verified."""
    left = [max(t - d, Fraction(0)) for t, d in zip(TARGET, DRAFT, strict=True)]
    out = [Fraction(0), Fraction(0)]
    for word, drawn in enumerate(DRAFT):
        keep = min(Fraction(1), TARGET[word] / drawn) if length(word) else Fraction(0)
        fresh = [x / sum(left) for x in left] if length(word) else TARGET
        out = [o + drawn * (1 - keep) * f for o, f in zip(out, fresh, strict=True)]
        out[word] += drawn * keep
    return tuple(out)


def emitted(plan: Plan = verify_lengths, speed: dict[int, float] = SPEED) -> tuple[Fraction, ...]:
    """The same for a plan that sees the confidence of both drafts."""

    def length(word: int) -> int:
        return plan(torch.tensor([chances(word)], dtype=torch.float64), speed.__getitem__, most=[2])[0]

    return first_word(length)
