"""Lesson 05's figures: the strip of scores with blocks, pool and choice; curves over k, pool and block."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.funnel import Funnel

LOST = "#C00000"
POOL = "#D6ECFA"


def strip(f: Funnel, names: tuple[int, int]) -> Figure:
    """Two strips over the same entries: each layer's scores, the pool behind them, what is chosen and what is lost."""
    fig, axes = figure(360, rows=2)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.1, right=0.985, top=0.93, bottom=0.13, hspace=0.32)
    for ax, scores, chosen in ((axes[0], f.source, f.own), (axes[1], f.later, f.wanted)):
        blocks(ax, f)
        scored(ax, scores, chosen, f.missing(chosen))
        ax.set(xlim=(-1, len(scores)), ylabel="index score")
        ax.tick_params(bottom=False, labelbottom=ax is axes[1])
    title(axes[0], f"layer {names[0]} builds the pool; its own {len(f.own)}", len(f.missing(f.own)))
    title(axes[1], f"layer {names[1]} may choose from it only; it wants {len(f.wanted)}", len(f.missing(f.wanted)))
    if f.best_is_lost:
        at = int(f.later.argmax())
        side = "left" if at < 0.1 * len(f.later) else "right" if at > 0.9 * len(f.later) else "center"
        place = dict(textcoords="offset points", ha=side, va="bottom", color=LOST, fontweight="bold")
        axes[1].annotate("the best is lost", (at, float(f.later[at])), (0, 3), **place)
    axes[1].set_xlabel(f"entry (blocks of {f.size}; blue: blocks in the pool, the newest is always in)")
    return fig


def blocks(ax: Axes, f: Funnel) -> None:
    """Blocks of the pool as blue bands from top to bottom."""
    for start in range(0, len(f.pool), f.size):
        if f.pool[start]:
            width = min(f.size, len(f.pool) - start)
            place = dict(transform=ax.get_xaxis_transform(), facecolor=POOL, lw=0, zorder=0)
            ax.add_patch(Rectangle((start - 0.5, 0), width, 1, **place))


def scored(ax: Axes, scores: Tensor, chosen: Tensor, lost: Tensor) -> None:
    """Every score as a grey line from the lowest up; chosen ones end in a blue dot, lost ones are red."""
    low, high = float(scores.min()), float(scores.max())
    room = 0.28 * (high - low) or 1.0
    ax.vlines(range(len(scores)), low - room / 6, scores, color="#A8A8A8", lw=0.8, zorder=1)
    for at, colour, mark in ((chosen, COLOURS["main"], 4.5), (lost, LOST, 5.5)):
        ax.vlines(at, low - room / 6, scores[at], color=colour, lw=1, zorder=2)
        ax.plot(at, scores[at], "o", color=colour, ms=mark, zorder=3)
    ax.set_ylim(low - room / 6, high + room)


def title(ax: Axes, text: str, lost: int) -> None:
    ax.text(0, 1.04, text, transform=ax.transAxes)
    verdict, colour = (f"{lost} outside the pool", LOST) if lost else ("all inside the pool", COLOURS["main"])
    ax.text(1, 1.04, verdict, transform=ax.transAxes, ha="right", color=colour, fontweight="bold")


def curves(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """A panel for each label of the x axis, points x -> share; a second line of a panel is a broad grey one behind."""
    fig, axes = figure(260, columns=len(panels))
    first = dict(color=COLOURS["main"], marker="o", ms=4, lw=1.5, zorder=2)
    behind = dict(color=COLOURS["other"], lw=6, alpha=0.45, zorder=1)
    for ax, (label, lines) in zip(axes, panels.items(), strict=True):
        for (name, points), style in zip(lines.items(), (first, behind), strict=False):
            ax.plot(list(points), list(points.values()), label=name, **style)
        ticks = list(next(iter(lines.values())))
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks[:: -(-len(ticks) // 6)], [str(t) for t in ticks[:: -(-len(ticks) // 6)]])
        ax.minorticks_off()
        ax.set_ylim(0, 1.1 * max(v for points in lines.values() for v in points.values()))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        ax.set_xlabel(label)
        if len(lines) > 1:
            ax.legend(loc="upper left", fontsize=9, handlelength=1.2)
    axes[0].set_ylabel("attention mass kept")
    return fig
