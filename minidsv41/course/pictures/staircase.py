"""Pictures of the staircase: measured, computed for any sizes, read twice, and what a shortened one changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator
from torch import Tensor

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.reads import Reading
from minidsv41.course.staircase import Rebuild, twice

FAINT, STRONG = 1e-15, 1.0
ORANGE = LinearSegmentedColormap.from_list("window", ["#FFF6E3", COLOURS["window"], "#4A2E00"])
PALE = "#F8DFA8"
BOTH = "#4B0055"


def measured(free: Tensor, kept: Tensor, dyed: Tensor, token: int) -> Figure:
    """Which states one token changes, and by how much [L, T]; dyed [L, T]: whom its windows reach at all."""
    fig, (top, below) = figure(430, rows=2)
    layers = len(dyed)
    colours = dict(cmap=ORANGE, norm=LogNorm(FAINT, STRONG), aspect="auto", origin="lower", interpolation="nearest")
    top.imshow(np.ma.masked_less(free.numpy(), FAINT), **colours)
    image = below.imshow(np.ma.masked_where(~dyed.numpy(), kept.clamp(min=FAINT).numpy()), **colours)
    top.set_title("entries computed again: every later token changes", loc="left")
    below.set_title("entries as on disk: what is left is what windows carry", loc="left")
    ends = [int(row.nonzero().max()) + 0.5 for row in dyed]
    below.stairs(ends, np.arange(layers + 1) - 0.5, orientation="horizontal", color="black", lw=1.2, baseline=None)
    below.text(0.98, 0.08, "black line: whom the NaN dye reached", transform=below.transAxes, ha="right")
    for ax in (top, below):
        ax.set(ylabel="layer", yticks=range(layers))
        ax.tick_params(left=False, labelbottom=ax is below)
    below.set_xlabel(f"position of the state (the embedding of token {token} is changed)")
    bar = fig.colorbar(image, ax=(top, below), fraction=0.03, pad=0.02, ticks=[1e-15, 1e-10, 1e-5, 1])
    bar.set_label("largest change in the state")
    return fig


def steps(plan: Rebuild) -> Figure:
    """The staircase before the new tokens: rows that are needed, run and exact, a layer on each line."""
    fig, ax = figure(300)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.08, right=0.98, top=0.9, bottom=0.16)
    edges = np.arange(plan.layers + 1) - 0.5
    for rows, colour in ((plan.needed, "#E3E3E3"), (plan.run, PALE), (plan.exact, COLOURS["window"])):
        ax.stairs([-n for n in rows], edges, orientation="horizontal", fill=True, color=colour, lw=0)
    if plan.shape == "rectangle":
        ax.stairs([-n for n in plan.needed], edges, orientation="horizontal", color="black", lw=0.8, baseline=None)
    ax.set(xlim=(-1.02 * max(*plan.needed, *plan.run, 1), 0), ylim=(-0.5, plan.layers - 0.5))
    ax.set(xlabel="old tokens, counted back from the first new one", ylabel="layer")
    ax.xaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    names = (("needed, not run", "#8C8C8C"), ("run, not exact", "#B98A1F"), ("run and exact", "#9A6A00"))
    legend(ax, names, 0.26)
    return fig


def legend(ax: Axes, labels: Sequence[tuple[str, str]], width: float) -> None:
    """Coloured words above the axes, in place of a box."""
    for i, (label, colour) in enumerate(labels):
        ax.text(i * width, 1.03, label, color=colour, transform=ax.transAxes, fontweight="bold")


def overlap(found: Sequence[Reading], tokens: int, floor: int = 0) -> Figure:
    """What one query reads, a layer on each line: window rows, entries, and tokens that are read twice."""
    height = 70 + 24 * len(found)
    fig, ax = figure(height)
    fig.set_layout_engine(None)
    fig.subplots_adjust(left=0.12, right=0.98, top=1 - 20 / height, bottom=45 / height)
    for line, reading in enumerate(found):
        first, query = reading.window
        both, lost = twice(reading, floor)
        window = set(range(max(first, floor), query + 1))
        for which, colour in ((lost, "#E3E3E3"), (set(reading.tokens()), COLOURS["main"]), (window, COLOURS["window"])):
            ax.broken_barh([(t - 0.5, 1) for t in sorted(which)], (line - 0.4, 0.8), color=colour, lw=0)
        for which, colour in ((both, BOTH), (lost & set(reading.tokens()), COLOURS["main"])):
            ax.broken_barh([(t - 0.5, 1) for t in sorted(which)], (line - 0.4, 0.8), color=colour, lw=0)
    ax.set(xlim=(-0.5, tokens - 0.5), ylim=(len(found) - 0.5, -0.6), xlabel="token")
    ax.set_yticks(range(len(found)), [f"{r.layer}  {r.mode}" for r in found])
    ax.tick_params(left=False)
    names = (("window row", COLOURS["window"]), ("entry", COLOURS["main"]), ("both", BOTH), ("lost row", "#8C8C8C"))
    legend(ax, names, 0.2)
    return fig


def divergences(found: Mapping[str, Tensor]) -> Figure:
    """KL divergence of each new token from the exact prediction, a line for each way; below FAINT it is drawn there."""
    fig, ax = figure(330)
    shades = ORANGE(np.linspace(1, 0.4, len(found)))
    for (label, kl), colour in zip(found.items(), shades, strict=True):
        values = kl.clamp(min=FAINT).numpy()
        ax.plot(np.arange(len(values)), values, color=colour, lw=1.6)
        middle = np.exp(np.log(values[-8:]).mean())
        ax.annotate(label, (len(values) - 1, middle), (6, 0), textcoords="offset points", va="center")
    ax.set(yscale="log", ylabel="KL from exact, nats", xlim=(0, len(values) * 1.42))
    ax.set_xlabel("new token after the hit", x=0.35)
    ax.set_xticks(range(0, len(values), 8))
    ax.spines["bottom"].set_bounds(0, len(values) - 1)
    return fig


def dots(found: Mapping[str, Mapping[str, Sequence[float]]], label: str) -> Figure:
    """A line for each way, a colour for each variant; a dot for each seed and a bar for their mean."""
    fig, ax = figure(90 + 44 * len(found))
    names = list(next(iter(found.values())))
    colours = dict(zip(names, (COLOURS["decoder"], COLOURS["other"]), strict=False))
    for line, (_, variants) in enumerate(found.items()):
        for i, (name, values) in enumerate(variants.items()):
            y = line + 0.36 * i - 0.18
            ax.plot(values, [y] * len(values), "o", color=colours[name], ms=6, alpha=0.8)
            ax.plot([np.mean(values)] * 2, [y - 0.13, y + 0.13], color=colours[name], lw=2.5)
    ax.set(xscale="log", xlabel=label, ylim=(len(found) - 0.5, -0.5))
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(99, 99)))
    ax.minorticks_off()
    ax.margins(x=0.08)
    ax.set_yticks(range(len(found)), list(found))
    ax.tick_params(left=False)
    legend(ax, [(name, colours[name]) for name in names], 0.36)
    return fig
