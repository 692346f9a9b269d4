"""Lesson 02's figures: cells that a prompt runs, row-layers by part, recorded runs by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minidsv41.course.ced import Grid
from minidsv41.course.figures import COLOURS, figure

FAINT = 0.45  # opacity of tokens that run again


def cells(grids: Mapping[str, Grid], window: int) -> Figure:
    """One panel a prompt: a column a token, a row a layer, filled where the layer ran on the token.

    Faint: old tokens that run again. Blue: the first decoder layer only writes the token's entry.
    """
    fig, axes = figure(118 * len(grids) + 20, rows=len(grids))
    for ax, (name, seen) in zip(axes, grids.items(), strict=True):
        layers, tokens = seen.ran.shape
        for layer, token in seen.ran.nonzero().tolist():
            colour = to_rgba(COLOURS["encoder" if layer < layers // 2 else "decoder"], FAINT if token < seen.hit else 1)
            ax.add_patch(Rectangle((token, layer), 1, 1, facecolor=colour, edgecolor="white", lw=0.4))
        for token in (seen.projected & ~seen.ran[layers // 2]).nonzero()[:, 0].tolist():
            ax.add_patch(Rectangle((token, layers // 2), 1, 0.3, facecolor=COLOURS["main"], lw=0))
        if len(only := (seen.projected & ~seen.ran[layers // 2]).nonzero()[:, 0]):
            ax.text(only[0] + 1, layers / 2 + 0.6, "only the projection", color=COLOURS["main"], fontweight="bold")
        if seen.hit:
            ax.axvline(seen.hit, color="black", lw=1, ls=":")
        if len(again := seen.ran[0, : seen.hit].nonzero()[:, 0]):
            ax.text(again[0] + 1, layers / 4, "old tokens again", va="center")
        ax.set(xlim=(0, tokens), ylim=(0, layers))
        ax.set_title(f"{name}: {seen.row_layers:,} cells", loc="left", fontsize=10)
        ax.set_yticks([layers / 4, layers * 3 / 4], ["encoder", "decoder"])
        ax.set_xticks(range(0, tokens + 1, window), [] if ax is not axes[-1] else None)
        ax.tick_params(left=False)
        ax.spines["left"].set_visible(False)
    axes[-1].set_xlabel("token")
    return fig


def parts(found: Mapping[str, Mapping[str, int]]) -> Figure:
    """Row-layers of each way as a bar, split by part; the number and its ratio to the first at its end."""
    height = 70 + 48 * len(found)
    fig, ax = figure(height)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.02, right=0.98, top=1 - 28 / height, bottom=44 / height)
    style = {"encoder, new": ("encoder", 1), "encoder, again": ("encoder", FAINT), "decoder": ("decoder", 1)}
    largest, base = max(sum(p.values()) for p in found.values()), sum(next(iter(found.values())).values())
    for row, (name, split) in enumerate(found.items()):
        at = 0
        for part, size in split.items():
            kind, alpha = style[part]
            ax.barh(row, size, 0.5, left=at, color=COLOURS[kind], alpha=alpha)
            at += size
        ax.text(0, row - 0.33, name)
        ax.text(at, row, f" {at:,}  ({at / base:.2f}×)", va="center", fontweight="bold")
    keys = [Patch(color=COLOURS[kind], alpha=alpha, label=part) for part, (kind, alpha) in style.items()]
    ax.legend(handles=keys, loc="lower left", bbox_to_anchor=(-0.01, 0.96), ncols=3, frameon=False)
    ax.set(xlim=(0, 1.25 * largest), ylim=(len(found) - 0.6, -0.65), xlabel="row-layers")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    return fig


def seeds(measures: Mapping[str, Mapping[str, Sequence[float]]], *, marked: int = 0) -> Figure:
    """A panel a measure, a line a variant: a dot for each seed, a bar for their mean. The marked line is blue."""
    names = list(next(iter(measures.values())))
    fig, axes = figure(70 + 40 * len(names), columns=len(measures))
    for ax, (label, found) in zip(axes, measures.items(), strict=True):
        for line, name in enumerate(names):
            colour = COLOURS["main" if line == marked else "other"]
            ax.plot(found[name], [line] * len(found[name]), "o", color=colour, ms=7, alpha=0.6)
            ax.plot([mean(found[name])] * 2, [line - 0.25, line + 0.25], color=colour, lw=2.5)
        ax.set(ylim=(len(names) - 0.5, -0.5), xlabel=label)
        ax.set_yticks(range(len(names)), names if ax is axes[0] else [])
        ax.tick_params(left=False)
        ax.margins(x=0.15)
        ax.locator_params(axis="x", nbins=4)
    return fig
