"""Lesson 11: where windows and entries weigh the same, a machine and what binds it, and a schedule that moves it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any

from minidsv41.config import ModelConfig
from minidsv41.course.exercise import Exercise, Mistake, call
from minidsv41.course.lessons import said11 as texts
from minidsv41.course.lessons import slips11 as slips
from minidsv41.course.lessons.slips11 import planned_machine
from minidsv41.course.sharing import mean_distance, scheduled
from minidsv41.ledger.deployed import Deployed
from minidsv41.ledger.machines import machine
from minidsv41.ledger.parts import HeadRows, Windows
from minidsv41.ledger.plan import Order, plan, planned
from minidsv41.ledger.planned import V41

FLASH = ModelConfig.preset("flash")
MOST, FASTER = 7, Fraction(13, 10)  # layers of mean distance; times the release's tokens a second
RELEASE = ("0x2 2x18 1x20", "2 8 14 20", "2 8 14 20 24 28 32 36")


def even(layers: int, window: int, row: int, per_token: int) -> int:
    """Rows of `per_token` bytes (as one head's keys and values of a byte each, in half as many) beside windows."""
    grows = HeadRows(layers=1, kv_heads=1, head_dim=per_token // 2, bytes=1)
    parts = (grows, Windows(layers=layers, window=window, row=row))
    return ceil(Deployed(name="", layout="", parts=parts).crossover.value)


def crossover(layers: int, window: int, row: int, per_token: int) -> int:
    return -(-layers * window * row // per_token)


CROSSOVER = Exercise(
    name="11.crossover",
    inputs=lambda: [
        dict(layers=2, window=4, row=3, per_token=4),
        dict(layers=2, window=4, row=3, per_token=10),
        dict(layers=8, window=32, row=66, per_token=106),
        dict(layers=43, window=128, row=584, per_token=3514),
        dict(layers=40, window=128, row=528, per_token=890),
    ],
    reference=even,
    solution=crossover,
    why=texts.CROSSOVER_WHY,
    hints=texts.CROSSOVER_HINTS,
    mistakes=(
        Mistake(
            name="one window",
            answer=lambda layers, window, row, per_token: crossover(1, window, row, per_token),
            thought=texts.ONE_WINDOW,
        ),
        Mistake(
            name="rounded down",
            answer=lambda layers, window, row, per_token: layers * window * row // per_token,
            thought=texts.ROUNDED_DOWN,
        ),
        Mistake(
            name="one too far",
            answer=lambda layers, window, row, per_token: layers * window * row // per_token + 1,
            thought=texts.ONE_TOO_FAR,
        ),
        Mistake(
            name="one row",
            answer=lambda layers, window, row, per_token: crossover(layers, 1, row, per_token),
            thought=texts.ONE_ROW,
        ),
    ),
)


def machine_by_hand(context: int, sessions: int) -> tuple[int, str]:
    model, gpu = planned("flash"), machine("H200")
    held = sum(int(line) for line in model.session(context))
    gpus = ceil((int(model.weights()) + sessions * held) / (0.9 * gpu.memory))
    met = 1 - (1 - 6 / 384) ** sessions  # share of a layer's experts that somebody chooses
    read = {
        "dense weights": int(model.dense_read()),
        "routed experts": 40 * 384 * met * int(model.experts().size),
        "cache": sessions * sum(int(line) for line in model.reads(context)),
    }
    flops = sessions * model.step_flops(context, fp8=True).value
    if flops / gpu.flops > sum(read.values()) / gpu.bandwidth:
        return gpus, "arithmetic"
    return gpus, max(read, key=read.get)


PLAN = Exercise(
    name="11.plan",
    inputs=lambda: [
        dict(context=4096, sessions=1),
        dict(context=131_072, sessions=3000),
        dict(context=1_048_576, sessions=1000),
        dict(context=1_048_576, sessions=3000),
        dict(context=4096, sessions=20_000),
        dict(context=131_072, sessions=20_000),
        dict(context=1024, sessions=115_000),
    ],
    reference=planned_machine,
    solution=machine_by_hand,
    why=texts.PLAN_WHY,
    hints=texts.PLAN_HINTS,
    mistakes=(
        Mistake(name="no reserve", answer=slips.no_reserve, thought=texts.NO_RESERVE),
        Mistake(name="growing part only", answer=slips.growing_only, thought=texts.GROWING_ONLY),
        Mistake(name="bare windows", answer=slips.bare_windows, thought=texts.BARE_WINDOWS),
        Mistake(name="tables too", answer=slips.tables_too, thought=texts.TABLES_TOO),
        Mistake(name="plain products", answer=slips.plain_products, thought=texts.PLAIN_PRODUCTS),
        Mistake(name="own experts", answer=slips.own_experts, thought=texts.OWN_EXPERTS),
        Mistake(name="largest read", answer=slips.largest_read, thought=texts.LARGEST_READ),
        Mistake(name="all experts", answer=slips.all_experts, thought=texts.ALL_EXPERTS),
    ),
)


class TooFar(ValueError):
    """A schedule whose readers stand too far from their owners."""


@dataclass(frozen=True)
class Speed:
    """Tokens a second of all sessions that run, and mean distance in layers."""

    tokens: float
    distance: Fraction

    def __repr__(self) -> str:
        return f"{self.tokens:,.0f} tokens/s in all, mean distance {float(self.distance):.2f} layers"


def speed(answer: Any) -> Speed:
    """8 H200, sessions of 1,048,576 tokens, 1,000 of them wanted."""
    c = scheduled(*call(answer), base=FLASH)
    if (distance := mean_distance(c)) > MOST:
        raise TooFar(f"mean distance {float(distance):.2f} layers: at most {MOST} are allowed")
    if none := [layer for layer in range(2, c.num_hidden_layers) if c.ratio(layer) == 0]:
        raise TooFar(f"layers {none} read no entries; only 0 and 1 may")
    found = plan(Order(model=V41("yours", c), context=1_048_576, sessions=1000))
    return Speed(float(found.step["tokens_per_second_of_all"].value), distance)


@cache
def released() -> Speed:
    return speed(lambda: RELEASE)


def moved() -> tuple[str, str, str]:
    return "0x2 2x38", "2 11 20", "2 11 20 24 28 32 36"


MOVE = Exercise(
    name="11.move",
    inputs=lambda: [{}],
    reference=released,
    use=speed,
    accept=lambda mine, right: mine.tokens >= FASTER * right.tokens,
    versus=texts.MOVE_VERSUS,
    solution=moved,
    why=texts.MOVE_WHY,
    hints=texts.MOVE_HINTS,
    mistakes=(
        Mistake(name="fewer choosers", answer=lambda: (*RELEASE[:2], "2 8 14 20"), thought=texts.FEWER_CHOOSERS),
        Mistake(
            name="one owner less",
            answer=lambda: (RELEASE[0], "2 11 20", "2 11 20 24 28 32 36"),
            thought=texts.ONE_LESS,
        ),
        Mistake(name="pooled only", answer=lambda: ("0x2 2x38", *RELEASE[1:]), thought=texts.POOLED_ONLY),
    ),
)

EXERCISES = (CROSSOVER, PLAN, MOVE)
