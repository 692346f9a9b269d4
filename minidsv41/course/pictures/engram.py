"""Pictures of a table that knows phrases: crowded rows, a gate's shape, sentences coloured by their gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.lookup import Found

GATE = matplotlib.colormaps["YlGnBu"]
WORSE, BETTER = COLOURS["draft"], COLOURS["other"]
ONE, ALL = COLOURS["main"], COLOURS["draft"]


def crowded(
    counted: Mapping[int, Sequence[tuple[float, float, float]]], theory: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Figure:
    """Shares of n-grams with a shared row against the load of a table, counted and computed.

    counted: {n: (load, share shared in one head, share shared in all heads)}; theory: loads -> both shares.
    """
    fig, ax = figure(300)
    load = torch.logspace(-2.3, 1.7, 200, dtype=torch.float64)
    for curve, colour in zip(theory(load), (ONE, ALL), strict=True):
        ax.plot(load, 100 * curve, color=colour, lw=1.4)
    for (n, points), marker in zip(counted.items(), "os^", strict=True):
        for x, *shares in points:
            for share, colour in zip(shares, (ONE, ALL), strict=True):
                ax.plot(x, 100 * share, marker, color=colour, ms=5)
        ax.plot([], [], marker, color="#555555", ms=5, label=f"counted, n = {n}")
    ax.text(0.12, 38, "shared in one given head", color=ONE, fontweight="bold", ha="right")
    ax.text(3.9, 38, "shared in all eight", color=ALL, fontweight="bold")
    ax.set(xscale="log", xlabel="different n-grams for each row", ylabel="n-grams that share, %", ylim=(-3, 103))
    ax.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
    ax.legend(loc="upper left")
    return fig


def roots(shapes: Mapping[str, Callable[[Tensor], Tensor]], scores: Tensor) -> Figure:
    """Gates as functions of the score, and where real scores [N] land."""
    fig, (curve, bars) = figure(260, columns=2)
    s = torch.linspace(-4, 4, 801, dtype=torch.float64)
    edges = torch.linspace(0.02, 0.98, 49, dtype=torch.float64)
    for (name, gate), colour, y in zip(shapes.items(), (COLOURS["other"], "#2171B5"), (0.93, 0.80), strict=True):
        curve.plot(s, gate(s), color=colour, lw=2)
        bars.hist(gate(scores).numpy(), edges.numpy(), color=colour, alpha=0.75)
        bars.text(0.5, y, name, color=colour, fontweight="bold", ha="center", transform=bars.transAxes)
    curve.set(xlabel="score s", ylabel="gate", ylim=(0, 1), xlim=(-4, 4))
    bars.set(xlabel="gate on real text", ylabel="how many", xlim=(0, 1))
    bars.set_ylim(0, 1.35 * bars.get_ylim()[1])
    return fig


def cells(ax: Axes, gates: Tensor, y: float, height: float) -> None:
    """A row of T cells in the colours of gates [T]."""
    for at, gate in enumerate(gates.tolist()):
        ax.add_patch(Rectangle((at, y), 1, height, facecolor=GATE(gate), edgecolor="white", lw=0.8))


def sentences(parts: Sequence[tuple[Sequence[tuple[str, int]], Tensor, Tensor]], layers: Sequence[int]) -> Figure:
    """Sentences coloured by gate, a row a layer, and what each next token costs more without the table.

    parts: (labels with the number of tokens under each, gates [T, layers], added nats [T]).
    """
    fig, axes = figure(260 * len(parts), rows=2 * len(parts))
    fig.set_layout_engine(None)
    top = max(float(lost.max()) for _, _, lost in parts) * 1.1
    low = min(float(lost.min()) for _, _, lost in parts) * 1.2
    share = 1 / len(parts)
    for n, (names, gates, lost) in enumerate(parts):
        strip, bars = axes[2 * n : 2 * n + 2]
        base = 1 - (n + 1) * share
        strip.set_position((0.11, base + 0.54 * share, 0.85, 0.18 * share))
        bars.set_position((0.11, base + 0.06 * share, 0.85, 0.45 * share))
        for row in range(len(layers)):
            cells(strip, gates[:, row], -row, 0.94)
        at = 0
        for name, count in names:
            strip.text(at + count / 2 - 0.2, 1.12, name, ha="left", rotation=50 * (name != "⏎"))
            if at:
                strip.plot([at, at], [1 - len(layers), 0.95], color="black", lw=0.9)
            at += count
        strip.set(xlim=(0, len(lost)), ylim=(1 - len(layers), 1))
        strip.set_yticks([0.5 - row for row in range(len(layers))], [f"layer {layer}" for layer in layers])
        strip.set_xticks([])
        strip.tick_params(left=False)
        strip.spines[:].set_visible(False)
        shade = [WORSE if nats > 0 else BETTER for nats in lost.tolist()]
        bars.bar([i + 0.5 for i in range(len(lost))], lost.tolist(), width=0.75, color=shade)
        bars.axhline(0, color="black", lw=0.8)
        bars.set(xlim=(0, len(lost)), ylim=(low, top), ylabel="added loss, nats")
        bars.set_xticks([])
        bars.spines[["bottom"]].set_visible(False)
    for n, gate in enumerate((0.2, 0.35, 0.5, 0.65, 0.8)):
        said = dict(facecolor=GATE(gate), edgecolor="white", pad=3)
        dark = "white" if gate > 0.6 else "black"
        fig.text(0.72 + 0.055 * n, 0.97, f"{gate:.2f}", fontsize=8, color=dark, ha="center", va="center", bbox=said)
    fig.text(0.685, 0.97, "gate", fontsize=8, ha="right", va="center")
    return fig


def looked_up(found: Found, token: int, layer: int) -> Figure:
    """A text coloured by the gates of its streams, and how crowded the rows of one token are."""
    fig, (strip, bars) = figure(350, rows=2)
    fig.set_layout_engine(None)
    count, at = len(found.names), min(token, len(found.names) - 1)
    strip.set_position((0.11, 0.56, 0.81, 0.22))
    bars.set_position((0.11, 0.13, 0.81, 0.26))
    gates = found.gates[layer]
    for stream in range(gates.shape[1]):
        cells(strip, gates[:, stream], gates.shape[1] - 1 - stream, 0.94)
    strip.add_patch(Rectangle((at, 0), 1, gates.shape[1], fill=False, edgecolor="black", lw=2))
    for i, name in enumerate(found.names):
        strip.text(i + 0.4, gates.shape[1] + 0.15, name, rotation=50, ha="left", fontweight="bold" if i == at else None)
    strip.set(xlim=(0, max(count, 12)), ylim=(0, gates.shape[1]), ylabel="streams")
    strip.set_xticks([])
    strip.set_yticks([])
    strip.spines[:].set_visible(False)
    crowd, known, top = found.crowd[layer][at], found.known[at], int(found.crowd[layer].max())
    for order, row in enumerate(crowd.tolist()):
        places = [order * (len(row) + 1) + head for head in range(len(row))]
        bars.bar(places, row, color=ONE if known[order] else BETTER, width=0.8)
        said = f"n = {order + 2}, " + ("seen" if known[order] else "never seen")
        bars.text(places[0] - 0.4, 1.04 * top, said, color=ONE if known[order] else "#555555", fontweight="bold")
    bars.set(ylim=(0, top), ylabel="n-grams in the row", xlabel="heads of each order")
    bars.set_xticks([])
    return fig
