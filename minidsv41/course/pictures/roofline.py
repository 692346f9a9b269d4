"""Figures of lesson 12: recorded times under the roof, their distance to the floor, and the widget's two panels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import log

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.limits import Card, binds, floor, h200, limits, released
from minidsv41.course.peers import Point
from minidsv41.course.records import record

LOW, HIGH = 0.3, 50_000  # FLOP a byte
KINDS = {
    "seam": "query",
    "kv_write": "other",
    "index, decode": "index",
    "index, prompt": "index",
    "sparse attention, decode": "main",
    "sparse attention, prompt": "encoder",
    "window attention, prompt": "window",
    "Engram read": "decoder",
    "gated delta": "state",
}
THEIRS, OURS = dict(marker="o", ms=6), dict(marker="D", ms=8, mec="white", mew=1)
LIMITS = {"memory": COLOURS["main"], "arithmetic": COLOURS["draft"], "launch": COLOURS["other"]}


def roof(ax: Axes, on: Card) -> None:
    ax.plot([LOW, on.ridge, HIGH], [LOW * on.copy / 1e3, on.products, on.products], color=COLOURS["query"], lw=1.4)
    ax.set(xscale="log", yscale="log", xlim=(LOW, HIGH))
    ax.set(xlabel="FLOP for each byte that must move", ylabel="TFLOP/s (BF16)")
    ax.set_xticks([1, 10, 100, 1000, 10_000], ["1", "10", "100", "1,000", "10,000"])
    ax.set_yticks([0.01, 0.1, 1, 10, 100, 1000], ["0.01", "0.1", "1", "10", "100", "1,000"])
    ax.minorticks_off()


def colour(point: Point) -> str:
    return COLOURS[KINDS[point.work.name]]


def roofline(points: Sequence[Point], ours: Sequence[Point], on: Card) -> Figure:
    """A mark for each recorded time; a stem to where its floor would put it. Only work that has products."""
    fig, ax = figure(460)
    roof(ax, on)
    ax.set_ylim(0.02, 2_000)
    for p in (*points, *ours):
        if p.intensity:
            top = p.work.products(p.tokens) / p.floor(on) / 1e6
            ax.plot([p.intensity] * 2, [p.tflops, top], color=colour(p), lw=1.2)
            ax.plot([p.intensity], [p.tflops], color=colour(p), zorder=6, **(OURS if p in ours else THEIRS))
            ax.plot([p.intensity], [top], "o", mfc="white", mec=colour(p), ms=5, zorder=4)
    placed(ax, {p.work.name for p in (*points, *ours)})
    for p in points:
        if p.work.name == "seam":
            text = f"{p.label} tokens" if p.tokens > 1 else "1 token"
            place = dict(xytext=(7, 3 if p.tokens == 32768 else -9), textcoords="offset points")
            ax.annotate(text, (p.intensity, p.tflops), fontsize=8, **place)
    ax.text(1.3, 8.5, f"{on.copy:,.0f} GB/s", rotation=34, fontsize=8)
    ax.text(HIGH, on.products * 1.15, f"{on.products:,.0f} TFLOP/s", ha="right", va="bottom", fontsize=8)
    legend(ax, bool(ours))
    return fig


def placed(ax: Axes, names: Collection[str]) -> None:
    """Each operation's name beside its marks."""
    where = {
        "seam": (0.6, 0.25, "seam"),
        "index, decode": (78, 78, "index,\ndecode"),
        "index, prompt": (12_000, 100, "index,\nprompt"),
        "sparse attention, decode": (320, 9, "sparse attention,\ndecode"),
        "sparse attention, prompt": (900, 330, "sparse attention,\nprompt"),
        "window attention, prompt": (112, 6, "window\nattention,\nprompt"),
        "gated delta": (320, 75, "gated delta"),
    }
    for name in where.keys() & names:
        x, y, text = where[name]
        right = name in ("index, decode", "index, prompt", "window attention, prompt")
        style = dict(color=COLOURS[KINDS[name]], fontweight="bold", fontsize=8, va="center")
        ax.text(x, y, text, ha="right" if right else "left", **style)


def legend(ax: Axes, ours: bool) -> None:
    """What the marks mean, in grey, and when they were measured."""
    said = {f"best kernel of others, {when('peers_h200')}": THEIRS}
    said |= {f"this package's kernel, {when('kernels_h200')}": OURS} if ours else {}
    marks = {"the floor": dict(marker="o", mfc="white", ms=5)} | said
    handles = [Line2D([], [], ls="", color=COLOURS["other"], label=name, **mark) for name, mark in marks.items()]
    style = dict(fontsize=9, frameon=False, handletextpad=0.2, title_fontsize=9, alignment="left")
    ax.legend(handles=handles, title="Measured on one NVIDIA H200", loc="upper left", **style)


def when(name: str) -> str:
    """The date of a record, of its latest run if it has several."""
    found = record(name)
    return found.get("runs", [found])[-1]["machine"]["date"]


def distances(points: Sequence[Point], ours: Sequence[Point], on: Card) -> Figure:
    """How many floors each recorded time is, a row an operation: others' above the line, this package's below it."""
    names = [name for name in KINDS if name in {p.work.name for p in (*points, *ours)}]
    fig, ax = figure(70 + (58 if ours else 36) * len(names))
    for row, name in enumerate(names):
        sides = [[p for p in side if p.work.name == name] for side in (points, ours)]
        most = max(p.times(on) for side in sides for p in side)
        ax.plot([1, most], [row, row], color="#DDDDDD", lw=1, zorder=1)
        for own, mark, shift in zip(sides, (THEIRS, OURS), (-0.12, 0.12) if ours else (0, 0), strict=True):
            strung(ax, sorted(own, key=lambda p: p.times(on)), row + shift, mark, on)
    widest = max(p.times(on) for p in (*points, *ours))
    ax.axvline(1, color=COLOURS["query"], lw=1.2)
    ax.set(xscale="log", xlim=(0.93, 1.4 * widest), ylim=(len(names) - 0.4, -0.8), xlabel="recorded time / floor")
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200) if t < 1.4 * widest]
    ax.set_xticks(ticks, [str(t) for t in ticks])
    ax.minorticks_off()
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return fig


def strung(ax: Axes, own: Sequence[Point], y: float, mark: dict, on: Card) -> None:
    """Marks on one line, each with its tokens on the outer side; where there is no room, the later stays without."""
    end = -1.0  # of the text before, as a logarithm
    for p in own:
        at, half = p.times(on), 0.028 * len(p.label)
        ax.plot([at], [y], color=colour(p), zorder=3, **mark)
        if log(at) - half > end:
            place = dict(textcoords="offset points", fontsize=8, ha="center", va="top" if mark is OURS else "bottom")
            ax.annotate(p.label, (at, y), (0, -6 if mark is OURS else 5), **place)
            end = log(at) + half


def moved(*, power: int, operation: str, start: str) -> Figure:
    """The widget's picture: under the roof on the left, the three limits over the tokens on the right."""
    fig, (left, right) = figure(330, columns=2)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.105, right=0.97, top=0.92, bottom=0.15, wspace=0.3)
    work, on, tokens = released()[operation], h200(start), 2**power
    roof(left, on)
    left.set_ylim(1e-4, 3_000)
    left.set_yticks([0.001, 0.1, 10, 1000], ["0.001", "0.1", "10", "1,000"])
    flops = work.products(tokens)
    if flops:
        x, y = flops / work.bytes(tokens), flops / floor(work, tokens, on) / 1e6
        left.plot([x, x], [y, min(on.products, x * on.copy / 1e3)], color=COLOURS["other"], lw=1)
        left.plot([x], [y], "o", color=COLOURS[KINDS[operation]], ms=9, zorder=5)
    else:
        left.text(0.5, 0.3, "no matrix products", ha="center", transform=left.transAxes)
    lines(right, operation, tokens, start)
    return fig


def lines(ax: Axes, operation: str, tokens: int, start: str) -> None:
    """µs of each limit over the tokens; the one that binds at `tokens` is thick."""
    work, on = released()[operation], h200(start)
    at = [2**n for n in range(16)]
    now = binds(work, tokens, on)
    for name, shade in LIMITS.items():
        times = [limits(work, t, on)[name] for t in at]
        if any(times):
            ax.plot(at, times, color=shade, lw=2.6 if name == now else 1.2)
            ax.plot([tokens], [limits(work, tokens, on)[name]], "o", color=shade, ms=7 if name == now else 4)
    for y, (name, shade) in zip((0.95, 0.88, 0.81), LIMITS.items(), strict=True):
        bold = "bold" if name == now else "normal"
        ax.text(0.03, y, name, color=shade, transform=ax.transAxes, fontweight=bold, fontsize=9)
    ax.set(xscale="log", yscale="log", xlim=(0.8, 5e4), ylim=(1e-3, 1e6), xlabel="tokens", ylabel="µs at least")
    ax.set_xticks([1, 32, 1024, 32768], ["1", "32", "1,024", "32,768"])
    ax.set_yticks([0.01, 1, 100, 10_000], ["0.01", "1", "100", "10,000"])
    ax.minorticks_off()
