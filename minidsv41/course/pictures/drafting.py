"""Pictures of drafts: two histograms and what they share, forecasts against what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from minidsv41.course.drafting import Bin, Overlap
from minidsv41.course.figures import COLOURS, figure

KEPT, REJECTED, RESIDUAL = "#BDBDBD", COLOURS["draft"], COLOURS["query"]


def overlap(found: Overlap, words: Sequence[str], *, shown: int = 16) -> Figure:
    """Target and draft over the words that either finds likeliest, all others in the last bar; words [V]."""
    fig, ax = figure(320)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.09, right=0.985, top=0.84, bottom=0.19)
    some = torch.maximum(found.target, found.draft).topk(shown).indices
    some = some[found.target[some].argsort(descending=True, stable=True)]
    parts = [torch.cat([part[some], (part.sum() - part[some].sum())[None]]) for part in (found.kept, found.rejected)]
    parts.append(torch.cat([found.residual[some], (found.residual.sum() - found.residual[some].sum())[None]]))
    bottom, at = np.zeros(shown + 1), range(shown + 1)
    for part, colour in zip(parts, (KEPT, REJECTED, RESIDUAL), strict=True):
        ax.bar(at, part.tolist(), bottom=bottom, color=colour, width=0.8)
        bottom = bottom + np.array(part.tolist())
    ax.set_xticks(at, [words[i] for i in some.tolist()] + ["all others"])
    for label in ax.get_xticklabels():
        if len(label.get_text()) > 3:
            label.set(rotation=45, ha="right", rotation_mode="anchor", fontsize=9.5)
        else:
            label.set(fontsize=10)
    ax.tick_params(axis="x", length=0, pad=5)
    ax.set(ylabel="probability", xlim=(-0.6, shown + 0.6))
    said = ((0.09, "both: kept", "#777777"), (0.32, "draft only: rejected", REJECTED))
    for x, text, colour in (*said, (0.64, "target only: residual", RESIDUAL)):
        share = float(parts[("#777777", REJECTED, RESIDUAL).index(colour)].sum())
        fig.text(x, 0.91, f"{text} {share:.0%}", color=colour, fontweight="bold")
    return fig


def reliability(found: Mapping[str, Sequence[Bin]]) -> Figure:
    """A panel for each set of forecasts: forecast against frequency, dots as large as they count."""
    fig, axes = figure(330, columns=len(found))
    for first, (ax, (name, bins)) in enumerate(zip(axes, found.items(), strict=True)):
        ax.plot([0, 1], [0, 1], color=COLOURS["other"], lw=1, ls="--")
        x, y, n = zip(*bins, strict=True)
        ax.vlines(x, x, y, color=COLOURS["draft"], lw=1.5)
        ax.scatter(x, y, s=[6 + 0.5 * count for count in n], color=COLOURS["draft"], zorder=3)
        for bin in bins:
            aside = (0, -15) if bin.frequency > 0.12 and bin.count < 100 else (18, -4)
            ax.annotate(
                f"{bin.count}", bin[:2], aside, textcoords="offset points", ha="center", fontsize=8, color="#555555"
            )
        ax.set(xlim=(-0.05, 1), ylim=(-0.05, 1), aspect="equal", xlabel="forecast")
        ax.set_title(name, loc="left", fontsize=10, fontweight="bold")
        ax.set_ylabel("really kept" if first == 0 else "")
    axes[0].text(0.8, 0.9, "honest", ha="right", color=COLOURS["other"], fontweight="bold")
    return fig


def dots(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """A panel for each measure, a line for each variant: a dot for each seed and a bar for their mean."""
    fig, axes = figure(210, columns=len(found))
    for first, (ax, (measure, variants)) in enumerate(zip(axes, found.items(), strict=True)):
        for line, (name, values) in enumerate(variants.items()):
            colour = COLOURS["draft"] if name.startswith("both") else COLOURS["other"]
            ax.plot(values, [line] * len(values), "o", color=colour, ms=6, alpha=0.7)
            ax.plot([np.mean(values)] * 2, [line - 0.28, line + 0.28], color=colour, lw=2.5)
        ax.set(ylim=(len(variants) - 0.5, -0.5), xlabel=measure)
        ax.set_yticks(range(len(variants)), list(variants) if first == 0 else [""] * len(variants))
        ax.tick_params(left=False)
        ax.margins(x=0.12)
    return fig
