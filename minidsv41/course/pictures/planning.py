"""Lesson 11: the waterfall from 389,120 bytes to 890, and a plan as bars of memory and of time."""

from __future__ import annotations

from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidsv41.course.figures import COLOURS, figure
from minidsv41.course.planning import answered, ordered
from minidsv41.course.waterfall import Step
from minidsv41.ledger.findings import rate, read_by_kind, sessions
from minidsv41.ledger.plan import Order, Plan, PlanError, gpus_for, resident, usable

KINDS = {
    "dense_read_bytes": ("other", "dense weights"),
    "expert_read_bytes": ("encoder", "routed experts"),
    "scan_bytes": ("index", "index keys"),
    "pool_bytes": ("index", ""),
    "gather_bytes": ("main", "entries"),
    "window_read_bytes": ("window", "windows"),
    "cache_read_bytes": ("main", "cache"),
}
DARK = ("encoder", "main", "draft")
TITLE = {"loc": "left", "fontsize": 10}
BESIDE = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}


def waterfall(steps: list[Step]) -> Figure:
    """A row a step on a logarithmic axis: a bar reaches from what was there to what is left."""
    fig, ax = figure(430)
    fig.set_layout_engine(None)
    fig.subplots_adjust(left=0.43, right=0.98, top=0.98, bottom=0.13)
    left, right = steps[-1].size / 1.6, steps[0].size * 22
    for row, step in enumerate(steps):
        before = steps[row - 1].size if row else left
        low, high = sorted((before, step.size))
        ax.barh(row, high - low, left=low, height=0.62, color=COLOURS[step.kind])
        if row:
            ax.plot([before] * 2, [row - 0.69, row - 0.31], color=COLOURS["other"], lw=1)
        factor = before / step.size
        by = "" if row == 0 else f"÷ {factor:.3g}" if factor >= 1 else f"× {1 / factor:.3g}"
        ax.annotate(f"{by}   {step.size:,.0f} B".strip(), (high, row), **BESIDE)
    ax.barh(len(steps), steps[-1].size - left, left=left, height=0.62, color=COLOURS["query"])
    total = f"{steps[-1].size:,.0f} B: ÷ {steps[0].size / steps[-1].size:.0f} in all"
    ax.annotate(total, (steps[-1].size, len(steps)), fontweight="bold", **BESIDE)
    ax.set(xscale="log", xlim=(left, right), ylim=(len(steps) + 0.6, -0.6), xlabel="bytes that a token leaves for good")
    names = [f"{s.change}  [{s.lesson}]" if s.lesson else s.change for s in steps]
    ax.set_yticks(range(len(steps) + 1), [*names, "DeepSeek-V4.1-Flash"], fontsize=9)
    ax.set_xticks([10**n for n in range(3, 6)], ["1,000", "10,000", "100,000"])
    ax.minorticks_off()
    ax.tick_params(left=False)
    return fig


def planner(**values) -> Figure:
    """A plan as two rows: what lies in memory, and the time of one decode step; or why there is none."""
    found = answered(**values)
    fig, (room, step) = figure(330, rows=2)
    fig.set_layout_engine(None)
    fig.subplots_adjust(left=0.14, right=0.97, top=0.92, bottom=0.13, hspace=0.75)
    if isinstance(found, PlanError):
        refused(room, ordered(**values), str(found))
        step.set_axis_off()
    else:
        memory(room, found)
        time(step, found)
    return fig


def refused(ax: Axes, order: Order, why: str) -> None:
    """Weights beside the room that there is, and the reason in words below."""
    room, whole = float(usable(order).value) / 1e9, order.gpus * order.machine.memory / 1e9
    weights = float(resident(order).value) / 1e9
    stack(ax, 0, 0, weights, "other", "weights", share=1)
    ax.axvspan(0, room, ymin=0.1, ymax=0.9, facecolor="none", edgecolor=COLOURS["draft"], lw=2)
    ax.set_title("no such machine: the outline is the room that there is", **TITLE)
    ax.set(xlim=(0, 1.05 * max(weights, whole)), ylim=(-0.5, 0.5), xlabel="GB on all GPUs")
    ax.set_yticks([0], ["memory"])
    ax.tick_params(left=False)
    ax.text(0, -0.75, fill(why, 78), transform=ax.transAxes, va="top", linespacing=1.5)


def memory(ax: Axes, p: Plan) -> None:
    """Bytes on all GPUs: weights, sessions that run, sessions that would still fit, what is left free."""
    o, lines = p.order, p.memory
    usable, whole = float(lines["usable_bytes"].value), float(o.gpus * o.machine.memory)
    weights, held = float(lines["resident_bytes"].value), p.running * float(lines["session_bytes"].value)
    parts = [("weights", weights, "other"), (sessions(p.running), held, "main")]
    at = 0.0
    for name, size, kind in parts:
        stack(ax, 0, at, size / 1e9, kind, name, share=size / whole)
        at += size / 1e9
    ax.barh(0, (whole - usable) / 1e9, left=usable / 1e9, height=0.6, color="#DDDDDD", hatch="///", edgecolor="white")
    waits = (
        f"; {o.sessions - p.fit:,} wait, {gpus_for(o, o.sessions):,} GPUs would hold all" if o.sessions > p.fit else ""
    )
    ax.set_title(f"room for {sessions(p.fit)} of {o.context:,} tokens{waits}", **TITLE)
    ax.set(xlim=(0, whole / 1e9), ylim=(-0.5, 0.5), xlabel="GB on all GPUs (hatched: left to activations)")
    ax.set_yticks([0], ["memory"])
    ax.tick_params(left=False)


def time(ax: Axes, p: Plan) -> None:
    """Milliseconds of a step: reading, by kind, and computing."""
    o = p.order
    a_byte = 1000 / (o.gpus * o.machine.bandwidth)
    longest, at = 1000 * float(p.step["step_s"].value), 0.0
    for name, size in read_by_kind(p).items():
        kind, word = KINDS[name]
        stack(ax, 0, at, size * a_byte, kind, word, share=size * a_byte / longest)
        at += size * a_byte
    compute = 1000 * float(p.step["arithmetic_s"].value)
    stack(ax, 1, 0, compute, "draft", "all products", share=compute / longest)
    each = rate(float(p.step["tokens_per_second"].value))
    ax.set_title(f"one step of {sessions(p.running)}: {p.binds} binds, {each} tokens/s each at most", **TITLE)
    ax.set(xlim=(0, 1.02 * longest), ylim=(1.5, -0.5), xlabel="ms at least")
    ax.set_yticks([0, 1], ["bandwidth", "arithmetic"])
    ax.tick_params(left=False)


def stack(ax: Axes, row: int, at: float, size: float, kind: str, name: str, *, share: float) -> None:
    """One part of a bar, named where it has room."""
    ax.barh(row, size, left=at, height=0.6, color=COLOURS[kind], edgecolor="white", lw=0.5)
    if share > 0.012 * len(name) + 0.02 and name:
        colour = "white" if kind in DARK else "black"
        ax.text(at + size / 2, row, name, ha="center", va="center", color=colour, fontsize=8)
