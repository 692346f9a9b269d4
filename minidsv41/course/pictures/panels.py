"""What a query reads in each family, a strip each."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.panels import TOKENS, Picture


def panels(found: Sequence[Picture], query: int) -> Figure:
    """What a query reads, a strip a family: orange for single tokens, blue for entries."""
    height = 60 + 46 * len(found)
    fig, ax = figure(height)
    fig.set_layout_engine(None)
    fig.subplots_adjust(left=0.08, right=0.79, top=1 - 22 / height, bottom=40 / height)
    for row, picture in enumerate(found):
        ax.add_patch(strip(-0.5, row - 0.4, query + 1, 0.8, "#EEEEEE"))
        for t in picture.tokens:
            ax.add_patch(strip(t - 0.45, row - 0.4, 0.9, 0.36, COLOURS["window"]))
        for n, (first, last) in enumerate(picture.entries):
            lower = 0.18 * (n % 2 and picture.entries[n - 1][1] >= first)
            ax.add_patch(strip(first - 0.42, row + 0.02 + lower, last - first + 0.84, 0.16, COLOURS["main"]))
        ax.text(TOKENS + 0.5, row, f"reads {picture.read} of {picture.kept} rows", va="center", fontsize=9)
    ax.axvline(query, color=COLOURS["query"], lw=1.5)
    ax.set(xlim=(-0.5, TOKENS - 0.5), ylim=(len(found) - 0.5, -0.55), xlabel="token")
    ax.set_yticks(range(len(found)), [p.name for p in found])
    for x, name, kind in ((0, "single tokens", "window"), (0.22, "entries of several tokens", "main")):
        ax.text(x, 1.02, name, color=COLOURS[kind], transform=ax.transAxes, fontweight="bold", fontsize=9)
    ax.text(0.6, 1.02, "black line: the query", transform=ax.transAxes, fontsize=9)
    ax.tick_params(left=False)
    return fig


def strip(x: float, y: float, width: float, height: float, colour: str) -> Rectangle:
    return Rectangle((x, y), width, height, facecolor=colour)
