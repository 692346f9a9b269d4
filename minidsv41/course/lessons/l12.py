"""Lesson 12: bytes of a seam, the limit that binds, programs that race, and a tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import ceil
from random import Random
from types import SimpleNamespace
from typing import Any

from minidsv41.config import ModelConfig
from minidsv41.course import races, tiling
from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.lessons import said12 as said
from minidsv41.course.limits import Card, binds, h200, limits, released
from minidsv41.course.records import record
from minidsv41.ledger.operations import seam

FLASH = ModelConfig.preset("flash")


def counted(tokens: int, streams: int, width: int) -> int:
    """The ledger's bytes of a seam in a model of that shape."""
    shape = SimpleNamespace(hc_mult=streams, hidden_size=width)
    return seam(shape).bytes(tokens)


def seam_bytes(tokens: int, streams: int, width: int) -> int:
    rows = tokens * (2 * streams + 2) * width * 2
    predictor = streams * (streams + 2) * streams * width * 4
    return rows + predictor


def slip(rows: Callable[[int], int] = lambda n: 2 * n + 2, size: int = 4, once: bool = True) -> Callable:
    """seam_bytes with one thing wrong. size: bytes of a weight; once: whether the predictor is read once."""

    def answer(tokens: int, streams: int, width: int) -> int:
        predictor = streams * (streams + 2) * streams * width * size
        return tokens * rows(streams) * width * 2 + predictor * (1 if once else tokens)

    return answer


BYTES = Exercise(
    name="12.bytes",
    inputs=lambda: [
        dict(tokens=tokens, streams=streams, width=width)
        for tokens, streams, width in ((1, 2, 8), (3, 4, 64), (1, 4, 5120), (128, 4, 5120))
    ],
    reference=counted,
    solution=seam_bytes,
    why=said.BYTES_WHY,
    hints=said.BYTES_HINTS,
    mistakes=(
        Mistake(name="no weights", answer=slip(size=0), thought=said.NO_WEIGHTS),
        Mistake(name="weights by token", answer=slip(once=False), thought=said.EVERY_TOKEN),
        Mistake(name="three launches", answer=slip(lambda n: 4 * n + 2), thought=said.SEPARATE),
        Mistake(name="weights in BF16", answer=slip(size=2), thought=said.NARROW),
    ),
)

Shape = dict[str, Any]


def shape(name: str, tokens: int, start: str) -> Shape:
    """What the learner is given of one call: bytes once and for each token, FLOP of each, µs of a launch."""
    work = released()[name]
    once, each, flops = (float(line.value) for line in (work.once, work.each, work.flops))
    return dict(operation=name, tokens=tokens, once=once, each=each, flops=flops, launch=h200(start).launch)


def clear(name: str, tokens: int, start: str) -> bool:
    """Whether the longest limit is a quarter longer than the next."""
    *_, second, first = sorted(limits(released()[name], tokens, h200(start)).values())
    return first > 1.25 * second


def drawn() -> list[Shape]:
    """Six calls, two for each limit; one that the predictor's weights decide, one that FP32 would turn."""
    random = Random(12)
    pool = [
        call
        for call in product(released(), (1, 4, 16, 64, 256, 1024, 4096, 32768), ("a graph", "Python"))
        if clear(*call)
    ]
    found = []
    for limit in ("memory", "arithmetic", "launch"):
        own = [call for call in pool if binds(released()[call[0]], call[1], h200(call[2])) == limit]
        must = {"memory": ("seam", 16, "a graph"), "launch": ("seam", 64, "Python")}.get(limit)
        rest = random.sample([call for call in own if call != must], 1 if must else 2)
        found += [*([must] if must else []), *rest]
    return [shape(*call) for call in found]


def bound(operation: str, tokens: int, once: float, each: float, flops: float, launch: float) -> str:
    on = h200()
    card = Card(copy=on.copy, products=on.products, launch=launch)
    return card.binds(once + tokens * each, tokens * flops)


def limiter(operation: str, tokens: int, once: float, each: float, flops: float, launch: float) -> str:
    times = {
        "memory": (once + tokens * each) / 4246e3,  # B / (B/µs)
        "arithmetic": tokens * flops / 782e6,
        "launch": launch,
    }
    return max(times, key=times.get)


def thinking(**change: Any) -> Callable[..., str]:
    """`limiter` with one thing wrong: copy, products or launch of the card, or the bytes read once."""

    def answer(operation: str, tokens: int, once: float, each: float, flops: float, launch: float) -> str:
        card = Card(**(dict(copy=4246, products=782, launch=launch) | {k: v for k, v in change.items() if k != "once"}))
        return card.binds(change.get("once", once) + tokens * each, tokens * flops)

    return answer


def without_matrix_unit(**given: Any) -> str:
    """`limiter` at the card's recorded rate of FP32."""
    return thinking(products=record("peers_h200")["ceilings"]["fp32_tflops"])(**given)


LIMITER = Exercise(
    name="12.limiter",
    inputs=drawn,
    reference=bound,
    solution=limiter,
    why=said.LIMITER_WHY,
    hints=said.LIMITER_HINTS,
    mistakes=(
        Mistake(name="no launch", answer=thinking(launch=0), thought=said.NO_LAUNCH),
        Mistake(name="FP32 rate", answer=without_matrix_unit, thought=said.FP32),
        Mistake(name="no weights", answer=thinking(once=0), thought=said.LIMITER_NO_WEIGHTS),
    ),
)


def racing() -> set[str]:
    return {"shared row", "atomic add of floats", "largest so far", "counts, then writes"}


RACE = Exercise(
    name="12.race",
    inputs=lambda: [{}],
    reference=lambda: set(races.racing()),
    use=lambda answer: set(answer()) if callable(answer) else set(answer),
    solution=racing,
    why=said.RACE_WHY,
    hints=said.RACE_HINTS,
    mistakes=(
        Mistake(
            name="atomics are safe", answer=lambda: racing() - {"atomic add of floats"}, thought=said.ATOMICS_ROUND
        ),
        Mistake(
            name="counting is enough", answer=lambda: racing() - {"counts, then writes"}, thought=said.COUNTED_EARLY
        ),
        Mistake(name="largest is safe", answer=lambda: racing() - {"largest so far"}, thought=said.LOST_MAXIMUM),
        Mistake(name="same value races", answer=lambda: racing() | {"same value"}, thought=said.SAME_VALUE),
        Mistake(name="the last one races", answer=lambda: racing() | {"the last one adds"}, thought=said.LAST_IS_SAFE),
    ),
)

SHAPES = (1, 16, 128, 512, 2048, 3000, 4096, 32768)
SLACK = 1.1


@dataclass(frozen=True)
class Chosen:
    """The worst ratio of a learner's modelled time to the best, and the number of tokens where it is met."""

    ratio: float
    tokens: int

    def __repr__(self) -> str:
        return f"up to {self.ratio:.2f} times the best (at {self.tokens:,} tokens)"


def judged(answer: Callable[[int], tuple[int, int]]) -> Chosen:
    """Raises NoRoom for a tile that does not fit."""
    found = [(tiling.microseconds(T, tiling.Tile(*answer(T))) / tiling.best(T)[1], T) for T in SHAPES]
    return Chosen(*max(found))


def tile(tokens: int) -> tuple[int, int]:
    def cost(choice: tuple[int, int]) -> float:
        rows, splits = choice
        walked = ceil(ceil(tokens / rows) * splits / 132) * ceil(80 / splits)  # blocks, by the busiest multiprocessor
        streams, weights = min(tokens, rows) * 102_400, 1_966_080  # bytes of all 80 blocks
        walk = walked / 80 * 132 * max(streams / 4246e3, (streams + weights) / 5500e3)
        return walk + (splits > 1) * (0.5 + 256 * tokens * splits / 4246e3)

    return min(((rows, splits) for rows in (16, 32, 64, 128) for splits in range(1, 81)), key=cost)


TILE = Exercise(
    name="12.tile",
    inputs=lambda: [{}],
    reference=lambda: Chosen(SLACK, 0),
    use=judged,
    accept=lambda mine, allowed: mine.ratio <= allowed.ratio,
    versus=said.TILE_VERSUS,
    solution=tile,
    why=said.TILE_WHY,
    hints=said.TILE_HINTS,
    mistakes=(
        Mistake(name="small and whole", answer=lambda tokens: (16, 1), thought=said.IDLE),
        Mistake(name="split always", answer=lambda tokens: (16, 80), thought=said.REREAD),
        Mistake(name="large always", answer=lambda tokens: (128, 1), thought=said.FEW),
        Mistake(name="too large", answer=lambda tokens: (256, 1), thought=said.TOO_LARGE),
    ),
)

EXERCISES = (BYTES, LIMITER, RACE, TILE)
