"""Lesson 03: how far one state reaches, what each layer must run for it, and a better plan for the same cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from minidsv41 import paths
from minidsv41.cache import replay
from minidsv41.checkpoint import load
from minidsv41.course import staircase
from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.hit import divergence, exactly, replayed
from minidsv41.course.lessons import said03 as said
from minidsv41.model import Model
from minidsv41.replaced import replaced
from minidsv41.tokens import load_tokenizer

SIZES = [(1, 1), (1, 5), (2, 2), (2, 4), (3, 4), (4, 3), (5, 8), (8, 32), (40, 128)]


def halo(window: int, layers: int) -> int:
    return layers * (window - 1) + 1


HALO = Exercise(
    name="03.halo",
    inputs=lambda: [dict(window=w, layers=n) for n, w in SIZES],
    reference=lambda window, layers: staircase.reach(layers, window)[0],
    solution=halo,
    why=said.HALO_WHY,
    hints=said.HALO_HINTS,
    mistakes=(
        Mistake(name="L W", answer=lambda window, layers: layers * window, thought=said.COUNTED_TWICE),
        Mistake(name="one layer", answer=lambda window, layers: window, thought=said.ONE_LAYER),
        Mistake(name="not itself", answer=lambda window, layers: layers * (window - 1), thought=said.NOT_ITSELF),
        Mistake(name="a power", answer=lambda window, layers: window**layers, thought=said.MULTIPLIED),
    ),
)


def rows_to_run(layer: int, window: int, layers: int) -> int:
    above = layers - 1 - layer
    return above * (window - 1) + 1 if above else 0


def run_wrongly(rule: Callable[[int, int, int], int]) -> Callable[[int, int, int], int]:
    """A wrong rule of (layers above, window, layers)."""
    return lambda layer, window, layers: rule(layers - 1 - layer, window, layers)


RUN = Exercise(
    name="03.rows_to_run",
    inputs=lambda: [
        dict(layer=layer, window=w, layers=n)
        for n, w in SIZES
        for layer in sorted({0, n // 2, n - 1} | {max(0, n - 2)})
    ],
    reference=lambda layer, window, layers: staircase.rows_to_run(layers, window)[layer],
    solution=rows_to_run,
    why=said.RUN_WHY,
    hints=said.RUN_HINTS,
    mistakes=(
        Mistake(name="last runs", answer=run_wrongly(lambda above, w, n: above * (w - 1) + 1), thought=said.LAST_RUNS),
        Mistake(
            name="where it writes",
            answer=run_wrongly(lambda above, w, n: (above + 1) * (w - 1)),
            thought=said.STEP_LATE,
        ),
        Mistake(
            name="and itself", answer=run_wrongly(lambda above, w, n: (above + 1) * (w - 1) + 1), thought=said.STEP_LATE
        ),
        Mistake(name="steps of W", answer=run_wrongly(lambda above, w, n: above * w), thought=said.NO_OVERLAP),
        Mistake(
            name="upside down",
            answer=lambda layer, window, layers: rows_to_run(layers - 1 - layer, window, layers),
            thought=said.UPSIDE_DOWN,
        ),
        Mistake(name="rectangle", answer=run_wrongly(lambda above, w, n: n * (w - 1) + 1), thought=said.RECTANGLE),
        Mistake(name="L W", answer=run_wrongly(lambda above, w, n: n * w), thought=said.RECTANGLE),
    ),
)

HIT, NEW, PASSAGES, CELLS = 280, 12, 4, 384
Plan = Callable[[int, int, int], list[int]]


@cache
def conversations() -> tuple[Model, list[tuple[Tensor, Tensor]]]:
    """The toy in float64, and passages of Hamlet with the exact predictions behind a hit."""
    model = load(paths.checkpoint_dir("toy"), dtype=torch.float64)
    text = (paths.text_dir() / "plays" / "hamlet.txt").read_text(encoding="utf-8")
    ids = torch.tensor(load_tokenizer().encode(text[len(text) // 2 :][:12_000]).ids)
    parts = ids.unfold(0, HIT + NEW, 500)[:PASSAGES]
    return model, [(part, exactly(model, part, HIT)) for part in parts]


@cache
def left_over(rows: tuple[int, ...]) -> float:
    """Geometric mean of the KL divergence, nats, after a rebuild in which each layer runs so many rows."""
    model, known = conversations()
    with replaced(replay, "first_rows", lambda original: lambda config, hit, **_: [hit - n for n in rows]):
        kl = [divergence(exact, replayed(model, ids, HIT, shape="staircase")) for ids, exact in known]
    return float(torch.cat(kl).clamp(min=1e-15).log().mean().exp())


def judged(plan: Plan) -> float:
    """What a plan leaves. Raises ValueError for one that a network cannot run, or that costs too much."""
    config = conversations()[0].config
    layers, window = config.num_hidden_layers, config.sliding_window
    rows = [int(n) for n in plan(layers, window, CELLS)]
    if len(rows) != layers or sum(rows) > CELLS:
        raise ValueError(f"{len(rows)} layers and {sum(rows)} cells: allowed are {layers} and at most {CELLS}")
    if any(below < above for below, above in pairwise(rows)):
        raise ValueError("a layer can only run on rows that the layer before it ran on")
    if rows[-1] < window - 1 or rows[0] > HIT:
        raise ValueError(f"{rows[-1]} to {rows[0]} rows: allowed are {window - 1} (a new token's window) to {HIT}")
    return left_over(tuple(rows))


def plan(layers: int, window: int, cells: int) -> list[int]:
    spare = cells - layers * (window - 1)
    step = spare // (layers * (layers - 1) // 2)
    return [window - 1 + step * (layers - 1 - layer) for layer in range(layers)]


PLAN = Exercise(
    name="03.plan",
    inputs=lambda: [{}],
    reference=lambda: judged(lambda layers, window, cells: [cells // layers] * layers),
    use=judged,
    accept=lambda left, rectangle: left < rectangle / 2,
    versus=said.PLAN_VERSUS,
    solution=plan,
    why=said.PLAN_WHY,
    hints=said.PLAN_HINTS,
    mistakes=(
        Mistake(
            name="rectangle",
            answer=lambda layers, window, cells: [cells // layers] * layers,
            thought=said.SAME_EVERYWHERE,
        ),
        Mistake(
            name="all below",
            answer=lambda layers, window, cells: [cells - (layers - 1) * (window - 1)] + [window - 1] * (layers - 1),
            thought=said.ALL_BELOW,
        ),
        Mistake(name="one window", answer=lambda layers, window, cells: [window - 1] * layers, thought=said.TOO_LITTLE),
    ),
)

EXERCISES = (HALO, RUN, PLAN)
