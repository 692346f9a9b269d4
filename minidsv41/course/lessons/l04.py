"""Lesson 04: entries of any schedule, the best one under a budget, and who should choose."""

from __future__ import annotations

from functools import cache
from typing import Any

from minidsv41.config import ModelConfig
from minidsv41.course.exercise import Exercise, Mistake, Todo, call
from minidsv41.course.lessons import said04 as texts
from minidsv41.course.sharing import OverBudget, Score, allowed, judged, keys_read, mean_distance, scheduled
from minidsv41.ledger import bytes as books

TOY, BUDGET = ModelConfig.preset("toy"), 600
CONTEXT, KEYS_BUDGET = 1_048_576, 200_000_000  # tokens; bytes of index keys a decode step may read
RELEASE = ("0x2 2x18 1x20", "2 8 14 20")


def counted(ratios: tuple[int, ...], owners: tuple[int, ...]) -> float:
    """The ledger's count, of a real config."""
    base = TOY if len(ratios) == TOY.num_hidden_layers else ModelConfig.preset("flash")
    return float(books.entries_per_token(scheduled(ratios, owners, base=base)).value)


def entries(ratios: tuple[int, ...], owners: tuple[int, ...]) -> float:
    return sum(1 / ratios[owner] for owner in owners)


ENTRIES = Exercise(
    name="04.entries",
    inputs=lambda: [
        dict(ratios=(0, 2, 2, 2, 1, 1, 1, 1), owners=(1, 4)),
        dict(ratios=(0, 2, 2, 2, 2, 2, 2, 2), owners=(1,)),
        dict(ratios=(1, 1, 1, 1, 2, 2, 1, 1), owners=(0, 4, 6)),
        dict(ratios=(0, 0, 1, 1, 2, 2, 2, 2), owners=(2, 4, 5)),
        dict(ratios=(0,) * 2 + (2,) * 18 + (1,) * 20, owners=(2, 8, 14, 20)),
    ],
    reference=counted,
    solution=entries,
    why=texts.ENTRIES_WHY,
    hints=texts.ENTRIES_HINTS,
    mistakes=(
        Mistake(
            name="every layer",
            answer=lambda ratios, owners: sum(1 / m for m in ratios if m),
            thought=texts.EVERY_LAYER,
        ),
        Mistake(name="one each", answer=lambda ratios, owners: len(owners), thought=texts.ONE_EACH),
        Mistake(
            name="tokens an entry",
            answer=lambda ratios, owners: sum(ratios[owner] for owner in owners),
            thought=texts.TOKENS_AN_ENTRY,
        ),
    ),
)


def schedule() -> tuple[str, str]:
    return "0x2 2x38", "2 11 20"


@cache
def best() -> Score:
    return allowed(BUDGET)[0][0]


def design(answer: Any) -> Score | Todo:
    found = call(answer)
    if isinstance(found, Todo):
        return found
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise ValueError(f"{found!r}: two texts are asked for, ratios and owners")
    ratios, owners = found
    return judged(scheduled(ratios, owners), BUDGET)


SCHEDULE = Exercise(
    name="04.schedule",
    inputs=lambda: [{}],
    reference=best,
    use=design,
    accept=lambda mine, right: mine.distance <= right.distance,
    versus=texts.SCHEDULE_VERSUS,
    solution=schedule,
    why=texts.SCHEDULE_WHY,
    hints=texts.SCHEDULE_HINTS,
    mistakes=(
        Mistake(name="refused by the config", answer=lambda: ("0x2 2x9 1x29", "2 20"), thought=texts.REFUSED),
        Mistake(name="over the budget", answer=lambda: RELEASE, thought=texts.OVER),
        Mistake(name="windows to save bytes", answer=lambda: ("0x20 1x20", "20"), thought=texts.WINDOWS),
        Mistake(name="even thirds", answer=lambda: ("0x2 2x38", "2 15 28"), thought=texts.THIRDS),
        Mistake(name="the decoder unpooled", answer=lambda: ("0x2 2x18 1x20", "2 20"), thought=texts.UNPOOLED),
        Mistake(name="the release less one", answer=lambda: ("0x2 2x38", "2 8 20"), thought=texts.LESS_ONE),
    ),
)


def choosers() -> str:
    return "2 8 14 20-39"


def chosen(answer: Any) -> Score:
    """The released owners with other choosers."""
    c = scheduled(*RELEASE, call(answer))
    size = keys_read(c, CONTEXT)
    if size > KEYS_BUDGET:
        raise OverBudget(f"{size / 1e6:,.1f} MB of index keys a step: the budget is {KEYS_BUDGET / 1e6:,.0f}")
    return Score(size / 1e6, "MB of keys a step", mean_distance(c, of="index_owner"))


@cache
def best_choosers() -> Score:
    """Cheapest choosers first, while they fit. One in the encoder costs more than all in the decoder, so none is
    given up for it."""
    have = scheduled(*RELEASE).kv_source_layer_ids
    for layer in sorted(set(range(3, 40)) - set(have), key=step_cost):
        if step_cost(*have, layer) <= KEYS_BUDGET:
            have = (*have, layer)
    return chosen(sorted(have))


def step_cost(*layers: int) -> int:
    """Bytes of keys that a step reads if these layers choose, owners in any case."""
    return keys_read(scheduled(*RELEASE, sorted({*layers, *scheduled(*RELEASE).kv_source_layer_ids})), CONTEXT)


CHOOSERS = Exercise(
    name="04.choosers",
    inputs=lambda: [{}],
    reference=best_choosers,
    use=chosen,
    accept=lambda mine, right: mine.distance <= right.distance,
    versus=texts.CHOOSERS_VERSUS,
    solution=choosers,
    why=texts.CHOOSERS_WHY,
    hints=texts.CHOOSERS_HINTS,
    mistakes=(
        Mistake(name="owners that do not choose", answer=lambda: "20-39", thought=texts.OWNERS_CHOOSE),
        Mistake(name="one more in the encoder", answer=lambda: "2 5 8 11 14 17 20", thought=texts.ENCODER_CHOOSER),
        Mistake(name="as released", answer=lambda: "2 8 14 20 24 28 32 36", thought=texts.AS_RELEASED),
    ),
)

EXERCISES = (ENTRIES, SCHEDULE, CHOOSERS)
