"""Lesson 08b's figures: two lanes in time, waiting over the store's slowness, Engram's share of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidsv41.config import ModelConfig
from minidsv41.course.figures import COLOURS, box, figure
from minidsv41.course.prefetching import Case
from minidsv41.serve.prefetch import Span

RED = COLOURS["draft"]
ROW = {"compute": 1.1, "store": 0.0}


def lanes(runs: Mapping[str, Sequence[Span]], *, until: float, unit: str) -> Figure:
    """A panel for each run: the network above, the store below, waiting red. until: the end of the axis."""
    height = 52 + 88 * len(runs)
    fig, axes = figure(height, rows=len(runs))
    axes = np.atleast_1d(axes)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.11, right=0.985, top=1 - 26 / height, bottom=42 / height, hspace=0.55)
    for ax, (title, spans) in zip(axes, runs.items(), strict=True):
        for span in spans:
            drawn(ax, Span(*span), until)
        ax.set(xlim=(0, until), ylim=(-0.15, 2.15))
        ax.set_title(title, fontsize=9, pad=3, loc="left")
        ax.set_yticks([0.45, 1.55], ["store", "network"])
        ax.tick_params(left=False)
        ax.spines["left"].set_visible(False)
        if ax is not axes[-1]:
            ax.set_xticklabels([])
    axes[-1].set_xlabel(unit)
    return fig


def drawn(ax: Axes, span: Span, until: float) -> None:
    """One box, labelled if there is room."""
    word, number = span.what.split()
    width = min(span.end, until) - span.begin
    if width <= 0:
        return
    kind = {"layer": "encoder", "rows": "main", "wait": "draft"}[word]
    share = width / until
    long = {"layer": [f"layer {number}", number], "rows": [f"rows for layer {number}", span.what], "wait": ["waits"]}
    text = next((said for said in long[word] if share > 0.011 * len(said)), "")
    box(ax, span.begin, ROW[span.lane], width, 0.9, kind, text)


def waiting(dots: Sequence[tuple[float, float]], theory: Callable[[float], float]) -> Figure:
    """What the network waits over what a fetch takes, both in lengths of layer 0: single runs, and the rule."""
    fig, ax = figure(270)
    most = max(x for x, _ in dots)
    x = np.linspace(0, most, 200)
    ax.plot(x, [theory(v) for v in x], color=COLOURS["other"], lw=1.5)
    ax.text(0.68 * most, theory(0.55 * most), "what sticks out beyond layer 0", color="#606060")
    free = [d for d in dots if d[0] < 1]
    ax.plot(*zip(*free, strict=True), "o", color=COLOURS["main"], ms=5, alpha=0.6)
    ax.plot(*zip(*(d for d in dots if d[0] >= 1), strict=True), "o", color=RED, ms=5, alpha=0.6)
    ax.axvline(1, color="black", lw=1, ls=":")
    ax.text(0.96, 0.8 * max(y for _, y in dots), "hidden", ha="right", color=COLOURS["main"], fontweight="bold")
    ax.text(1.06, 0.8 * max(y for _, y in dots), "waits", color=RED, fontweight="bold")
    ax.set(xlabel="the store takes, in lengths of layer 0", ylabel="the network waits", xlim=(0, None))
    return fig


def shares(found: Mapping[float, Sequence[float]], *, label: str) -> Figure:
    """A measure by Engram's share of the sparse parameters: a dot for each seed, a line through the means."""
    fig, ax = figure(260)
    for share, values in found.items():
        ax.plot([100 * share] * len(values), values, "o", color=COLOURS["main"], ms=7, alpha=0.6, lw=0)
    ax.plot([100 * s for s in found], [mean(v) for v in found.values()], color=COLOURS["other"], lw=1.5, zorder=0)
    ax.axvspan(20, 25, color=COLOURS["window"], alpha=0.25, lw=0)
    ax.text(26, 0.98, "best in the paper", va="top", transform=ax.get_xaxis_transform())
    ax.set(xlabel="Engram's share of the sparse parameters, %", ylabel=label, xlim=(0, 75))
    return fig


def speeds(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Size of a row's update by step, a panel for each kind of row, a line for each rule."""
    fig, axes = figure(230, columns=len(found))
    colours = {"AdamW": COLOURS["other"], "Sinkhorn momentum": COLOURS["main"]}
    for ax, (title, rules) in zip(axes, found.items(), strict=True):
        for name, values in rules.items():
            ax.plot(values, color=colours[name], lw=1.6)
        ax.set(xlabel="step", ylim=(-0.05, 1.25))
        ax.set_title(title, fontsize=9)
    axes[0].set_ylabel("update, in units of the rate")
    for y, (name, colour) in zip((0.30, 0.16), colours.items(), strict=True):
        axes[0].text(0.5, y, name, color=colour, fontweight="bold", transform=axes[0].transAxes, ha="center")
    for ax in axes[1:]:
        ax.set_yticklabels([])
    return fig


def case(c: ModelConfig, chosen: Case) -> Figure:
    """The widget's picture: the layers up to the last table, in µs."""
    run = chosen.run(c)
    return lanes({"": run.spans}, until=max(s.end for s in run.spans), unit="microseconds")
