"""Lesson 08b: who owns a row, how slow a store may be, which rows to keep close."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.lessons import said08b as said
from minidsv41.course.prefetching import longest
from minidsv41.course.residence import ROOM, looked_up, spared
from minidsv41.train.sharded import owner as package_owner


def owner(row: int, rows: int, members: int) -> tuple[int, int]:
    share = -(-rows // members)
    return row // share, row % share


def tables() -> list[dict[str, int]]:
    cases = [(0, 5, 2), (4, 5, 2), (8, 10, 4), (9, 10, 4), (11, 12, 4), (5, 7, 3), (6, 7, 1)]
    return [dict(row=a, rows=b, members=c) for a, b, c in [*cases, (200_000_000, 384_006_168, 8)]]


OWNER = Exercise(
    name="08b.owner",
    inputs=tables,
    reference=lambda row, rows, members: package_owner(row, rows, members),
    solution=owner,
    why=said.OWNER_WHY,
    hints=said.OWNER_HINTS,
    mistakes=(
        Mistake(
            name="rounded down",
            answer=lambda row, rows, members: divmod(row, rows // members),
            thought=said.FLOOR,
        ),
        Mistake(
            name="dealt out", answer=lambda row, rows, members: (row % members, row // members), thought=said.ROBIN
        ),
        Mistake(name="reversed", answer=lambda **table: owner(**table)[::-1], thought=said.SWAPPED),
        Mistake(
            name="number of the whole table",
            answer=lambda row, **rest: (owner(row, **rest)[0], row),
            thought=said.GLOBAL,
        ),
    ),
)


def longest_latency(blocks: list[float], layers: list[int], transfer: float) -> float:
    return min(sum(blocks[:layer]) / (k + 1) for k, layer in enumerate(layers)) - transfer


def least_of(slack: Callable[[Sequence[float], int, int, float], float]) -> Callable[..., float]:
    """A wrong answer: the smallest of slack(blocks, layer, k, transfer) over all tables."""

    def answer(blocks: list[float], layers: list[int], transfer: float) -> float:
        return min(slack(blocks, layer, k, transfer) for k, layer in enumerate(layers))

    return answer


def passes() -> list[dict]:
    """Either table may be the tighter one; then random ones."""
    cases = [
        ([4.0, 1, 1, 1], [1, 2], 0.5),
        ([1.0, 2, 3], [1], 0.25),
        ([4.0, 0.5, 1], [1, 2], 1.0),
        ([2.0] * 16, [1, 14], 0.5),
    ]
    g = torch.Generator().manual_seed(8)
    for _ in range(4):
        blocks = [round(x, 2) for x in (1 + 3 * torch.rand(6, generator=g)).tolist()]
        cases.append((blocks, [1, int(torch.randint(2, 6, (), generator=g))], 0.3))
    cases.append(([6.0, 1, 1, 2, 2, 1], [1, 2, 4], 0.5))
    return [dict(blocks=blocks, layers=layers, transfer=transfer) for blocks, layers, transfer in cases]


LATENCY = Exercise(
    name="08b.latency",
    inputs=passes,
    reference=longest,
    solution=longest_latency,
    why=said.LATENCY_WHY,
    hints=said.LATENCY_HINTS,
    mistakes=(
        Mistake(name="both at once", answer=least_of(lambda b, n, k, t: sum(b[:n]) - t), thought=said.PARALLEL),
        Mistake(
            name="its own block hides too",
            answer=least_of(lambda b, n, k, t: sum(b[: n + 1]) / (k + 1) - t),
            thought=said.OWN_BLOCK,
        ),
        Mistake(
            name="without the transfer",
            answer=least_of(lambda b, n, k, t: sum(b[:n]) / (k + 1)),
            thought=said.NO_TRANSFER,
        ),
        Mistake(
            name="one latency for all",
            answer=least_of(lambda b, n, k, t: sum(b[:n]) - (k + 1) * t),
            thought=said.ONCE,
        ),
    ),
)


def first_come(seen: Tensor, room: int) -> list[int]:
    return list(dict.fromkeys(seen.flatten().tolist()))[:room]


def resident(seen: Tensor, room: int) -> Tensor:
    rows, counts = seen.unique(return_counts=True)
    return rows[counts.argsort(descending=True, stable=True)][:room]


RESIDENT = Exercise(
    name="08b.resident",
    inputs=lambda: [{}],
    reference=lambda: spared(first_come(looked_up()[0], ROOM)),
    use=lambda answer: spared(answer(looked_up()[0], ROOM)),
    accept=lambda value, base: value >= max(10, base),
    versus=said.RESIDENT_VERSUS,
    solution=resident,
    why=said.RESIDENT_WHY,
    hints=said.RESIDENT_HINTS,
    mistakes=(
        Mistake(name="latest", answer=lambda seen, room: first_come(seen.flip(0), room), thought=said.LATEST),
        Mistake(name="first", answer=first_come, thought=said.FIRST),
        Mistake(name="two-token phrases", answer=lambda seen, room: resident(seen[:, :8], room), thought=said.BIGRAMS),
    ),
)

EXERCISES = (OWNER, LATENCY, RESIDENT)
