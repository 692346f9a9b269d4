"""One look for all figures: the same colour for the same thing, direct labels, 700 pixels wide."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import groupby

import matplotlib
import numpy as np
import PIL.Image
from IPython.display import Image
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidsv41.config import ModelConfig
from minidsv41.course.reads import Reading

# Okabe and Ito's palette, and a dark red of Tol's: told apart with any kind of colour vision.
COLOURS = {
    "window": "#E69F00",
    "main": "#0072B2",
    "index": "#56B4E9",
    "encoder": "#009E73",
    "decoder": "#CC79A7",
    "draft": "#D55E00",
    "query": "#000000",
    "other": "#8C8C8C",
    "state": "#882255",
}
WIDTH = 700
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.facecolor": "white",
    "legend.frameon": False,
}


def figure(height: int, *, rows: int = 1, columns: int = 1) -> tuple[Figure, Axes]:
    """A figure of 700 x `height` pixels, with its axes (an array of them for a grid)."""
    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=(WIDTH / 100, height / 100), dpi=100, layout="constrained")
        FigureCanvasAgg(fig)
        return fig, fig.subplots(rows, columns)


def png(fig: Figure) -> bytes:
    """The figure as a small PNG of 128 colours, on white: it reads the same in a dark theme."""
    with matplotlib.rc_context(STYLE), io.BytesIO() as out:
        fig.canvas.draw()
        pixels = PIL.Image.fromarray(np.asarray(fig.canvas.buffer_rgba())).convert("RGB")
        pixels.quantize(128, dither=PIL.Image.Dither.NONE).save(out, format="png", optimize=True)
        return out.getvalue()


def show(fig: Figure) -> Image:
    """What a cell returns to display the figure."""
    return Image(png(fig))


def box(ax: Axes, x: float, y: float, width: float, height: float, kind: str, text: str = "", **style) -> None:
    """A filled rectangle in the colour of `kind`, labelled in its middle."""
    ax.add_patch(Rectangle((x, y), width, height, facecolor=COLOURS[kind], edgecolor="white", **style))
    if text:
        dark = kind in ("main", "query", "encoder", "draft")
        ax.text(
            x + width / 2,
            y + height / 2,
            text,
            ha="center",
            va="center",
            fontsize=8,
            color="white" if dark else "black",
        )


def lifetimes(parts: Sequence[tuple[str, str, float, float]]) -> Figure:
    """Rectangles of bytes and lifetime, both axes logarithmic.

    parts: (label, kind of colour, bytes of one token, seconds that they live).
    """
    fig, ax = figure(400)
    low_s, low_b = min(p[3] for p in parts) / 20, min(p[2] for p in parts) / 4
    for label, kind, size, seconds in sorted(parts, key=lambda p: p[3], reverse=True):
        ax.add_patch(
            Rectangle((low_s, low_b), seconds - low_s, size - low_b, facecolor=COLOURS[kind], alpha=0.30, lw=0)
        )
        ax.plot([low_s, seconds, seconds], [size, size, low_b], color=COLOURS[kind], lw=2)
        last = seconds == max(p[3] for p in parts)
        ax.annotate(
            label,
            (seconds, size),
            (-4, 4) if last else (6, -8),
            textcoords="offset points",
            ha="right" if last else "left",
            fontweight="bold",
        )
    ax.set(xscale="log", yscale="log", ylabel="bytes that one token leaves")
    ax.set_xlim(low_s, max(p[3] for p in parts) * 3)
    ax.set_ylim(low_b, max(p[2] for p in parts) * 4)
    ticks = {0.01: "10 ms", 1: "1 s", 60: "1 min", 3600: "1 h", 86400: "1 day"}
    ax.set_xticks([t for t in ticks if t > low_s], [n for t, n in ticks.items() if t > low_s])
    ax.minorticks_off()
    ax.set_xlabel("how long they are kept")
    return fig


def runs(values: Iterable[int | None]) -> list[tuple[int, int, int | None]]:
    """(first, count, value) of each run of equal values."""
    out, at = [], 0
    for value, group in groupby(values):
        count = len(list(group))
        out.append((at, count, value))
        at += count
    return out


def schedule(config: ModelConfig) -> Figure:
    """Which layer keeps what: a column a layer; who wrote the entries and who chose among them."""
    layers = range(config.num_hidden_layers)
    fig, ax = figure(230)
    for layer in layers:
        box(ax, layer, 2.1, 1, 0.8, "window")
    for row, owner, kind in ((1.1, config.kv_owner, "main"), (0.1, config.index_owner, "index")):
        for first, count, value in runs(map(owner, layers)):
            if value is None:
                continue
            box(ax, first, row, count, 0.8, kind, alpha=0.55)
            box(ax, first, row, 1, 0.8, kind)
            ax.text(first + (count + 1) / 2, row + 0.4, f"{value}", ha="center", va="center", fontweight="bold")
    middle = config.decoder_start
    ax.axvline(middle, color="black", lw=1, ls=":")
    for at, name in ((middle / 2, "encoder"), (middle * 1.5, "decoder")):
        ax.text(at, 3.1, name, ha="center", color=COLOURS[name], fontweight="bold")
    ax.set(xlim=(0, len(layers)), ylim=(0, 3.4), xlabel="layer")
    ax.set_yticks([2.5, 1.5, 0.5], ["own window", "entries of layer", "selection of layer"])
    step = 4 if len(layers) > 12 else 1
    ax.set_xticks([i + 0.5 for i in layers[::step]], layers[::step])
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return fig


def attended(found: Sequence[Reading], tokens: int) -> Figure:
    """Tokens that a query reads, a row a layer: window above, selected entries below it."""
    height = 70 + 24 * len(found)
    fig, ax = figure(height)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    fig.subplots_adjust(left=0.12, right=0.98, top=1 - 20 / height, bottom=45 / height)
    query = found[0].window[1]
    ax.axvspan(-0.5, query + 0.5, color="#EEEEEE", lw=0)
    for row, reading in enumerate(found):
        first, last = reading.window
        ax.broken_barh([(first - 0.5, last - first + 1)], (row - 0.4, 0.4), color=COLOURS["window"], lw=0)
        covered = reading.tokens()
        if covered:
            ax.broken_barh([(t - 0.5, 1) for t in covered], (row, 0.4), color=COLOURS["main"], lw=0)
    ax.axvline(query, color=COLOURS["query"], lw=1.5)
    ax.set(xlim=(-0.5, tokens - 0.5), ylim=(len(found) - 0.5, -0.6), xlabel="token")
    ax.set_yticks(range(len(found)), [f"{r.layer}  {r.mode}" for r in found])
    for x, name, kind in ((0, "window", "window"), (0.13, "selected entries", "main"), (0.37, "query", "query")):
        ax.text(x, 1.02, name, color=COLOURS[kind], transform=ax.transAxes, fontweight="bold")
    ax.tick_params(left=False)
    return fig
