"""Lesson 05: how large a pool must be for its builder, what it can hide from others, and another rule to fill it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minidsv41 import paths
from minidsv41.checkpoint import load
from minidsv41.course import funnel
from minidsv41.course.exercise import Exercise, Mistake, Todo
from minidsv41.course.funnel import Outcome, choose, outside, pool_of, tried
from minidsv41.course.lessons import said05 as said
from minidsv41.course.mass import Mass, attention_mass
from minidsv41.ops import Pool


def needed(k: int, size: int, entries: int) -> int:
    """The least pool that holds the builder's own k in the worst case: one entry in each block, oldest blocks first."""
    blocks = -(-entries // size)
    best = torch.full((1, entries), -1.0)
    places = [block * size for block in range(min(k, blocks))]
    best[0, places] = 1.0
    own = choose(best, len(places))
    return next(p for p in range(1, blocks + 1) if not outside(own, pool_of(best, p, size)).any())


def blocks_needed(k: int, size: int, entries: int) -> int:
    return min(k + 1, -(-entries // size))


NEEDED = Exercise(
    name="05.blocks_needed",
    inputs=lambda: [
        dict(k=k, size=size, entries=n)
        for k, size, n in [(1, 1, 1), (1, 4, 9), (3, 4, 40), (8, 8, 400), (5, 2, 6), (12, 4, 30), (4, 1, 9), (2, 8, 7)]
    ],
    reference=needed,
    solution=blocks_needed,
    why=said.NEEDED_WHY,
    hints=said.NEEDED_HINTS,
    mistakes=(
        Mistake(name="no pin", answer=lambda k, size, entries: min(k, -(-entries // size)), thought=said.NO_PIN),
        Mistake(name="no end", answer=lambda k, size, entries: k + 1, thought=said.NO_END),
        Mistake(name="packed", answer=lambda k, size, entries: -(-k // size), thought=said.PACKED),
        Mistake(name="the rule", answer=lambda k, size, entries: -(-(k - 1) // size) + 1, thought=said.THE_RULE),
    ),
)

Keys = Callable[..., Tensor]


def questions() -> Iterator[dict[str, Any]]:
    for seed, (n, blocks, size) in enumerate([(24, 2, 4), (40, 3, 4), (64, 5, 8), (97, 12, 8)]):
        own, later = torch.randn(2, 6, generator=torch.Generator().manual_seed(seed)).double()
        yield dict(own=own, later=later, entries=n, blocks=blocks, size=size)


def asked(keys: Keys, **question: Any) -> Outcome | Todo:
    """What the package makes of the learner's keys. Raises ValueError for keys of another shape."""
    made, shape = keys(**question), (question["entries"], len(question["own"]))
    if isinstance(made, Todo):
        return made
    if not isinstance(made, Tensor):
        raise TypeError(f"keys are a {type(made).__name__}: must be a tensor {list(shape)}")
    if tuple(made.shape) != shape:
        raise ValueError(f"keys of shape {list(made.shape)}: must be {list(shape)}, a key an entry")
    return tried(made.double(), question["own"], question["later"], blocks=question["blocks"], size=question["size"])


def outside_keys(own: Tensor, later: Tensor, entries: int, blocks: int, size: int) -> Tensor:
    only_own = own - (own @ later) / (later @ later) * later
    only_later = later - (later @ own) / (own @ own) * own
    keys = only_own.repeat(entries, 1)
    keys[:size] = 0
    keys[0] = only_later
    return keys


def placed(target: Callable[..., Tensor], *, at: int = 0, neighbour: int | None = None, rest: bool = True) -> Keys:
    """A wrong answer: the target's key and place, an entry that `own` likes twice as much, others liked or nothing."""

    def keys(own: Tensor, later: Tensor, entries: int, blocks: int, size: int) -> Tensor:
        made = outside_keys(own, later, entries, blocks, size)
        liked = made[-1]
        if not rest:
            made = torch.zeros_like(made)
        made[0] = 0
        made[at] = target(own, later)
        if neighbour is not None:
            made[neighbour] = 2 * liked
        return made

    return keys


def apart(own: Tensor, later: Tensor) -> Tensor:
    return later - (later @ own) / (own @ own) * own


OUTSIDE = Exercise(
    name="05.outside",
    inputs=lambda: list(questions()),
    reference=lambda **question: asked(outside_keys, **question),
    use=asked,
    accept=lambda mine, right: mine.lost,
    versus=said.OUTSIDE_VERSUS,
    solution=outside_keys,
    why=said.OUTSIDE_WHY,
    hints=said.OUTSIDE_HINTS,
    mistakes=(
        Mistake(name="newest", answer=placed(apart, at=-1), thought=said.NEWEST),
        Mistake(name="others nothing", answer=placed(apart, rest=False), thought=said.OTHERS_NOTHING),
        Mistake(name="strong neighbours", answer=placed(apart, at=1, neighbour=0), thought=said.NEIGHBOURS),
        Mistake(name="away from own", answer=placed(lambda own, later: -own), thought=said.AWAY),
    ),
)

Rule = Callable[[Tensor], Tensor]
K, BLOCKS, SIZE = 32, 12, 8


@cache
def sequences() -> list[tuple[Tensor, Tensor, Mass]]:
    """Scores of the builder and of the later layer, and the later one's mass, for two sequences with lookups."""
    model = load(paths.checkpoint_dir("recall"), dtype=torch.float64).requires_grad_(False)
    source, later = funnel.pooled_layers(model.config)
    found = []
    for step in (0, 3):
        trace = model.trace(funnel.lookups(step=step).tokens[0, :-1])
        scores = (trace[f"L{layer}.idx.scores"] for layer in (source, later))
        found.append((*scores, attention_mass(model, trace, later)))
    return found


def kept(rule: Rule) -> Any:
    """Share of the later layer's attention mass that it can keep if blocks are ranked by rule(scores [T, B, size])."""
    if isinstance(first := rule(torch.zeros(1, 2, SIZE).double()), Todo):
        return first
    shares = []
    for source, later, mass in sequences():
        ranks = rule(blocks := source.unflatten(-1, (-1, SIZE)))
        if not isinstance(ranks, Tensor) or ranks.shape != blocks.shape[:2]:
            found = list(ranks.shape) if isinstance(ranks, Tensor) else type(ranks).__name__
            raise ValueError(f"ranks are {found}: must be a tensor {list(blocks.shape[:2])}, a number a block")
        visible = (source > -torch.inf).sum(-1)
        newest = ((visible - 1) // SIZE)[:, None] == torch.arange(ranks.shape[-1])
        hidden = torch.arange(ranks.shape[-1]) * SIZE >= visible[:, None]
        ranks = ranks.nan_to_num(nan=-torch.inf).masked_fill(newest, torch.inf).masked_fill(hidden, -torch.inf)
        inside = Pool(choose(ranks, BLOCKS), SIZE).mask(later.shape[-1])
        shares.append(mass.recall(choose(later, K, inside))[len(later) // 2 :].mean())
    return float(torch.stack(shares).mean())


def ranked(scores: Tensor) -> Tensor:
    seen = scores > -torch.inf
    return scores.masked_fill(~seen, 0).sum(-1) / seen.sum(-1)


RANK = Exercise(
    name="05.rank",
    inputs=lambda: [{}],
    reference=lambda: kept(lambda scores: scores.amax(-1)),
    use=kept,
    accept=lambda mine, maximum: mine > 1.05 * maximum,
    versus=said.RANK_VERSUS,
    solution=ranked,
    why=said.RANK_WHY,
    hints=said.RANK_HINTS,
    mistakes=(
        Mistake(name="maximum", answer=lambda scores: scores.amax(-1), thought=said.MAXIMUM),
        Mistake(name="minimum", answer=lambda scores: scores.amin(-1), thought=said.MINIMUM),
        Mistake(
            name="recent",
            answer=lambda scores: torch.arange(scores.shape[1]).expand(scores.shape[:2]).double(),
            thought=said.RECENT,
        ),
    ),
)

EXERCISES = (NEEDED, OUTSIDE, RANK)
