"""Lesson 09b: tokens of a step, a schedule that is quick and lossless, and a way over the valley."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from minidsv41.course import littleworld
from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.lessons import said09b as said
from minidsv41.course.littleworld import BLOCK, Score, judge
from minidsv41.course.scheduling import best_of_all, expected_tokens
from minidsv41.serve.schedule import verify_lengths

WORLDS = {"night": (littleworld.night, 1), "noon": (littleworld.noon, 8), "padded": (littleworld.padded, 8)}
Plan = Callable[..., list[int]]


def package(chances: list[list[float]], steps_per_second: Callable[[int], float], search: Plan = verify_lengths):
    """A search of the package, as the exercises call a plan."""
    confidence = torch.tensor(chances, dtype=torch.float64)
    return search(confidence, steps_per_second, most=[BLOCK] * len(chances))


def expected(chances: list[float], verified: int) -> float:
    tokens, reach = 1.0, 1.0
    for chance in chances[:verified]:
        reach *= chance
        tokens += reach
    return tokens


TOKENS = Exercise(
    name="09b.tokens",
    inputs=lambda: [
        dict(chances=chances, verified=n)
        for chances in ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], [0.9, 0.8, 0.1], [0.0, 0.9, 0.9])
        for n in range(4)
    ],
    reference=lambda chances, verified: expected_tokens(torch.tensor([chances], dtype=torch.float64), [verified]),
    solution=expected,
    why=said.WHY_TOKENS,
    hints=said.HINTS_TOKENS,
    mistakes=(
        Mistake(
            name="without the one more",
            answer=lambda chances, verified: expected(chances, verified) - 1,
            thought=said.NO_BONUS,
        ),
        Mistake(
            name="a sum of chances",
            answer=lambda chances, verified: 1 + sum(chances[:verified]),
            thought=said.NO_PRODUCT,
        ),
        Mistake(
            name="all or nothing",
            answer=lambda chances, verified: 1 + verified * float(torch.tensor(chances[:verified]).double().prod()),
            thought=said.ALL_OR_NOTHING,
        ),
        Mistake(name="all of them", answer=lambda chances, verified: 1 + verified, thought=said.ALL_KEPT),
    ),
)


def score(answer: Plan, world: str, **more: Any) -> Score:
    """A plan in one world; it sees chances and speed, and `more`."""
    speed, requests = WORLDS[world]
    return judge(lambda chances: answer(chances=chances, steps_per_second=speed, **more), speed, requests=requests)


@cache
def own_score(world: str) -> Score:
    return score(package, world)


def plan(chances: list[list[float]], steps_per_second: Callable[[int], float]) -> list[int]:
    waiting = []
    for request, row in enumerate(chances):
        reach = 1.0
        for position, chance in enumerate(row):
            reach *= chance
            waiting.append((-reach, position, request))
    lengths = [0] * len(chances)
    rows = tokens = len(chances)
    best = tokens * steps_per_second(rows)
    for minus, _, request in sorted(waiting):
        rows, tokens = rows + 1, tokens - minus
        if tokens * steps_per_second(rows) <= best:
            break
        best = tokens * steps_per_second(rows)
        lengths[request] += 1
    return lengths


PLAN = Exercise(
    name="09b.plan",
    inputs=lambda: [dict(world="night"), dict(world="noon")],
    reference=own_score,
    use=score,
    accept=lambda mine, own: mine.lossless and mine.tokens_per_second >= 0.98 * own.tokens_per_second,
    versus=said.VERSUS,
    solution=plan,
    why=said.WHY_PLAN,
    hints=said.HINTS_PLAN,
    mistakes=(
        Mistake(
            name="the best of all",
            answer=lambda chances, steps_per_second: package(chances, steps_per_second, best_of_all),
            thought=said.BEST_OF_ALL,
        ),
        Mistake(
            name="all of them",
            answer=lambda chances, steps_per_second: [BLOCK] * len(chances),
            thought=said.ALWAYS_ALL,
        ),
        Mistake(name="none", answer=lambda chances, steps_per_second: [0] * len(chances), thought=said.NEVER),
        Mistake(
            name="each alone on the machine",
            answer=lambda chances, steps_per_second: [package([row], steps_per_second)[0] for row in chances],
            thought=said.ALONE,
        ),
    ),
)


def over(chances: list[list[float]], usual: list[float], steps_per_second: Callable[[int], float]) -> list[int]:
    count = len(chances)
    reach = sorted(usual * count, reverse=True)

    def rate(drafts: int) -> float:
        return (count + sum(reach[:drafts])) * steps_per_second(count + drafts)

    drafts = max(range(len(reach) + 1), key=rate)
    lengths, product = [0] * count, [1.0] * count
    for _ in range(drafts):
        reached = [p * row[n] if n < len(row) else -1 for p, row, n in zip(product, chances, lengths, strict=True)]
        request = reached.index(max(reached))
        product[request], lengths[request] = reached[request], lengths[request] + 1
    return lengths


def scores(answer: Plan) -> tuple[Score, Score]:
    usual = littleworld.usual()
    return score(answer, "night", usual=usual), score(answer, "padded", usual=usual)


def searching(search: Plan) -> Plan:
    return lambda chances, usual, steps_per_second: package(chances, steps_per_second, search)


def quicker(mine: tuple[Score, Score], own: tuple[Score, Score]) -> bool:
    return all(s.lossless for s in mine) and mine[1].tokens_per_second > 1.05 * own[1].tokens_per_second


VALLEY = Exercise(
    name="09b.valley",
    inputs=lambda: [{}],
    reference=lambda: (own_score("night"), own_score("padded")),
    use=scores,
    accept=quicker,
    versus=said.VERSUS_VALLEY,
    solution=over,
    why=said.WHY_VALLEY,
    hints=said.HINTS_VALLEY,
    mistakes=(
        Mistake(name="early stop", answer=searching(verify_lengths), thought=said.STUCK),
        Mistake(name="the best of all", answer=searching(best_of_all), thought=said.BEST_OF_ALL),
        Mistake(
            name="all of them",
            answer=lambda chances, usual, steps_per_second: [BLOCK] * len(chances),
            thought=said.FULL_PAGES,
        ),
    ),
)

EXERCISES = (TOKENS, PLAN, VALLEY)
