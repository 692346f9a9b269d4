"""Figures of lesson 01: the roofline with the families on it, and the crossing of two forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.intensity import SHAPES, Shape, attainable, layer_of, shape
from minidsv41.course.published import ARTICLE, FLASHMLA, Published
from minidsv41.ledger.machines import Machine, machine

LOW, HIGH = 0.5, 2_000  # FLOP a byte
CONTEXT = 131_072
MEASURED = COLOURS["draft"]


def roof(ax: Axes, on: Machine, colour: str, *, width: float = 1.6) -> None:
    """Bandwidth on the left of the ridge, arithmetic on the right of it."""
    ridge = float(on.ridge.value)
    ax.plot([LOW, ridge, HIGH], [attainable(on, x) / 1e12 for x in (LOW, ridge, HIGH)], color=colour, lw=width)
    above = on.name != "H200 measured"
    place = dict(textcoords="offset points", ha="right", va="bottom" if above else "top", fontsize=9)
    ax.annotate(on.name, (HIGH, on.flops / 1e12), (0, 2 if above else -3), color=colour, **place)


def prepared(height: int) -> tuple[Figure, Axes]:
    fig, ax = figure(height)
    ax.set(xscale="log", yscale="log", xlim=(LOW, HIGH))
    ax.set(xlabel="FLOP for each byte of cache that a decode step reads", ylabel="TFLOP/s within reach (BF16)")
    ticks = [1, 8, 30, 128, 242, 484, 1000]
    ax.set_xticks(ticks, [f"{t}" for t in ticks])
    ax.minorticks_off()
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    return fig, ax


def dot(ax: Axes, on: Machine, x: float, text: str = "", offset: tuple[float, float] = (0, 0)) -> None:
    y = attainable(on, x) / 1e12
    ax.plot([x], [y], "o", color=COLOURS["query"], ms=6, zorder=4)
    ax.annotate(text, (x, y), offset, textcoords="offset points", fontsize=9)


def arrow(ax: Axes, a: tuple[float, float], b: tuple[float, float], bend: float) -> None:
    """A bow from one point of the roof to another, above it."""
    style = dict(arrowstyle="->", color=COLOURS["main"], lw=1.6, shrinkA=5, shrinkB=5)
    ax.annotate("", b, a, arrowprops=style | {"connectionstyle": f"arc3,rad={bend}"}, zorder=5)


def roofline() -> Figure:
    """The families on an H20 and, grey, on H100 and H200; published times as rings."""
    fig, ax = prepared(430)
    for name in ("H100", "H200 measured"):
        roof(ax, machine(name), COLOURS["other"], width=1.1)
    h20 = machine("H20")
    roof(ax, h20, COLOURS["query"])
    x = {s.name: s.work(CONTEXT).intensity for s in SHAPES}
    few, many = (layer_of(h).work(CONTEXT).intensity for h in (16, 128))
    twice = layer_of(128).work(CONTEXT, queries=2).intensity
    dot(ax, h20, x["MHA of V3's size"], "MHA", (7, -10))
    dot(ax, h20, x["DeepSeek-67B"], "GQA, 8 heads a key", (8, -10))
    dot(ax, h20, few, "MLA, 16 heads", (9, -14))
    for at, text, low, side in (
        (x["DeepSeek-V3.2"], "V3.2 ", 45, "right"),
        (x["DeepSeek-V4.1-Flash"], "V4.1-Flash ", 25, "right"),
        (many, " MLA, 128 heads", 25, "left"),
        (twice, " 2 queries", 45, "left"),
    ):
        dot(ax, h20, at)
        ax.plot([at, at], [low, h20.flops / 1e12], color=COLOURS["query"], lw=0.7)
        ax.text(at, low, text, ha=side, va="center", fontsize=9)
    top = h20.flops / 1e12
    arrow(ax, (many, top), (few, attainable(h20, few) / 1e12), 0.42)
    arrow(ax, (many, top), (twice, top), -0.6)
    ax.text(25, 250, "heads spread over 8 cards", ha="right", color=COLOURS["main"], fontsize=9)
    ax.text(many * 1.35, 290, "a draft token more", color=COLOURS["main"], fontsize=9)
    for found in (ARTICLE, *FLASHMLA):
        ring(ax, found)
    ax.text(HIGH, 3, "rings: times that others published (H20 unless named)", ha="right", color=MEASURED, fontsize=9)
    ax.set_ylim(2, 1_500)
    return fig


def ring(ax: Axes, found: Published) -> None:
    """A published time, at its intensity and at the rate that follows from it."""
    at = found.work.intensity, found.tflops
    ax.plot(*at, "o", mfc="none", mec=MEASURED, mew=1.6, ms=7, zorder=6)
    if found.card != "H20":
        ax.annotate(
            found.card, at, (0, -7), textcoords="offset points", color=MEASURED, ha="center", va="top", fontsize=8
        )


def on_machine(*, model: str, context: int, queries: int, dtype: str, card: str) -> Figure:
    """The widget's picture: one roof, all models pale, the chosen one dark."""
    fig, ax = prepared(330)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.09, right=0.98, top=0.95, bottom=0.14)
    on, chosen = machine(card), shape(model)
    roof(ax, on, COLOURS["query"])
    for s in SHAPES:
        x = s.work(2**context, queries=queries, dtype=dtype).intensity
        ax.plot([x], [attainable(on, x) / 1e12], "o", color=COLOURS["other"], alpha=0.45, ms=5)
    mark(ax, on, chosen, chosen.work(2**context, queries=queries, dtype=dtype).intensity)
    ax.set_ylim(on.bandwidth * LOW / 1e12 / 2, on.flops / 1e12 * 3)
    ax.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
    ax.set_ylim(on.bandwidth * LOW / 1e12 / 2, on.flops / 1e12 * 3)
    return fig


def mark(ax: Axes, on: Machine, chosen: Shape, x: float) -> None:
    ridge = float(on.ridge.value)
    ax.axvline(ridge, color=COLOURS["other"], lw=0.8, ls=":")
    ax.annotate(
        f"ridge {ridge:,.0f}",
        (ridge, 0.02),
        (4, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=COLOURS["other"],
    )
    ax.axvline(x, color=COLOURS["main"], lw=0.8)
    ax.plot([x], [attainable(on, x) / 1e12], "o", color=COLOURS["main"], ms=9, zorder=5)
    right = x > 100
    ax.annotate(
        f"{chosen.name}: {x:,.0f}" if x >= 10 else f"{chosen.name}: {x:,.1f}",
        (x, 0.5),
        (-5 if right else 5, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=COLOURS["main"],
        ha="right" if right else "left",
        fontweight="bold",
    )


def crossed(clocks: dict[str, dict[str, Any]], counted: Callable[[int], float]) -> Figure:
    """Milliseconds of both forms by new queries, a panel a record; where they cross by counting and by the clock."""
    fig, axes = figure(300, columns=len(clocks))
    for ax, (title, found) in zip(np.atleast_1d(axes), clocks.items(), strict=True):
        rows = found["results"]["seconds"]
        top = 1e3 * max(row[form] for row in rows for form in ("naive", "absorbed"))
        right = rows[-1]["queries"] * (1.16 if len(clocks) == 1 else 1.34)
        forms(ax, rows)
        at(ax, counted(found["settings"]["prefix"]), "counted", right, 1.06 * top, "--")
        at(ax, found["results"]["crossing"], "measured", right, 1.14 * top, "-")
        ax.set(xlabel="new queries behind the cached prefix", ylabel="ms to read it", ylim=(0, 1.2 * top))
        ax.set_xlim(0, right)
        ax.set_title(title, fontsize=10, loc="left")
    return fig


def at(ax: Axes, x: float | None, said: str, right: float, y: float, style: str) -> None:
    """A crossing, its name on the side where there is room; none if there is no crossing."""
    if x:
        ax.axvline(x, color=MEASURED, lw=1, ls=style)
        left = x > (0.28 if said == "counted" else 0.6) * right
        place = dict(textcoords="offset points", ha="right" if left else "left", va="center", fontsize=8)
        ax.annotate(f"{said} {x:.0f}", (x, y), (-4 if left else 4, 0), color=MEASURED, **place)


def forms(ax: Axes, rows: Sequence[dict[str, float]]) -> None:
    n, last = [row["queries"] for row in rows], rows[-1]
    higher = max(("naive", "absorbed"), key=lambda form: last[form])
    for name, colour, said in (("naive", COLOURS["other"], "expanded"), ("absorbed", COLOURS["main"], "absorbed")):
        times = [1e3 * row[name] for row in rows]
        ax.plot(n, times, "o-", color=colour, ms=4)
        style = dict(textcoords="offset points", color=colour, va="center", fontweight="bold")
        ax.annotate(said, (n[-1], times[-1]), (6, 5 if name == higher else -5), **style)
