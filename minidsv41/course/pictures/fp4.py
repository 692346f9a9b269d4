"""Pictures of rows in few bits: magnitudes before and after, and who dies at which position."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from minidsv41.course.figures import COLOURS, WIDTH, figure
from minidsv41.course.fp4 import Stored

LOW, HIGH = 5e-3, 150  # the logarithmic axis of magnitudes
DEAD, BEFORE = COLOURS["draft"], "#BBBBBB"


def bars(ax: Axes, found: Stored, kind: str, *, left: float, width: float, height: float) -> None:
    """Magnitudes before (grey) and after (colour of `kind`), each group's grid and the line up to which it dies.

    left, width: of the axes, in parts of the figure; height in parts, with room for the key above.
    """
    ax.set_position((left, 0.88 - height, width, height))
    size, group = len(found.before), found.fmt.group
    for n, scale in enumerate(found.scales.tolist()):
        ends = n * group - 0.5, (n + 1) * group - 0.5
        if found.fmt.values.bits == 4:
            ax.hlines([scale * v for v in (0.5, 1, 1.5, 2, 3, 4, 6)], *ends, color="#D0D0D0", lw=0.6, zorder=0)
        ax.hlines(float(found.lines[n]), *ends, color=DEAD, lw=1.2, ls="--", zorder=3)
    points = 72 / 100 * WIDTH * width / (size + 0.4)
    shade = [DEAD if dead else BEFORE for dead in found.dead.tolist()]
    ax.vlines(range(size), LOW, found.before.abs().clamp_min(LOW), color=shade, lw=0.84 * points, zorder=1)
    ax.vlines(range(size), LOW, found.after.abs().clamp_min(LOW), color=COLOURS[kind], lw=0.42 * points, zorder=2)
    ax.set(yscale="log", ylim=(LOW, HIGH), xlim=(-0.7, size - 0.3))
    ax.set_yticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
    ax.minorticks_off()


def key(fig: Figure, kind: str, bits: int) -> None:
    """What the marks mean; the grid of an 8-bit format is too fine to be drawn, and its line lies below the axis."""
    marks = [
        (0.09, "before", "#777777"),
        (0.175, "after", COLOURS[kind]),
        (0.245, "died", DEAD),
        (0.31, "– –  a channel up to here dies", DEAD),
        (0.64, "—  values that the group can store", "#888888"),
    ]
    for x, said, colour in marks if bits == 4 else marks[:2]:
        fig.text(x, 0.94, said, color=colour, fontweight="bold", fontsize=8.5)


def one_row(found: Stored, kind: str) -> Figure:
    """A row before and after, and below it the relative error of each channel."""
    fig, (top, below) = figure(340, rows=2)
    fig.set_layout_engine(None)  # a widget redraws this, and a fixed layout is quicker
    bars(top, found, kind, left=0.09, width=0.89, height=0.52)
    key(fig, kind, found.fmt.values.bits)
    top.set_ylabel("magnitude")
    top.set_xticks([])
    below.set_position((0.09, 0.13, 0.89, 0.17))
    shade = [DEAD if dead else COLOURS[kind] for dead in found.dead.tolist()]
    points = 72 / 100 * WIDTH * 0.89 / (len(shade) + 0.4)
    below.vlines(range(len(shade)), 0, 100 * found.relative, color=shade, lw=0.84 * points)
    below.set(xlim=top.get_xlim(), ylim=(0, 100), xlabel="channel", ylabel="error, %")
    below.set_yticks([0, 50, 100])
    return fig


def growing(rows: Sequence[Stored], channel: int) -> Figure:
    """The same 16 channels as one of them grows: a panel for each row, one axis for all."""
    fig, axes = figure(290, columns=len(rows))
    fig.set_layout_engine(None)
    key(fig, "main", 4)
    width = 0.89 / len(rows)
    for n, (ax, found) in enumerate(zip(axes, rows, strict=True)):
        bars(ax, found, "main", left=0.09 + n * width, width=width - 0.02, height=0.66)
        died = int(found.dead.sum())
        ax.text(0.5, 0.98, f"largest {found.before.abs().max():.1f}", ha="center", va="top", transform=ax.transAxes)
        ax.text(0.5, -0.22, f"{died} of 16 dead", ha="center", color=DEAD, fontweight="bold", transform=ax.transAxes)
        ax.set_xticks([0, channel, 15])
        if n:
            ax.tick_params(labelleft=False)
    axes[0].set_ylabel("magnitude of each channel")
    return fig


def deaths(dead: Tensor, norm: Tensor, largest: Tensor) -> Figure:
    """The same latent at many positions: dead [positions, 16] bool, norm and largest magnitude [positions]."""
    fig, (ax, low) = figure(300, rows=2)
    ax.imshow(dead.T.double().numpy(), aspect="auto", cmap=ListedColormap(["#E8EEF4", DEAD]), interpolation="nearest")
    ax.set(ylabel="channel")
    ax.set_title("stored as zero", color=DEAD, fontsize=9, fontweight="bold")
    ax.set_yticks([0, 5, 10, 15])
    for line, said, colour in (
        (norm, "norm of the group", COLOURS["query"]),
        (largest, "its largest", COLOURS["main"]),
    ):
        low.plot(line, color=colour, lw=1.4)
        low.annotate(
            said, (len(line) - 1, line[-1]), (0, 4), textcoords="offset points", color=colour, ha="right", va="bottom"
        )
    low.set(xlim=(-0.5, len(dead) - 0.5), xlabel="position", ylabel="magnitude", ylim=(0, 1.35 * float(norm.max())))
    return fig
