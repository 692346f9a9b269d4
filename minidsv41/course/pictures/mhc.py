"""Pictures of hyper-connections: a mixing matrix and its errors, gain over depth, what a seam waits for, studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from minidsv41.course.dye import Node, above, levels, reductions
from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.mixing import EPS, by_round, handed_on, received
from minidsv41.ops.seam import sinkhorn

BLOCKING, SOURCE, DESTINATION = COLOURS["draft"], COLOURS["decoder"], COLOURS["main"]
ORANGE = LinearSegmentedColormap.from_list("orange", ["#FFFFFF", BLOCKING])
FAINT = 1e-7  # errors are drawn from here


def mixing(logits: Tensor, rounds: int, *, longest: int = 40) -> Figure:
    """A matrix after so many rounds with the sums of its rows and columns, and both errors by round."""
    fig, (left, right) = figure(300, columns=2)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    left.set_position((0.08, 0.12, 0.31, 0.74))
    right.set_position((0.56, 0.16, 0.30, 0.70))
    comb = sinkhorn(logits, rounds, EPS)
    n = len(comb)
    left.imshow(comb.numpy(), cmap="Greys", vmin=0, vmax=1.6, aspect="auto")
    for i in range(n):
        for j in range(n):
            left.text(j, i, f"{comb[i, j]:.3f}", ha="center", va="center")
        left.text(n - 0.4, i, f"{handed_on(comb)[i]:.3f}", va="center", color=SOURCE, fontweight="bold")
        left.text(i, n - 0.38, f"{received(comb)[i]:.3f}", ha="center", va="top", color=DESTINATION, fontweight="bold")
    left.set_xticks(range(n), [f"to {j}" for j in range(n)])
    left.set_yticks(range(n), [f"from {i}" for i in range(n)])
    left.xaxis.tick_top()
    left.tick_params(length=0)
    left.spines[:].set_visible(False)
    found = by_round(logits, longest).clamp(min=FAINT).numpy()
    for values, name, colour in zip(found.T, ("received", "handed on"), (DESTINATION, SOURCE), strict=True):
        right.plot(range(1, longest + 1), values, color=colour, lw=1.6)
        right.plot([rounds], values[rounds - 1 : rounds], "o", color=colour)
        right.text(longest + 1, values[-1], name, color=colour, fontweight="bold", va="center")
    right.set(yscale="log", ylim=(FAINT / 2, 5), xlim=(0, longest), xlabel="rounds")
    right.set_yticks([1e-6, 1e-4, 1e-2, 1], ["1e-6", "1e-4", "1e-2", "1"])
    right.set_xticks([1, 20, 40])
    right.minorticks_off()
    right.set_title("largest error of a sum", fontsize=9)
    return fig


def gains(signal: Mapping[str, Tensor], gradient: Mapping[str, Tensor]) -> Figure:
    """Gain by sublayer, a line for each way to make the matrices; the last one of each panel is the released way."""
    fig, axes = figure(310, columns=2)
    for ax, found, title in zip(axes, (signal, gradient), ("signal, forwards", "gradient, backwards"), strict=True):
        shades = ORANGE(np.linspace(1, 0.5, len(found) - 1))
        for (name, values), colour in zip(found.items(), [*shades, COLOURS["main"]], strict=True):
            depth = len(values)
            ax.plot(range(depth + 1), [1.0, *values.tolist()], color=colour, lw=1.8)
            ax.annotate(name, (depth, float(values[-1])), (5, 0), textcoords="offset points", color=colour, va="center")
        ax.set(xlim=(0, 1.4 * depth), xlabel="sublayer")
        ax.set_xticks(range(0, depth + 1, depth // 4))
        ax.spines["bottom"].set_bounds(0, depth)
        ax.set_title(title, fontsize=9)
    axes[0].set(yscale="log", ylabel="largest gain of a stream")
    return fig


def waiting(graphs: Mapping[str, set[tuple[Node, Node]]], *, goal: str, labels: Mapping[str, str]) -> Figure:
    """A panel for each graph: nodes by the step at which they can be made, what blocks `goal` in red.

    labels: how a node's name is written.
    """
    fig, axes = figure(235 * len(graphs), rows=len(graphs))
    most = max(max(levels(needs).values()) for needs in graphs.values())
    for ax, (title, needs) in zip(axes, graphs.items(), strict=True):
        panel(ax, needs, goal, labels)
        ax.set_title(title, fontsize=10, fontweight="bold", loc="left")
        ax.set(
            xlim=(-0.35, most + 0.4),
            ylim=(6.5, -1.6 if any(y < 0 for _, y in places(needs).values()) else -0.6),
            yticks=[],
        )
        ax.set_xticks(range(most + 1), [""] * (most + 1))
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    axes[-1].set_xticks(range(most + 1), range(most + 1))
    axes[-1].set_xlabel("steps that must be finished first")
    return fig


def places(needs: set[tuple[Node, Node]]) -> dict[Node, tuple[float, float]]:
    """Tiles in lanes of their own, at the step at which they can be made; what is small below them.

    What is small and there from the start stands above them, one step before its use.
    """
    level = levels(needs)
    small = sorted(node for node in level if node.tile is None)
    place: dict[Node, tuple[float, float]] = {}
    for node, x in level.items():
        beside = [other for other in small if level[other] == x]
        if node not in small:
            place[node] = x, node.tile
        elif x == 0:
            place[node] = min(level[by] for needed, by in needs if needed == node) - 1, -1.1
        else:
            place[node] = x, 4.5 + 0.85 * (beside.index(node) if len(beside) > 1 else 1)
    return place


def panel(ax: Axes, needs: set[tuple[Node, Node]], goal: str, labels: Mapping[str, str]) -> None:
    """One graph. Red: the reductions that `goal` waits for, and what they lead to on the way."""
    place, before = places(needs), above(needs, goal)
    wanted = before | {node for node in place if node.name == goal}
    stuck = before & reductions(needs)
    stuck |= {by for needed, by in needs if needed in stuck and by in before}
    text = {node: labels[node.name] + ("" if node.tile is None else f", tile {node.tile}") for node in place}
    half = {node: 0.07 + 0.0165 * len(said) for node, said in text.items()}
    for needed, by in sorted(needs, key=lambda pair: (bool(stuck & set(pair)), str(pair))):
        red = by in stuck or (needed in stuck and by in wanted)
        (x0, y0), (x1, y1) = place[needed], place[by]
        style = dict(arrowstyle="-|>", color=BLOCKING if red else "#A0A0A0", lw=1.3 if red else 0.9)
        ax.annotate("", (x1 - half[by], y1), (x0 + half[needed], y0), arrowprops=style | dict(shrinkA=0, shrinkB=0))
    for node, (x, y) in sorted(place.items(), key=str):
        fill = BLOCKING if node in stuck else COLOURS["main"] if node.name == goal else "#E4E4E4"
        shape = dict(boxstyle="round,pad=0.25", facecolor=fill, edgecolor="none")
        dark = fill != "#E4E4E4"
        ax.text(x, y, text[node], ha="center", va="center", fontsize=8, color="white" if dark else "black", bbox=shape)


def dots(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """A panel for each measure, a line for each variant: a dot for each seed and a bar for their mean.

    All axes span the same share of their values.
    """
    names = list(next(iter(found.values())))
    fig, axes = figure(80 + 40 * len(names), columns=len(found))
    ends = {measure: (min(map(min, v.values())), max(map(max, v.values()))) for measure, v in found.items()}
    span = 0.6 * max((high - low) / (high + low) * 2 for low, high in ends.values())
    for first, (ax, (measure, variants)) in enumerate(zip(axes, found.items(), strict=True)):
        for line, values in enumerate(variants.values()):
            colour = COLOURS["other"] if line == 0 else COLOURS["main"]
            ax.plot(values, [line] * len(values), "o", color=colour, ms=6, alpha=0.7)
            ax.plot([np.mean(values)] * 2, [line - 0.25, line + 0.25], color=colour, lw=2.5)
        middle = sum(ends[measure]) / 2
        ax.set(xlim=(middle * (1 - span), middle * (1 + span)), ylim=(len(names) - 0.5, -0.5), xlabel=measure)
        ax.set_yticks(range(len(names)), names if first == 0 else [""] * len(names))
        ax.tick_params(left=False)
    return fig
