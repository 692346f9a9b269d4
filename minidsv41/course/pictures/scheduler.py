"""Lesson 09b: tokens a second over verify length, gains over load, and who verifies what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.scheduling import Choice

EARLY, BEST = COLOURS["draft"], COLOURS["query"]
TITLE = dict(loc="left", fontsize=10)


def throughput(ax: Axes, choice: Choice, *, every: int = 1) -> None:
    """The curve of a batch with a dot at every `every`-th number of drafts, both ends, and plain decoding as a line."""
    drafts = range(len(choice.rates))
    ax.plot(drafts, choice.rates, color=COLOURS["other"], lw=1.2)
    if every > 1:
        ax.plot(drafts[::every], choice.rates[::every], "o", color=COLOURS["other"], ms=4)
    ax.axhline(choice.plain, color="black", lw=1, ls=":")
    early, best = sum(choice.early), sum(choice.best)
    ax.plot(best, choice.rates[best], "*", color=BEST, ms=16, zorder=4, clip_on=False)
    ax.plot(early, choice.rates[early], "o", color=EARLY, ms=8, zorder=5, clip_on=False)
    low, high = min(choice.plain, *choice.rates), max(choice.plain, *choice.rates)
    ax.set(ylim=(low - 0.12 * (high - low), high + 0.25 * (high - low)), xlabel="drafts verified in the batch")
    ax.margins(x=0.06)


def label(ax: Axes, x: float, y: float, text: str, colour: str, shift: tuple[int, int], align: str) -> None:
    ax.annotate(text, (x, y), shift, textcoords="offset points", color=colour, ha=align, va="center", fontweight="bold")


def peaks(recorded: Choice, padded: Choice, smooth: Choice) -> Figure:
    """A measured curve with one peak, and a modelled one with several: where early stop and the best of all end."""
    fig, (left, right) = figure(330, columns=2)
    throughput(left, recorded, every=len(recorded.early))
    throughput(right, padded)
    right.plot(range(len(smooth.rates)), smooth.rates, color=COLOURS["other"], lw=1, ls="--", zorder=1)
    left.set(ylabel="expected tokens per second")
    left.set_title(f"recorded: toy, one core, {len(recorded.early)} requests", **TITLE)
    right.set_title(f"modelled: release, 8 GPUs, {len(padded.early)} requests", **TITLE)
    both, early, best = sum(recorded.early), sum(padded.early), sum(padded.best)
    label(left, both, recorded.rates[both], "early stop and best of all", EARLY, (0, 17), "center")
    left.text(len(recorded.rates) - 1, recorded.plain, "without drafts", ha="right", va="bottom")
    line = dict(arrowstyle="-", lw=0.8)
    place, bold = (-14, 46), dict(color=EARLY, fontweight="bold", textcoords="offset points")
    right.annotate("early stop", (early, padded.rates[early]), place, ha="left", arrowprops=line, **bold)
    label(right, best, padded.rates[best], "best of all", BEST, (4, 17), "right")
    right.text(len(padded.rates) - 1, padded.plain, "without drafts", ha="right", va="bottom")
    right.text(0.6, 0.76, "dashed: no padding", transform=right.transAxes, ha="right", color="#666666")
    right.annotate(
        "one row more costs\nas much as the next 64",
        (early + 1, padded.rates[early + 1]),
        (24, 14),
        textcoords="offset points",
        va="center",
        arrowprops=line,
    )
    left.annotate("drafted in vain", (0, recorded.rates[0]), (8, -2), textcoords="offset points", va="center")
    return fig


def gains(panels: Mapping[str, tuple[Sequence[int], Mapping[str, Sequence[float]]]]) -> Figure:
    """Tokens a second over requests, as multiples of plain decoding; a panel for each (loads, gains by name)."""
    fig, axes = figure(310, columns=len(panels))
    look = {"early stop": (EARLY, "o-"), "all drafts": ("#666666", "s--")}
    for ax, (title, (loads, found)) in zip(axes, panels.items(), strict=True):
        ax.axhline(1, color="black", lw=1, ls=":")
        for name, values in found.items():
            colour, style = look[name]
            ax.plot(loads, values, style, color=colour, ms=5)
        ax.set(xscale="log", xlabel="requests at once", ylim=(0, None))
        ax.set_xticks(loads, [str(n) for n in loads], fontsize=8)
        ax.minorticks_off()
        ax.set_title(title, **TITLE)
    axes[0].set_ylabel("times the speed without drafts")
    axes[0].text(0.97, 0.93, "early stop", color=EARLY, transform=axes[0].transAxes, ha="right", fontweight="bold")
    axes[0].text(0.97, 0.86, "all drafts", color="#666666", transform=axes[0].transAxes, ha="right", fontweight="bold")
    axes[0].text(loads_of(panels)[0], 0.97, "without drafts", va="top")
    return fig


def loads_of(panels: Mapping[str, tuple[Sequence[int], Mapping[str, Sequence[float]]]]) -> Sequence[int]:
    return next(iter(panels.values()))[0]


def batch(choice: Choice) -> Figure:
    """Left the curve of the batch; right which share of sure and of unsure requests verifies each draft."""
    fig, (left, right) = figure(270, columns=2)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.1, right=0.98, top=0.9, bottom=0.18, wspace=0.25)
    throughput(left, choice)
    left.set(ylabel="expected tokens per second")
    for x, text, colour in (
        (0, "● early stop", EARLY),
        (0.36, "★ best of all", BEST),
        (0.73, "··· no drafts", "#333333"),
    ):
        left.text(x, 1.04, text, color=colour, transform=left.transAxes, fontweight="bold", fontsize=8.5)
    block = choice.confidence.shape[1]
    for row, group in enumerate((choice.early[::2], choice.early[1::2])):
        for draft in range(block):
            share = sum(n > draft for n in group) / len(group) if group else 0
            right.bar(draft, 0.8, 0.9, row - 0.4, color=EARLY, alpha=share, lw=0)
            right.bar(draft, 0.8, 0.9, row - 0.4, fill=False, edgecolor="#BBBBBB", lw=0.8)
            if group:
                text = f"{100 * share:.0f} %"
                right.text(draft, row, text, ha="center", va="center", color="white" if share > 0.5 else "black")
    right.set(xlim=(-0.6, block - 0.4), ylim=(1.5, -0.5), xlabel="draft")
    right.set_title("early stop: requests that verify it", **TITLE)
    right.set_xticks(range(block), range(1, block + 1))
    right.set_yticks([0, 1], ["sure", "unsure"])
    right.tick_params(length=0)
    right.spines[["left", "bottom"]].set_visible(False)
    return fig
