"""Lesson 10: a conversation's bytes over time, bytes per token over length, and a bill."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidsv41.config import ModelConfig
from minidsv41.course.conversation import Sample, deaths, hour, span
from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.retention import NAMES, Terms, bill, policies
from minidsv41.ledger.bytes import kv_bytes_per_token
from minidsv41.ledger.persistent import (
    half_length,
    persistent_bytes_per_token_with_windows,
    v4_parts,
    v4_persistent_bytes_per_token,
)

GAP = 18  # samples that an idle stretch is as wide as, however long it was
IDLE = 5  # seconds without a sample from which on it is one
PANELS = (
    ("windows\nin memory", (("window", "window", "the layers'"), ("draft window", "draft", "the draft's"))),
    ("entries\nin memory", (("entry", "main", "main entries"), ("index", "index", "index keys"))),
    ("entries\non disk", (("entry on disk", "main", ""), ("index on disk", "index", ""))),
    ("open pair", (("open pair", "query", ""),)),
)


def places(samples: Sequence[Sample]) -> list[float]:
    """Where each sample stands: one step apart while something runs, one gap apart over an idle stretch."""
    at = [0.0]
    for before, after in zip(samples, samples[1:], strict=False):
        at.append(at[-1] + (GAP if after.seconds - before.seconds > IDLE else 1))
    return at


def timeline(samples: Sequence[Sample], found: dict[str, str], *, peak: str = "") -> Figure:
    """Bytes by kind over a conversation; crosses where a kind dies.

    found: what each turn found, by its name; peak: what to write where windows take most.
    """
    fig, axes = figure(540, rows=len(PANELS))
    fig.set_layout_engine(None)
    fig.subplots_adjust(left=0.2, right=0.985, top=0.86, bottom=0.09, hspace=0.3)
    axes[0].get_gridspec().set_height_ratios((1, 1, 1, 0.3))
    x = places(samples)
    for ax, (name, kinds) in zip(axes, PANELS, strict=True):
        layers(ax, x, samples, name, kinds)
        crosses(ax, x, samples, [kind for kind, _, _ in kinds])
        ax.set(xlim=(-2, x[-1] + 1.5 * GAP), xticks=[])
    for turn, place in turns(x, samples):
        for ax in axes:
            ax.axvspan(place[0], place[-1], color="#EEEEEE", lw=0, zorder=0)
        title = f"turn {turn}\n{hour(samples[x.index(place[0])].seconds)}\n{found[turn]}"
        middle = (place[0] + place[-1]) / 2
        axes[0].text(middle, 1.06, title, transform=axes[0].get_xaxis_transform(), ha="center", fontsize=8.5)
    most = max(range(len(x)), key=lambda i: samples[i].held["window"])
    axes[0].text(x[most] + 3, 0.97 * axes[0].get_ylim()[1], peak, va="top", fontsize=8, zorder=4)
    for before, after, left, right in zip(samples, samples[1:], x, x[1:], strict=False):
        if right - left == GAP:
            pause = span(after.seconds - before.seconds).replace(" h ", " h\n").replace("0 min", "0\nmin")
            where = dict(transform=axes[-1].get_xaxis_transform(), ha="center", va="top", fontsize=7.5)
            axes[-1].text((left + right) / 2, -0.15, pause, color="#555555", **where)
    return fig


def layers(
    ax: Axes, x: list[float], samples: Sequence[Sample], name: str, kinds: Sequence[tuple[str, str, str]]
) -> None:
    """Kinds stacked, each holding its value until the next sample; names and the largest sum at the left."""
    base = np.zeros(len(x))
    for kind, colour, _ in kinds:
        top = base + [sample.held[kind] for sample in samples]
        ax.fill_between(x, base, top, step="post", color=COLOURS[colour], lw=0, zorder=2)
        base = top
    ax.set_ylim(0, 1.15 * base.max())
    ax.set_yticks([0, base.max()], ["0", f"{base.max():,.0f} B"], fontsize=8)
    lines = [(name, "black", "bold"), *((label, COLOURS[colour], "normal") for _, colour, label in kinds if label)]
    y = 0.95 if len(lines) > 1 else 0.62
    for text, colour, weight in lines:
        ax.text(-0.245, y, text, color=colour, fontweight=weight, transform=ax.transAxes, va="top", fontsize=8.5)
        y -= 0.4 if "\n" in text else 0.19


def crosses(ax: Axes, x: list[float], samples: Sequence[Sample], kinds: Sequence[str]) -> None:
    """A cross where all kinds of a panel fall to nothing, with the bytes that were there."""
    for at, dead in groupby((d for d in deaths(samples) if d.kind in kinds), key=lambda d: d.at):
        ax.plot(x[at], 0, "X", color="black", ms=8, clip_on=False, zorder=4)
        ax.text(x[at] + 2, 0.1 * ax.get_ylim()[1], f"{sum(d.nbytes for d in dead):,} B", fontsize=8, zorder=4)


def turns(x: list[float], samples: Sequence[Sample]) -> list[tuple[str, list[float]]]:
    """(name, places of its samples) of each turn."""
    runs = groupby(zip(x, samples, strict=True), key=lambda pair: pair[1].turn)
    return [(turn, [place for place, _ in group]) for turn, group in runs if turn]


def kept_by_length(c: ModelConfig) -> Figure:
    """Bytes kept for each token of a request, over its length, with windows and without."""
    fig, ax = figure(360)
    lengths = np.unique(np.geomspace(128, 1 << 20, 60).astype(int))
    own, (v4, _), half = float(kv_bytes_per_token(c).value), v4_parts(), float(half_length().value)
    curves = (
        ("draft", [v4_persistent_bytes_per_token(int(n)).value for n in lengths]),
        ("window", [persistent_bytes_per_token_with_windows(c, int(n)).value for n in lengths]),
        ("main", [own] * len(lengths)),
    )
    for colour, values in curves:
        ax.plot(lengths, [float(v) for v in values], color=COLOURS[colour], lw=2)
    ax.axhline(float(v4.value), color=COLOURS["draft"], lw=1, ls=":")
    ax.text(
        1.05e6,
        float(v4.value) * 1.1,
        f"V4-Flash without its windows: {float(v4.value):,.0f} B",
        ha="right",
        color=COLOURS["draft"],
        fontsize=8,
    )
    at_half = float(v4_persistent_bytes_per_token(int(half)).value)
    ax.plot([half, half], [own, at_half], color="black", lw=1)
    ax.plot(half, at_half, "o", color="black", ms=5)
    ax.annotate(
        f"{int(half):,} tokens: half of V4's bytes are windows,\nand V4.1 keeps {at_half / own:.1f} times less",
        (half, at_half),
        (10, 6),
        textcoords="offset points",
    )
    bold = dict(fontweight="bold", va="top")
    ax.text(330, 4.2e4, "V4-Flash, two windows kept", color=COLOURS["draft"], **bold)
    ax.text(135, 2.4e3, "V4.1, if it kept two", color="#9A6700", **bold)
    ax.text(1.05e6, own * 0.88, f"V4.1 keeps none: {own:,.0f} B", color=COLOURS["main"], ha="right", **bold)
    ax.set(xscale="log", yscale="log", xlabel="tokens of the request", ylabel="bytes kept for each token")
    ax.set_ylim(500, 2e5)
    ax.set_xticks([128, 1024, 8192, 65536, 1 << 20], ["128", "1K", "8K", "64K", "1M"])
    ax.set_yticks([1e3, 1e4, 1e5], ["1 kB", "10 kB", "100 kB"])
    ax.minorticks_off()
    return fig


def billed(c: ModelConfig, t: Terms) -> Figure:
    """The bill of each policy as a bar."""
    fig, ax = figure(230)
    fig.set_layout_engine(None)
    fig.subplots_adjust(left=0.02, right=0.86, top=0.9, bottom=0.19)
    look = {
        "global": dict(color=COLOURS["main"]),
        "window": dict(color=COLOURS["window"]),
        "memory": dict(color=COLOURS["window"], hatch="////", edgecolor="black", lw=0),
    }
    totals = []
    for row, policy in enumerate(policies(c)):
        left = 0.0
        for kind, dollars in bill(policy, t).items():
            ax.barh(row, dollars, left=left, height=0.42, **look[kind])
            left += dollars
        ax.text(0, row - 0.27, policy.name, va="bottom")
        ax.text(left, row, f" ${left:,.2f}", va="center", fontweight="bold")
        totals.append(left)
    for x, kind, colour in ((0, "global", COLOURS["main"]), (0.35, "window", "#9A6700"), (0.6, "memory", "#9A6700")):
        text = NAMES[kind] + " (hatched)" * (kind == "memory")
        ax.text(x, 1.05, text, color=colour, transform=ax.transAxes, fontweight="bold")
    ax.set(xlim=(0, max(*totals, 1e-9)), ylim=(2.5, -0.75), yticks=[], xlabel="dollars for a million conversations")
    ax.spines["left"].set_visible(False)
    return fig
