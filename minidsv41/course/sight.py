"""The slot for a selector of one's own: what it may look at, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41.course.exercise import Todo, Untouched
from minidsv41.course.sparsity import Group, Point
from minidsv41.ledger import bytes as books

STEPS = 24  # last queries of each prompt, asked in order


@dataclass
class Sight:
    """What a selector sees of one decode step.

    step: counts queries from 0. visible: entries 0 .. visible - 1 may be read. k: the most that may be chosen.
    previous: what it chose a step before, empty at step 0. `scores` opens index keys; each key is paid once a step.
    """

    step: int
    visible: int
    k: int
    previous: list[int]
    _scores: Tensor
    _opened: set[int]

    def scores(self, entries: Iterable[int]) -> dict[int, float]:
        """Index scores of these entries. Raises IndexError for one that is not visible."""
        wanted = [int(e) for e in entries]
        for e in wanted:
            if not 0 <= e < self.visible:
                raise IndexError(f"entry {e}: visible are 0 to {self.visible - 1}")
        self._opened.update(wanted)
        return {e: self._scores[e].item() for e in wanted}


Selector = Callable[[Sight], Iterable[int]]


def scored(groups: Mapping[str, Group], select: Selector, k: int) -> dict[str, Point]:
    """A Point for each prompt: recall over the asked of its last STEPS queries, bytes over all of them.

    Raises IndexError for an entry that is not visible, ValueError for more than k.
    """
    return {name: one(g, select, k) for name, g in groups.items()}


def one(g: Group, select: Selector, k: int) -> Point:
    length, layers = len(g.task.ids), len(g.masses)
    key, entry = int(books.index_entry_bytes(g.config)), int(books.main_entry_bytes(g.config))
    topk, size, previous = torch.full((length, k), -1), 0, []
    for step, query in enumerate(range(length - STEPS, length)):
        sight = Sight(step, int(g.visible[query]), k, previous, g.scores[query], set())
        previous = sorted({int(e) for e in select(sight)})
        check(previous, sight)
        topk[query, : len(previous)] = torch.tensor(previous, dtype=torch.int64)
        size += len(sight._opened) * key + len(previous) * layers * entry
    asked = [q for q in g.task.asked if q >= length - STEPS]
    return Point(size / STEPS, g.mass.recall(topk)[asked].mean().item())


def check(chosen: list[int], sight: Sight) -> None:
    if len(chosen) > sight.k:
        raise ValueError(f"{len(chosen)} entries chosen: at most {sight.k} may be")
    if chosen and not 0 <= chosen[0] <= chosen[-1] < sight.visible:
        raise IndexError(f"entries {chosen[0]} to {chosen[-1]} chosen: visible are 0 to {sight.visible - 1}")


def overall(points: Mapping[str, Point]) -> Point:
    """The mean of all prompts, each counted once."""
    n = len(points)
    return Point(sum(p.size for p in points.values()) / n, sum(p.recall for p in points.values()) / n)


def everything(sight: Sight) -> list[int]:
    """The package's choice: open every key, take the k highest."""
    found = sight.scores(range(sight.visible))
    return sorted(found, key=lambda e: -found[e])[: sight.k]


def untouched(select: Selector) -> bool:
    """Whether a selector is still the starter of the lesson."""
    try:
        return isinstance(select(Sight(0, 1, 1, [], torch.zeros(1), set())), Todo)
    except Untouched:
        return True
    except Exception:
        return False
