"""Pictures of the sparsity laboratory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from minidsv41.course.dial import Answer
from minidsv41.course.drowned import POOL, Drowned
from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.mass import Mass
from minidsv41.course.sparsity import Point

COLUMNS = 98  # characters of a line of words
STRENGTH = {1: 0.55, 2: 0.8, 3: 1.0}  # by how many of three choices hold a word
LOOKS = {
    "oracle": ("query", "--"),
    "indexer": ("index", "-"),
    "recency + sink": ("window", "-"),
    "random": ("other", "-"),
    "yours": ("draft", ""),
}


def fixed(height: int, columns: int, **edges: float) -> tuple[Figure, np.ndarray]:
    """A figure whose layout is set and not computed, so that a widget redraws it quickly."""
    fig, axes = figure(height, columns=columns)
    fig.set_layout_engine(None)
    fig.subplots_adjust(**edges)
    return fig, np.atleast_1d(axes)


def words(now: Answer, dense: Answer) -> Figure:
    """The prompt, each word as strong as the choices that hold it are many; the next token below."""
    fig, (text, bars) = figure(330, rows=2)
    fig.set_layout_engine(None)
    text.set_position([0.01, 0.39, 0.98, 0.53])
    bars.set_position([0.13, 0.08, 0.8, 0.2])
    x = line = 0
    runs: list[list] = []  # [column, line, look, text]: neighbours of one look are drawn at once
    for i, word in enumerate(now.words):
        if x + len(word) > COLUMNS:
            x, line = -(len(word) - len(word.lstrip())), line + 1
        look = ("window", 3) if i >= now.first else ("main", int(now.read[i])) if now.read[i] else ("other", 1)
        if runs and runs[-1][1:3] == [line, look]:
            runs[-1][3] += word
        else:
            runs.append([x, line, look, word])
        x += len(word)
    for column, line, (kind, strength), run in runs:
        style = dict(family="DejaVu Sans Mono", fontsize=8.3, color=COLOURS[kind], alpha=STRENGTH[strength])
        text.text(column + len(run) - len(run.lstrip()), -line, run.strip(), **style)
    text.set(xlim=(0, COLUMNS), ylim=(-max(line, 5) - 0.5, 1))
    text.axis("off")
    k = "every entry" if now is dense else f"k = {now.k}"
    for at, name, kind in (
        (0, f"read by entry, {k}", "main"),
        (0.3, "in the window", "window"),
        (0.5, "lost", "other"),
    ):
        text.text(at, 1.02, name, transform=text.transAxes, color=COLOURS[kind], fontweight="bold")
    nexts(bars, now, dense)
    return fig


def nexts(ax, now: Answer, dense: Answer) -> None:
    """The likeliest next tokens of both, as bars."""
    names = list(dict.fromkeys(w for w, _ in [*dense.top(2), *now.top(3)]))[:4]
    for offset, answer, kind in ((-0.2, dense, "other"), (0.2, now, "main")):
        chance = dict(answer.top(50))
        values = [chance.get(name, 0.0) for name in names]
        ax.barh(np.arange(len(names)) + offset, values, 0.38, color=COLOURS[kind])
    ax.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6))
    ax.set_yticks(range(len(names)), names)
    ax.set_title("probability of the next token: now (blue) and with every entry (grey)", fontsize=9, loc="left")
    ax.tick_params(left=False, labelsize=8)


def teeth(layers: Sequence[int], now: Tensor, mean: Tensor, chance: Sequence[float], marks: Sequence[int]) -> Figure:
    """now, mean [layers, 2]: recall by the choice in force and by the layer's own best; marks: layers that choose."""
    fig, (ax,) = fixed(300, 1, left=0.09, right=0.98, top=0.9, bottom=0.15)
    at = np.arange(len(layers))
    ax.plot(at, mean[:, 1], color=COLOURS["query"], ls="--", lw=1)
    ax.plot(at, now[:, 1], "_", color=COLOURS["query"], ms=22, mew=2)
    starts = [i for i, layer in enumerate(layers) if layer in marks] + [len(layers)]
    for a, b in zip(starts, starts[1:], strict=False):
        ax.plot(at[a:b], mean[a:b, 0], color=COLOURS["index"], lw=2)
        ax.plot(at[a:b], now[a:b, 0], "o", color=COLOURS["main"], ms=9)
        ax.plot(at[a], now[a, 0], "o", color="none", mec=COLOURS["main"], ms=16, mew=1.5)
    ax.plot(at, chance, color=COLOURS["other"], ls=":", lw=1.5)
    ax.set(ylim=(-0.03, 1.08), xlim=(-0.4, len(layers) - 0.6), ylabel="mass on entries that is kept")
    ax.set_xticks(at, [f"layer {layer}\n{'chooses' if layer in marks else 'inherits'}" for layer in layers])
    for x, name, kind in (
        (0.0, "the choice in force", "main"),
        (0.26, "own best of as many", "query"),
        (0.53, "chance", "other"),
        (0.66, "lines: mean of 128 queries", "index"),
    ):
        ax.text(x, 1.04, name, color=COLOURS[kind], transform=ax.transAxes, fontweight="bold")
    return fig


def heads(kept: Tensor, whole: Tensor, lost: Sequence[tuple[str, float]], head: int) -> Figure:
    """Mass of each head that one choice keeps, of what it has on entries; what the chosen head lost."""
    fig, (left, right) = fixed(280, 2, left=0.09, right=0.97, top=0.87, bottom=0.12, wspace=0.5)
    at = np.arange(len(kept))
    left.bar(at, whole, 0.6, color=COLOURS["other"], alpha=0.35)
    left.bar(at, kept, 0.6, color=COLOURS["main"])
    left.bar([head], [whole[head]], 0.7, fill=False, edgecolor=COLOURS["query"], lw=1.5)
    for i, (k, w) in enumerate(zip(kept.tolist(), whole.tolist(), strict=True)):
        left.text(i, w + 0.02, f"{k / w:.0%}" if w else "–", ha="center")
    left.set(ylim=(0, 1.12), ylabel="share of the head's softmax")
    left.set_xticks(at, [f"head {i}" for i in at])
    left.set_title("on entries: kept (blue), lost (grey)", loc="left", fontsize=10)
    names, values = [w for w, _ in lost], [m for _, m in lost]
    right.barh(range(len(names)), values, 0.6, color=COLOURS["other"])
    right.set_yticks(range(len(names)), names, fontsize=8)
    right.set(ylim=(max(len(names), 6) - 0.5, -0.5), xlim=(0, max([*values, 0.05]) * 1.1))
    right.set_title(f"what head {head} loses most", loc="left", fontsize=10)
    right.tick_params(left=False)
    return fig


def drowned(d: Drowned) -> Figure:
    """Blocks by their maximum, the pool's edge, the needle's block."""
    fig, (ax,) = fixed(250, 1, left=0.08, right=0.98, top=0.88, bottom=0.17)
    order = sorted(range(len(d.maxima)), key=lambda b: (-float(d.maxima[b]), b not in d.pool))
    colours = [COLOURS["draft"] if b == d.block else COLOURS["index" if b in d.pool else "other"] for b in order]
    ax.bar(np.arange(1, len(order) + 1), d.maxima[order], 0.8, color=colours)
    ax.vlines(POOL.blocks - 0.5, 0, 4.4, color=COLOURS["query"], lw=1.5, ls="--")
    ax.text(POOL.blocks - 0.8, 4.2, "pool's edge", ha="right")
    newest = order.index(len(order) - 1)
    if newest >= POOL.blocks:
        ax.annotate(
            "the newest is\nalways in",
            (newest + 1, max(0.0, float(d.maxima[order[newest]]))),
            (0, 22),
            textcoords="offset points",
            ha="center",
            color=COLOURS["index"],
            fontsize=8,
            arrowprops=dict(arrowstyle="-", color=COLOURS["index"]),
        )
    place = order.index(d.block) + 1
    ax.annotate(
        "the needle's block",
        (place, max(0.0, float(d.maxima[d.block]))),
        (place, 5.0),
        color=COLOURS["draft"],
        fontweight="bold",
        ha="left" if place < 45 else "right",
        arrowprops=dict(arrowstyle="-", color=COLOURS["draft"], relpos=(0 if place < 45 else 1, 0)),
    )
    ax.set(
        xlabel="blocks of 8 entries, best first", ylabel="block maximum", xlim=(0.3, len(order) + 0.7), ylim=(0, 5.7)
    )
    ax.set_title("what the layer that builds the pool sees", loc="left", fontsize=10)
    return fig


def against_bytes(curves: Mapping[str, Sequence[Point]], ks: Sequence[int], k: int) -> Figure:
    """Recall against bytes read, a line a selector; the dots of one k are filled."""
    fig, (ax,) = fixed(360, 1, left=0.09, right=0.97, top=0.96, bottom=0.13)
    for name, points in curves.items():
        kind, style = LOOKS[name]
        x, y = [p.size for p in points], [100 * p.recall for p in points]
        ax.plot(x, y, style, color=COLOURS[kind], lw=2, zorder=3)
        if len(points) == len(ks):
            i = ks.index(k)
            ax.plot(x, y, "o", mfc="white", mec=COLOURS[kind], ms=5, zorder=4)
            ax.plot(x[i], y[i], "o", color=COLOURS[kind], ms=9, zorder=5)
        else:
            ax.plot(x, y, "*", color=COLOURS[kind], ms=15, zorder=6)
        label(ax, name, x, y, COLOURS[kind])
    ax.set(xscale="log", ylim=(-4, 110), xlabel="bytes read by one query, all layers of the group")
    ax.set_ylabel("attention mass kept, %")
    ticks = [100, 200, 500, 1000, 2000, 5000, 10000]
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks])
    ax.minorticks_off()
    return fig


def label(ax, name: str, x: Sequence[float], y: Sequence[float], colour: str) -> None:
    """A selector's name beside its line."""
    i, shift, side = {
        "oracle": (2, (-8, 8), "right"),
        "indexer": (2, (12, -14), "left"),
        "recency + sink": (3, (-8, 8), "right"),
        "random": (4, (2, 6), "right"),
        "yours": (0, (-10, 6), "right"),
    }[name]
    ax.annotate(name, (x[i], y[i]), shift, textcoords="offset points", color=colour, fontweight="bold", ha=side)


def learning(shares: Sequence[int], recall: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Recall at snapshots of the indexer, a panel for each name of `recall`, a line for each reader."""
    fig, axes = fixed(270, len(recall), left=0.09, right=0.93, top=0.88, bottom=0.18, wspace=0.35)
    colours = [COLOURS["index"], COLOURS["encoder"], COLOURS["decoder"]]
    for ax, (name, lines) in zip(axes, recall.items(), strict=True):
        ends = sorted((values[-1], reader) for reader, values in lines.items())
        place = {}
        for value, reader in ends:
            place[reader] = max(100 * value, max(place.values(), default=-9) + 7)
        for colour, (reader, values) in zip(colours, lines.items(), strict=True):
            ax.plot(shares, [100 * v for v in values], "o-", color=colour, lw=2, ms=5)
            ax.text(103, place[reader], reader, color=colour, va="center", fontweight="bold", fontsize=8)
        ax.set(ylim=(-3, 118 if min(place.values()) > 90 else 104), xlabel="training done, %")
        ax.set_title(name, loc="left", fontsize=10)
        ax.set_xticks(shares)
    axes[0].set_ylabel("attention mass kept, %")
    return fig


def valve(mass: Mass, query: int, k: int) -> Figure:
    """Where the softmax of each head goes: window, entries, sink."""
    fig, (ax,) = fixed(230, 1, left=0.1, right=0.97, top=0.86, bottom=0.1)
    parts = {"window": mass.window[query].sum(-1), "main": mass.entries[query].sum(-1), "other": mass.sink[query]}
    left = np.zeros(len(mass.sink[query]))
    for kind, part in parts.items():
        ax.barh(np.arange(len(left)), part, 0.7, left=left, color=COLOURS[kind])
        left += np.asarray(part)
    for x, name, kind in ((0, "window", "window"), (0.15, "entries", "main"), (0.3, "sink", "other")):
        ax.text(x, 1.04, name, color=COLOURS[kind], transform=ax.transAxes, fontweight="bold")
    ax.text(1, 1.04, f"{k} entries needed", transform=ax.transAxes, ha="right", fontweight="bold")
    ax.set(xlim=(0, 1), ylim=(len(left) - 0.5, -0.5))
    ax.set_yticks(range(len(left)), [f"head {i}" for i in range(len(left))])
    ax.tick_params(left=False)
    return fig
