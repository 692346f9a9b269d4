"""Lesson 08: the ids of an n-gram, two that meet in one head, and a switch that knows what was never seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from minidsv41 import paths
from minidsv41.checkpoint import load
from minidsv41.config import ModelConfig
from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.lessons import said08 as said
from minidsv41.course.phrases import Phrases, hashing, read, rows_of
from minidsv41.model import Model
from minidsv41.model.engram import DEAD, Engram, lookback
from minidsv41.ops import Batch
from minidsv41.replaced import replaced
from minidsv41.train.data import corpus


def package_slots(ids: list[int], t: int, n: int, pad: int) -> list[int]:
    tokens = torch.tensor(ids)
    grams = lookback(tokens, torch.full((1, n - 1), DEAD), Batch.equal(tokens[None]), n)[t]
    return [pad if i == DEAD else i for i in grams.tolist()]


def slots(ids: list[int], t: int, n: int, pad: int) -> list[int]:
    out, alive = [], True
    for s in range(n):
        alive = alive and t - s >= 0 and ids[t - s] != -1
        out.append(ids[t - s] if alive else pad)
    return out


def one_by_one(ids: list[int], t: int, n: int, pad: int) -> list[int]:
    return [ids[t - s] if t - s >= 0 and ids[t - s] != -1 else pad for s in range(n)]


def skipping(ids: list[int], t: int, n: int, pad: int) -> list[int]:
    return ([i for i in reversed(ids[: t + 1]) if i != -1] + [pad] * n)[:n]


TEXT = [11, 12, -1, 13, 14, 15]
SLOTS = Exercise(
    name="08.slots",
    inputs=lambda: [
        dict(ids=ids, t=t, n=n, pad=2)
        for ids in ([7, 8, 9], TEXT)
        for t, n in ((0, 2), (1, 4), (2, 3), (len(ids) - 1, 4))
    ],
    reference=package_slots,
    solution=slots,
    why=said.SLOTS_WHY,
    hints=said.SLOTS_HINTS,
    mistakes=(
        Mistake(
            name="wraps",
            answer=lambda ids, t, n, pad: [ids[t - s] if ids[t - s] != -1 else pad for s in range(n)],
            thought=said.WRAPPED,
        ),
        Mistake(name="only one", answer=one_by_one, thought=said.ONLY_ONE),
        Mistake(name="skips", answer=skipping, thought=said.SKIPPED),
        Mistake(name="oldest first", answer=lambda **inputs: slots(**inputs)[::-1], thought=said.OLDEST),
    ),
)

Grams = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Meeting:
    """In which heads two n-grams have one row; and, to name a slip, where they would in another hash."""

    heads: tuple[int, ...]
    slip: str = ""

    def __repr__(self) -> str:
        return f"heads {', '.join(map(str, self.heads))}" if self.heads else "no head"


@cache
def known() -> list[tuple[Engram, int]]:
    """Every hash that is asked about, and its vocabulary."""
    configs = [ModelConfig.preset(name) for name in ("toy", "flash")]
    return [(hashing(c, layer), c.engram_compressed_vocab_size) for c in configs for layer in c.engram_layer_ids]


def asked() -> list[dict[str, Any]]:
    places = [(0, 2, 0), (1, 3, 2), (2, 2, 5), (3, 4, 0)]
    return [
        dict(multipliers=engram.multipliers[:n], primes=engram.primes[n - 2], vocab=vocab, head=head)
        for (engram, vocab), (_, n, head) in zip(known(), places, strict=True)
    ]


def met(answer: Callable[..., Grams], multipliers: tuple, primes: tuple, vocab: int, head: int) -> Meeting:
    """Where a pair meets by the package's hash. Raises ValueError for what are no two n-grams."""
    engram = next(e for e, _ in known() if primes in e.primes)
    pair = [tuple(map(int, gram)) for gram in answer(multipliers, primes, vocab, head)]
    if len(pair) != 2 or any(len(gram) != len(multipliers) or not all(0 <= i < vocab for i in gram) for gram in pair):
        raise ValueError(f"allowed are two n-grams of {len(multipliers)} ids below {vocab}")
    if pair[0] == pair[1]:
        return Meeting(tuple(range(len(primes))), "equal")

    def heads(*grams: tuple[int, ...]) -> tuple[int, ...]:
        a, b = rows_of(engram, torch.tensor(grams))
        return tuple((a == b).nonzero()[:, 0].tolist())

    sums = [sum(i * m for i, m in zip(gram, multipliers, strict=True)) for gram in pair]
    slips = {
        "summed": (sums[0] - sums[1]) % primes[head] == 0,
        "reversed": head in heads(*(gram[::-1] for gram in pair)),
        "next": (head + 1) % len(primes) in heads(*pair),
    }
    return Meeting(heads(*pair), next((name for name, found in slips.items() if found), ""))


def meet(multipliers: tuple, primes: tuple, vocab: int, head: int) -> tuple:
    n, known = len(multipliers), {}
    for x, y in product(range(1, vocab), repeat=2):
        gram = (x, y, 0, 0)[:n]
        mix = 0
        for i, m in zip(gram, multipliers):  # noqa: B905
            mix ^= i * m
        other = known.setdefault(mix % primes[head], (gram, mix))
        alone = all((mix - other[1]) % p for k, p in enumerate(primes) if k != head)
        if other[0] != gram and alone:
            return other[0], gram


def summed(multipliers: tuple, primes: tuple, vocab: int, head: int) -> Grams:
    found: dict[int, tuple] = {}
    for x in range(1, vocab):
        gram = (x, x * x % vocab, 0, 0)[: len(multipliers)]
        total = gram[0] * multipliers[0] + gram[1] * multipliers[1]
        if (other := found.setdefault(total % primes[head], gram)) != gram:
            return other, gram
    raise AssertionError("a birthday that nobody shares")


met_already = cache(meet)

MEET = Exercise(
    name="08.meet",
    inputs=asked,
    reference=lambda multipliers, primes, vocab, head: Meeting((head,)),
    use=met,
    accept=lambda found, right: found.heads == right.heads,
    versus=said.MEET_VERSUS,
    solution=meet,
    why=said.MEET_WHY,
    hints=said.MEET_HINTS,
    mistakes=(
        Mistake(name="equal", answer=lambda multipliers, *_: ((1,) * len(multipliers),) * 2, thought=said.EQUAL),
        Mistake(
            name="neighbours",
            answer=lambda multipliers, *_: ((1,) * len(multipliers), (2,) * len(multipliers)),
            thought=said.NOWHERE,
        ),
        Mistake(name="summed", answer=summed, thought=said.SUMMED),
        Mistake(
            name="oldest first",
            answer=lambda *inputs: tuple(gram[::-1] for gram in met_already(*inputs)),
            thought=said.REVERSED,
        ),
        Mistake(
            name="counted from 1",
            answer=lambda m, primes, vocab, head: met_already(m, primes, vocab, (head + 1) % len(primes)),
            thought=said.NEXT_HEAD,
        ),
    ),
)

PASSAGES, LENGTH = 4, 256


@cache
def held_out() -> tuple[Model, Tensor, Tensor]:
    """The toy, unseen passages of three kinds [P, T], and which of their n-grams the training text holds [P, T, 3]."""
    model, text = load(paths.checkpoint_dir("toy"), dtype=torch.float64), corpus()
    ids = model.token_map.numpy()[text.train.tokens]
    phrases = Phrases(ids, model.config.engram_compressed_vocab_size)
    parts = [torch.from_numpy(s.tokens[: PASSAGES * LENGTH]).view(PASSAGES, LENGTH) for s in text.validation.values()]
    passages = torch.cat(parts)
    return model, passages, torch.stack([phrases.holds(model.token_map[p].numpy()) for p in passages])


@cache
def cost(factors: tuple[float, ...]) -> float:
    """Nats a token if both layers' gates are multiplied, one factor a token."""
    model, passages, _ = held_out()
    by_passage = torch.tensor(factors, dtype=model.dtype).view(len(passages), -1)
    total = 0.0
    for ids, factor in zip(passages, by_passage, strict=True):

        def scaled(original: Callable, factor: Tensor = factor) -> Callable:
            return lambda self, X, rows, alive, note: original(self, X, rows, alive * factor, note)

        with replaced(Engram, "forward", scaled):
            total += float(read(model, ids[None])[0].mean()) / len(passages)
    return total


def judged(switch: Callable[[Tensor], Tensor]) -> float:
    """What a switch costs. Raises ValueError for factors that are none."""
    seen = held_out()[2].flatten(0, 1)
    factors = torch.as_tensor(switch(seen)).double()
    if factors.shape != seen.shape[:1] or not factors.isfinite().all():
        raise ValueError(
            f"factors of shape {list(factors.shape)}: allowed is one finite number for each of {len(seen)}"
        )
    return cost(tuple(factors.tolist()))


def switch(seen: Tensor) -> Tensor:
    two, three = seen[:, 0].double(), seen[:, 1].double()
    return 0.6 * two + 0.4 * three


SWITCH = Exercise(
    name="08.switch",
    inputs=lambda: [{}],
    reference=lambda: judged(lambda seen: torch.ones(len(seen))),
    use=judged,
    accept=lambda found, usual: found < usual - 0.015,
    versus=said.SWITCH_VERSUS,
    solution=switch,
    why=said.SWITCH_WHY,
    hints=said.SWITCH_HINTS,
    mistakes=(
        Mistake(name="inverted", answer=lambda seen: 1 - seen[:, 0].double(), thought=said.INVERTED),
        Mistake(name="too strict", answer=lambda seen: seen[:, 1].double(), thought=said.TOO_STRICT),
        Mistake(name="off", answer=lambda seen: torch.zeros(len(seen)), thought=said.OFF),
        Mistake(name="doubled", answer=lambda seen: torch.full((len(seen),), 2.0), thought=said.DOUBLED),
    ),
)

EXERCISES = (SLOTS, MEET, SWITCH)
