"""Figures of lesson 01b: the two-part memory with its crossovers, and norms over many draws."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.twoparts import LAYERS, TwoParts
from minidsv41.ledger.deployed import model

LOW, HIGH = 7, 20  # exponents of two
KIB, MIB = 1 << 10, 1 << 20
ROWS, STATE, BOTH, OTHER = (COLOURS[n] for n in ("main", "state", "query", "other"))


def prepared(height: int) -> tuple[Figure, Axes]:
    fig, ax = figure(height)
    ax.set(xscale="log", yscale="log", xlim=(2**LOW, 2**HIGH), ylim=(1e6, 2e11))
    ax.set(xlabel="tokens of the conversation", ylabel="bytes that one request holds")
    ticks = {128: "128", KIB: "1K", 8 * KIB: "8K", 64 * KIB: "64K", MIB: "1M"}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set_yticks([1e6, 1e7, 1e8, 1e9, 1e10, 1e11], ["1 MB", "10 MB", "100 MB", "1 GB", "10 GB", "100 GB"])
    ax.minorticks_off()
    return fig, ax


def tokens() -> list[float]:
    return [2 ** (LOW + i / 8) for i in range(8 * (HIGH - LOW) + 1)]


def straight(ax: Axes, per_token: float, fixed: float = 0.0, **style) -> None:
    ax.plot(tokens(), [fixed + n * per_token for n in tokens()], **style)


def crossing(ax: Axes, m: TwoParts, text: str, offset: tuple[int, int], **style) -> None:
    """Where the rows are as large as the state."""
    at = (m.crossover, m.state)
    ax.plot(*at, "o", color=BOTH, ms=6, zorder=5)
    ax.annotate(text, at, offset, textcoords="offset points", fontweight="bold", **style)


def two_parts() -> Figure:
    """Qwen3.5-397B with its state in both dtypes; grey: rows in all layers, and V4.1-Flash."""
    fig, ax = prepared(440)
    full, flash = TwoParts(state_layers=0), model("DeepSeek-V4.1-Flash")
    straight(ax, full.per_token, color=OTHER, ls="--", lw=1.2)
    straight(ax, float(flash.per_token.value), float(flash.per_request.value), color=OTHER, lw=1.2)
    straight(ax, TwoParts().per_token, color=ROWS, lw=1.6)
    for dtype, line, side, right in (("FP32", "-", "bottom", 17.5), ("BF16", ":", "top", 20)):
        m = TwoParts(dtype=dtype)
        straight(ax, 0, m.state, color=STATE, lw=1.6, ls=line)
        straight(ax, m.per_token, m.state, color=BOTH, lw=2, ls=line)
        ax.text(2**right, m.state, f"state, {dtype}: {m.state / 1e6:.1f} MB", ha="right", va=side, color=STATE)
        crossing(ax, m, f"{m.crossover:,.0f} tokens", (8, -5), ha="left", va="top")
    place = dict(textcoords="offset points", rotation=25.5, rotation_mode="anchor", ha="center")
    ax.annotate(f"rows in all {LAYERS} layers", (2**17, 2**17 * full.per_token), (0, 6), color=OTHER, **place)
    ax.annotate("rows of 15 layers", (2**9.2, 2**9.2 * TwoParts().per_token), (0, 6), color=ROWS, **place)
    ax.annotate("both parts", (2**15, TwoParts().held(2**15)), (0, 8), color=BOTH, **place)
    ax.annotate("V4.1-Flash", (2**14.6, float(flash.held(2**14).value)), (4, -16), color=OTHER, **place)
    return fig


def at(*, tokens: int, state_layers: int, heads: int, dtype: str) -> Figure:
    """The widget's picture: both parts of one model, and where the conversation stands."""
    fig, ax = prepared(340)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.12, right=0.98, top=0.96, bottom=0.14)
    m, n = TwoParts(state_layers=state_layers, heads=heads, dtype=dtype), 2**tokens
    straight(ax, TwoParts(state_layers=0).per_token, color=OTHER, ls="--", lw=1.2)
    straight(ax, m.per_token, m.state, color=BOTH, lw=2)
    straight(ax, m.per_token, color=ROWS, lw=1.6)
    straight(ax, 0, m.state, color=STATE, lw=1.6)
    if m.state and m.crossover and 2**LOW < m.crossover < 2**HIGH:
        ground = dict(facecolor="white", edgecolor="none", pad=1)
        crossing(ax, m, f"{m.crossover:,.0f} tokens", (8, -6), ha="left", va="top", bbox=ground)
    ax.axvline(n, color=OTHER, lw=1)
    ax.plot([n], [m.held(n)], "o", color=BOTH, ms=9, zorder=6)
    for y, text, colour in ((0.95, "both", BOTH), (0.89, "rows", ROWS), (0.83, "state", STATE)):
        ax.text(0.02, y, text, transform=ax.transAxes, color=colour, fontweight="bold", va="top")
    ax.text(0.02, 0.77, f"dashed: rows in all {LAYERS} layers", transform=ax.transAxes, color=OTHER, va="top")
    return fig


def norms(found: Mapping[str, Tensor], pair: tuple[float, float]) -> Figure:
    """Norms of the state over many draws, one strip for each rule; lines at the published pair."""
    fig, ax = figure(70 + 62 * len(found))
    last = 1.05 * max(float(x.max()) for x in found.values())
    for row, values in enumerate(found.values()):
        counts = values.histc(bins=150, min=0, max=last)
        height = 0.85 * counts / counts.max()
        edges = [last * i / 150 for i in range(151)]
        colour = STATE if row == len(found) - 1 else OTHER
        ax.stairs((row - height + 0.45).tolist(), edges, baseline=row + 0.45, fill=True, color=colour)
        ax.text(last, row + 0.1, f"mean {float(values.mean()):.1f}", ha="right", color=colour, fontweight="bold")
    for x, row in zip(pair, (0, len(found) - 1), strict=True):
        ax.plot([x, x], [row - 0.55, row + 0.45], color=BOTH, lw=1.5)
        ax.text(x + 0.15, row - 0.45, f"{x}", fontsize=9)
    ax.set(xlim=(0, last), ylim=(len(found) - 0.5, -0.7), xlabel="norm of the state after 12 stores under one key")
    ax.set_yticks(range(len(found)), list(found))
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return fig
