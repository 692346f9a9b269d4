"""Figures of recorded GPU times: bars beside floors, a seam over its tokens, and a whole step over its context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.growth import Kind, Steps
from minidsv41.course.limits import h200
from minidsv41.course.live import Live
from minidsv41.course.measured import Row, number

LIVE = dict(mfc="none", mec=COLOURS["draft"], mew=1.8, ms=9, zorder=6)
LENGTHS = ([4096, 32768, 131072, 1048576], ["4K", "32K", "128K", "1M"])


@dataclass(frozen=True)
class Bar:
    """A time in µs with its floor; kind: whose colour it has; live: what the GPU of this machine took."""

    label: str
    us: float
    floor: float
    kind: str
    live: float | None = None

    @classmethod
    def of(cls, row: Row, label: str, kind: str, live: Live) -> Bar:
        """A row of the record, with its floor on the H200 of lesson 12."""
        now = live.us.get((row["shape"], row["contestant"]))
        return cls(label, row["median_us"], h200().floor(row["bytes"], row["flops"]), kind, now)


def bars(given: Sequence[Bar], *, live: Live, log: bool = False) -> Figure:
    """Horizontal, from zero, or on a logarithmic axis from the floor; a black stroke is the floor, a ring is now."""
    fig, ax = figure(70 + 30 * len(given) + 16 * bool(live.said))
    top = max(max(b.us, b.live or 0) for b in given)
    for y, b in enumerate(given):
        ax.barh([y], [b.us - b.floor * log], left=b.floor * log, height=0.2 if log else 0.6, color=COLOURS[b.kind])
        ax.plot([b.floor] * 2, [y - 0.38, y + 0.38], color=COLOURS["query"], lw=2)
        ax.annotate(f"{b.us:,.4g} µs", (b.us, y), (6, 0), textcoords="offset points", va="center", fontsize=9)
        if b.live:
            ax.plot([b.live], [y], "o", **LIVE)
    ax.set(ylim=(len(given) - 0.4, -0.6), xlabel="µs; black: the floor" + f"\n{live.said}".rstrip())
    ax.set(xscale="log", xlim=(min(b.floor for b in given) / 1.5, 2.5 * top)) if log else ax.set_xlim(0, 1.16 * top)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:,.4g}"))
    ax.minorticks_off()
    ax.set_yticks(range(len(given)), [b.label for b in given])
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return fig


def seams(lines: dict[str, dict[int, float]], *, live: Live) -> Figure:
    """µs over tokens: the floor, and a line for each way to cross a seam; rings: this machine."""
    shades = {"floor": "query", "one pass": "main", "three passes": "window", "best peer": "other"}
    fig, ax = figure(360)
    for name, found in lines.items():
        style = dict(lw=1.2, ls="--") if name == "floor" else dict(lw=1.8, marker="o", ms=5)
        ax.plot(list(found), list(found.values()), color=COLOURS[shades[name]], **style)
    last = 0.0
    for name in sorted(lines, key=lambda name: lines[name][min(lines[name])]):
        first = min(lines[name])
        last = max(lines[name][first], 1.4 * last)  # no name upon another
        place = dict(textcoords="offset points", ha="right", va="center", fontsize=9, fontweight="bold")
        ax.annotate(name, (first, last), (-8, 0), color=COLOURS[shades[name]], **place)
    for (shape, who), us in live.us.items():
        if who in ("kernel", "three_step"):
            ax.plot([number(shape[2:])], [us], "o", **LIVE)
    ax.set(xscale="log", yscale="log", xlim=(0.03, 6e4), ylabel="µs", xlabel=f"tokens   {live.said}".strip())
    ax.set_xticks([1, 32, 128, 4096, 32768], ["1", "32", "128", "4,096", "32,768"])
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    ax.minorticks_off()
    return fig


def growth(found: Steps) -> Figure:
    """A step over its context: all of it on the left, and on the right what the context added, above its floor."""
    fig, (left, right) = figure(330, columns=2)
    plain = {kind: own for kind, own in found.items() if kind.cache == "packed" and kind.rows == 1}
    for kind, own in plain.items():
        drawn(left, kind, {n: step["us"]["median"] / 1e3 for n, step in own.items()})
        longer = {n: step for n, step in own.items() if step["added_us"] > 0 and step["added_floor_us"] > 0}
        drawn(right, kind, {n: step["added_us"] for n, step in longer.items()})
        floors = [step["added_floor_us"] for step in longer.values()]
        right.plot(list(longer), floors, "-" if kind.pool else "--", color=COLOURS["query"], lw=0.8)
    left.set(ylim=(0, None), ylabel="ms")
    right.set(yscale="log", ylabel="µs")
    right.yaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:,.0f}"))
    for ax, title, first in ((left, "a step", 3e3), (right, "added to that at 4K; black: the floor", 2e4)):
        ax.set_title(title, fontsize=10, loc="left")
        ax.set(xscale="log", xlim=(first, 7e6), xlabel="tokens of each sequence")
        ax.set_xticks(*LENGTHS)
        ax.minorticks_off()
        ax.set_xlim(first, 7e6)
    return fig


def drawn(ax: Axes, kind: Kind, values: dict[int, float]) -> None:
    """A line over the context, solid with the pool and dashed without, named at its end."""
    if values:
        shade, name = COLOURS["main" if kind.batch == 1 else "encoder"], f"{kind.batch} at once"
        ax.plot(list(values), list(values.values()), "o-" if kind.pool else "o--", color=shade, lw=1.6, ms=4)
        if kind.pool or ax.get_yscale() == "log" or kind.batch > 1:
            style = dict(textcoords="offset points", color=shade, va="center", fontsize=9)
            ax.annotate(name if kind.pool else "no pool", max(values.items()), (7, 0), **style)
