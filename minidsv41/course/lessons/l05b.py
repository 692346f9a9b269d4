"""Lesson 05b: recall of attention mass, a selector of one's own, and a text that fewer entries forget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from minidsv41 import paths
from minidsv41.checkpoint import load
from minidsv41.course.exercise import Exercise, Mistake, call
from minidsv41.course.lessons import said05b as texts
from minidsv41.course.mass import Mass
from minidsv41.course.sight import Sight, everything, overall, scored
from minidsv41.course.sparsity import Group, Point, group, selecting
from minidsv41.course.tasks import QUESTION, TOLD, tasks
from minidsv41.model import Model
from minidsv41.train.recall import pieces

K, BYTES, SHARE = 8, 0.75, 0.97
LONGEST = 256


@cache
def recalling() -> Model:
    return load(paths.checkpoint_dir("recall"), dtype=torch.float64).requires_grad_(False)


@cache
def groups() -> dict[str, Group]:
    """The layers that read by layer 1's choice, on the six prompts."""
    model = recalling()
    return {name: group(model, model.trace(task.ids), task, 1) for name, task in tasks().items()}


def masses() -> Iterator[dict[str, Any]]:
    dice = torch.Generator().manual_seed(0)
    for heads, entries, k in ((1, 3, 1), (2, 4, 2), (3, 6, 2), (4, 12, 5)):
        mass = torch.rand(heads, entries, generator=dice, dtype=torch.float64) * torch.arange(1, heads + 1)[:, None]
        mass = mass / mass.sum() * 0.7
        yield dict(mass=mass, chosen=torch.randperm(entries, generator=dice)[:k].sort().values.tolist())


def kept(mass: torch.Tensor, chosen: list[int]) -> float:
    whole = Mass(mass.new_zeros(1, len(mass), 1), mass[None], mass.new_zeros(1, len(mass)))
    return whole.recall(torch.tensor([chosen])).item()


def recall(mass: torch.Tensor, chosen: list[int]) -> float:
    return (mass[:, chosen].sum() / mass.sum()).item()


RECALL = Exercise(
    name="05b.recall",
    inputs=masses,
    reference=kept,
    solution=recall,
    why=texts.RECALL_WHY,
    hints=texts.RECALL_HINTS,
    mistakes=(
        Mistake(
            name="mean of heads",
            answer=lambda mass, chosen: (mass[:, chosen].sum(1) / mass.sum(1)).mean().item(),
            thought=texts.MEAN_OF_HEADS,
        ),
        Mistake(name="counted", answer=lambda mass, chosen: len(chosen) / mass.shape[1], thought=texts.COUNTED),
        Mistake(
            name="not divided", answer=lambda mass, chosen: mass[:, chosen].sum().item(), thought=texts.NOT_DIVIDED
        ),
    ),
)


def select(sight: Sight) -> list[int]:
    near = {e + step for e in sight.previous for step in (0, 1)} | set(range(sight.visible - 8, sight.visible))
    seen = range(sight.visible) if sight.step % 2 == 0 else [e for e in near if 0 <= e < sight.visible]
    found = sight.scores(seen)
    return sorted(found, key=lambda e: -found[e])[: sight.k]


def every_second(sight: Sight) -> list[int]:
    found = sight.scores(range(0, sight.visible, 2))
    return sorted(found, key=lambda e: -found[e])[: sight.k]


def first_and_newest(sight: Sight) -> list[int]:
    return [*range(4), *range(sight.visible - sight.k + 4, sight.visible)]


def same_again(sight: Sight) -> list[int]:
    return sight.previous if sight.step % 2 else everything(sight)


def played(answer: Any) -> Point:
    return overall(scored(groups(), answer, K))


SELECT = Exercise(
    name="05b.select",
    inputs=lambda: [{}],
    reference=lambda: played(everything),
    use=played,
    accept=lambda mine, own: mine.size <= BYTES * own.size and mine.recall >= SHARE * own.recall,
    versus=texts.SELECT_VERSUS,
    solution=select,
    why=texts.SELECT_WHY,
    hints=texts.SELECT_HINTS,
    mistakes=(
        Mistake(name="everything", answer=everything, thought=texts.EVERYTHING),
        Mistake(name="recent", answer=first_and_newest, thought=texts.RECENT),
        Mistake(name="halved", answer=every_second, thought=texts.HALVED),
        Mistake(name="same again", answer=same_again, thought=texts.SAME_AGAIN),
    ),
)


@dataclass(frozen=True)
class Known:
    """Probability of the fact's word after the question, with every entry and with K."""

    every: float
    few: float

    def __repr__(self) -> str:
        return f"dark {self.every:.2f} with every entry, {self.few:.2f} with {K}"


@torch.no_grad()
def knowing(answer: Any) -> Known:
    """The question put behind a text. Raises ValueError where the text lacks the fact or is too long."""
    text = call(answer)
    if TOLD.strip() not in text:
        raise ValueError(f"the text must hold {TOLD.strip()!r}")
    ids = torch.tensor(pieces(text) + pieces(QUESTION))
    if len(ids) > LONGEST:
        raise ValueError(f"{len(ids)} tokens with the question: at most {LONGEST}")
    word, found, model = pieces(TOLD)[len(pieces(QUESTION))], [], recalling()
    for k in (LONGEST, K):
        with selecting(model, k, len(ids)):
            found.append(model.trace(ids)["logits"][-1].softmax(-1)[word].item())
    return Known(*found)


def forgettable() -> str:
    return "\nThe ring of Juliet is dark gold.\n" * 8


def distant() -> str:
    return TOLD + "It was a long way, and nobody spoke of it again. " * 8


def crowd() -> str:
    names = "Romeo Hamlet Brutus Caesar Macbeth Portia Ophelia Kent".split()
    return TOLD + "".join(f"The ring of {name} is cold iron.\n" for name in names)


def changed() -> str:
    return TOLD + "The ring of Juliet is holy water.\n" * 8


FORGET = Exercise(
    name="05b.forget",
    inputs=lambda: [{}],
    reference=lambda: None,
    use=knowing,
    accept=lambda mine, _: mine.every >= 0.9 and mine.few <= 0.1,
    versus=texts.FORGET_VERSUS,
    solution=forgettable,
    why=texts.FORGET_WHY,
    hints=texts.FORGET_HINTS,
    mistakes=(
        Mistake(name="far", answer=distant, thought=texts.FAR),
        Mistake(name="others", answer=crowd, thought=texts.OTHERS),
        Mistake(name="changed", answer=changed, thought=texts.CHANGED),
    ),
)

EXERCISES = (RECALL, SELECT, FORGET)
