"""Lesson 04: the two-token mixer, and a schedule as a metro map."""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidsv41.config import ConfigError, ModelConfig
from minidsv41.course.figures import COLOURS, box, figure
from minidsv41.course.mixer import Mix, Point
from minidsv41.course.sharing import layers_of, owner_bytes, ratios_of, readers, scheduled

HEIGHT = 330
LEFT, RIGHT, TOP, BOTTOM = 0.1, 0.985, 0.90, 0.15
LEAST = 890  # B/token that the scale reaches at least, so that thicknesses compare


def mixer(mix: Mix, *, names: tuple[str, str], trained: Point | None = None) -> Figure:
    """The segment and the box between two tokens, the entry, and (trained) where the trained gates put it."""
    fig, ax = figure(HEIGHT)
    fig.set_layout_engine(None)
    fig.subplots_adjust(left=LEFT, right=0.72, top=0.95, bottom=0.15)
    (x0, y0), (x1, y1) = mix.first, mix.second
    ax.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, facecolor=COLOURS["index"], alpha=0.3, lw=0))
    ax.plot([x0, x1], [y0, y1], color=COLOURS["other"], lw=2, zorder=2)
    for x, y, name, other in ((x0, y0, names[0], y1), (x1, y1, names[1], y0)):
        ax.plot(x, y, "o", color=COLOURS["query"], ms=9, zorder=3)
        above = y >= other
        place = dict(textcoords="offset points", ha="center", va="bottom" if above else "top")
        ax.annotate(name, (x, y), (0, 9 if above else -9), fontweight="bold", **place)
    if trained:
        ax.plot(*trained, "*", color=COLOURS["draft"], ms=15, zorder=4)
    ax.plot(*mix.entry, "o", color=COLOURS["main"], ms=11, zorder=5, markeredgecolor="white")
    pad_x, pad_y = 0.2 * abs(x1 - x0) + 0.05, 0.2 * abs(y1 - y0) + 0.05
    ax.set_xlim(min(x0, x1) - pad_x, max(x0, x1) + pad_x)
    ax.set_ylim(min(y0, y1) - pad_y, max(y0, y1) + pad_y)
    ax.set(xlabel="content in the first channel", ylabel="content in the second channel")
    keys = [("● the entry", "main"), ("│ one gate reaches", "other"), ("■ two gates reach", "index")]
    keys += [("★ the trained gates", "draft")] if trained else []
    for row, (name, kind) in enumerate(keys):
        ax.text(1.04, 0.95 - 0.09 * row, name, color=COLOURS[kind], transform=ax.transAxes, fontweight="bold")
    return fig


def metro(c: ModelConfig, *, layer: int | None = None, budget: int | None = None) -> Figure:
    """A line for each owner, as thick as the bytes that it adds for a token, with a stop at each reader.

    Rings are layers that choose. The lowest track has all layers; on it stop those that read their window only.
    layer: one reader to follow. budget: B/token.
    """
    fig, ax = figure(HEIGHT)
    fig.set_layout_engine(None)
    fig.subplots_adjust(left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    high = 1.12 * max(float(sum(owner_bytes(c, o) for o in c.kv_source_layer_ids)), LEAST)
    ax.set(xlim=(-1, c.num_hidden_layers), ylim=(-0.2 * high, high), xlabel="layer", ylabel="B/token, lines added up")
    track(ax, c, -0.07 * high, layer)
    points = (TOP - BOTTOM) * HEIGHT / 100 * 72 / (1.2 * high)  # points for a byte
    below = 0.0
    for owner in c.kv_source_layer_ids:
        size = float(owner_bytes(c, owner))
        ax.plot([owner, owner], [-0.07 * high, below + size / 2], color=COLOURS["other"], lw=1, zorder=0)
        line(ax, c, owner, below + size / 2, thickness=size * points, layer=layer)
        below += size
    if budget:
        ax.axhline(budget, color=COLOURS["query"], lw=1, ls="--", zorder=0)
        ax.text(-0.6, budget + 0.02 * high, f"budget {budget} B", color=COLOURS["query"])
    ax.axvline(c.decoder_start - 0.5, color=COLOURS["query"], lw=1, ls=":", zorder=0)
    for at, name in ((c.decoder_start / 2, "encoder"), (c.decoder_start * 1.5, "decoder")):
        place = dict(ha="center", fontweight="bold", transform=ax.get_xaxis_transform())
        ax.text(at - 0.5, 1.02, name, color=COLOURS[name], **place)
    ax.locator_params(axis="y", nbins=6)
    ax.set_yticks([t for t in ax.get_yticks() if 0 <= t <= high])
    ax.set_xticks(range(0, c.num_hidden_layers, 4))
    ax.tick_params(bottom=False)
    ax.spines["bottom"].set_visible(False)
    return fig


def track(ax: Axes, c: ModelConfig, y: float, layer: int | None) -> None:
    """All layers, in the order in which a token passes them; those without entries stop here."""
    ax.plot([0, c.num_hidden_layers - 1], [y, y], color=COLOURS["other"], lw=3, zorder=1)
    alone = [i for i in range(c.num_hidden_layers) if c.ratio(i) == 0]
    ax.plot(alone, [y] * len(alone), "o", color=COLOURS["window"], ms=7, zorder=3)
    if layer in alone:
        followed(ax, layer, y, shift=-6)
    elif alone:
        ax.annotate(
            "window only", (alone[0], y), (-4, -7), textcoords="offset points", va="top", color=COLOURS["window"]
        )


def line(ax: Axes, c: ModelConfig, owner: int, y: float, *, thickness: float, layer: int | None) -> None:
    """One owner's line: station, stops, choosers and what it costs."""
    stops = readers(c, owner)
    crowded = thickness < 9
    colour = COLOURS["encoder" if owner < c.decoder_start else "decoder"]
    ax.plot([stops[0] - 0.4, stops[-1] + 0.4], [y, y], color=colour, lw=thickness, solid_capstyle="butt", zorder=2)
    ax.plot(stops, [y] * len(stops), "o", color="white", ms=2 if crowded else 4, zorder=3)
    rings = [s for s in stops if s in c.index_source_layer_ids]
    ax.plot(rings, [y] * len(rings), "o", mfc="white", mec=COLOURS["query"], ms=3 if crowded else 8, mew=1, zorder=4)
    if not crowded:
        ax.plot(owner, y, "o", mfc="white", mec=COLOURS["query"], ms=17, mew=1.5, zorder=5)
        ax.text(owner, y, f"{owner}", ha="center", va="center", fontsize=8, fontweight="bold", zorder=6)
        label(ax, c, stops, y, f"{float(owner_bytes(c, owner)):g} B, {len(stops)} readers")
    if layer in stops:
        followed(ax, layer, y, shift=max(thickness / 2 + 2, 6))


def label(ax: Axes, c: ModelConfig, stops: list[int], y: float, text: str) -> None:
    """Beside the line where there is room: behind its end, before its station, or on it."""
    place = dict(va="center", zorder=6, bbox=dict(facecolor="white", edgecolor="none", pad=1.5))
    if stops[-1] + 8 < c.num_hidden_layers:
        ax.text(stops[-1] + 0.9, y, text, **place)
    elif stops[0] > 9:
        ax.text(stops[0] - 1.2, y, text, ha="right", **place)
    else:
        ax.text(stops[len(stops) // 2], y, text, ha="center", **place)


def followed(ax: Axes, layer: int, y: float, *, shift: float) -> None:
    """Mark the reader that a control follows; its name stands so many points above it, or below it."""
    ax.plot(layer, y, "o", mfc=COLOURS["draft"], mec="white", ms=10, zorder=7)
    place = dict(textcoords="offset points", ha="center", va="bottom" if shift > 0 else "top", zorder=7)
    style = dict(color=COLOURS["draft"], fontweight="bold", bbox=dict(facecolor="white", edgecolor="none", pad=0.5))
    ax.annotate(f"layer {layer}", (layer, y), (0, shift), **place, **style)


def refused(message: str, ratios: tuple[int, ...], owners: tuple[int, ...]) -> Figure:
    """In place of the map of a schedule that the config refuses: the rule, and the layer that it is about."""
    fig, ax = figure(HEIGHT)
    fig.set_layout_engine(None)
    fig.subplots_adjust(left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    ax.set(xlim=(-1, max(40, len(ratios))), ylim=(0, 1))
    ax.set_axis_off()
    ax.text(0, 0.9, "no such network", color=COLOURS["draft"], fontsize=13, fontweight="bold")
    ax.text(0, 0.82, fill(message, 80), va="top", linespacing=1.5)
    about = re.search(r"compress_ratios\[(\d+)\]|layer (\d+)", message)
    for layer, ratio in enumerate(ratios):
        box(ax, layer - 0.45, 0.3, 0.9, 0.14, {0: "window", 1: "main", 2: "index"}.get(ratio, "other"), f"{ratio}")
    for owner in owners:
        ax.text(owner, 0.22, f"{owner}", ha="center", va="center", fontweight="bold")
    for y, row, name in ((0.37, ratios, "ratio"), (0.22, owners, "owner")):
        if row:
            ax.text(-0.9, y, name, ha="right", va="center")
    if about:
        layer = int(about[1] or about[2])
        ax.add_patch(Rectangle((layer - 0.6, 0.27), 1.2, 0.2, facecolor="none", edgecolor=COLOURS["draft"], lw=2.5))
    return fig


def drawn(ratios: str, owners: str, choosers: str, layer: int, *, budget: int) -> Figure:
    """The map of a schedule written in short, or why there is none."""
    try:
        return metro(scheduled(ratios, owners, choosers), layer=layer, budget=budget)
    except ConfigError as error:
        return refused(str(error), readable(ratios_of, ratios), readable(layers_of, owners))


def readable(parse: Callable[[str], tuple[int, ...]], text: str) -> tuple[int, ...]:
    try:
        return parse(text)
    except ConfigError:
        return ()
