"""How far back windows reach, in positions and in cells. A cell is one layer run on one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from minidsv41.course.reads import Reading
from minidsv41.ops import Batch


def reach(layers: int, window: int) -> list[int]:
    """States that must exist before each layer and after the last, [L + 1], for one exact state after the last.

    Far from the beginning, and through windows alone, as `Batch.span` gives them.
    """
    last = layers * window
    first = Batch.ragged([torch.zeros(last + 1, dtype=torch.int64)], [0]).span(window).first.tolist()
    lowest = [last]
    for _ in range(layers):
        lowest.append(first[lowest[-1]])
    return [last - low + 1 for low in reversed(lowest)]


def rows_to_run(layers: int, window: int) -> list[int]:
    """Rows that each layer must run so that every window row is there which the last old token reads.

    The last layer runs none: its rows are projected from what the layer before it left.
    """
    return [*reach(layers, window)[1:-1], 0]


@dataclass(frozen=True)
class Rebuild:
    """The last `old` tokens run again: in every layer, or each layer only on rows that a later layer needs."""

    layers: int
    window: int
    old: int
    shape: Literal["staircase", "rectangle"] = "staircase"

    @property
    def needed(self) -> list[int]:
        """Rows of each layer that an exact state needs."""
        return rows_to_run(self.layers, self.window)

    @property
    def run(self) -> list[int]:
        """Rows of each layer that are run."""
        return [self.old if self.shape == "rectangle" else min(rows, self.old) for rows in self.needed]

    @property
    def exact(self) -> list[int]:
        """Those among them whose windows were whole and exact, in every layer below."""
        steps = range(1, self.layers + 1)
        return [min(rows, max(0, self.old - k * (self.window - 1))) for rows, k in zip(self.run, steps, strict=True)]


def counted(plan: Rebuild, *, turn: int) -> str:
    """Two lines of HTML: what is run and what that costs beside a turn of new tokens; how much of it is exact."""
    cells, exact = sum(plan.run), sum(map(min, plan.exact, plan.needed))
    return (
        f"run again: {cells:,} cells, {cells / (turn * plan.layers):.2f} times a turn of {turn} tokens<br>"
        f"exact: {exact:,} of {sum(plan.needed):,} needed cells (from {reach(plan.layers, plan.window)[0]:,} positions)"
    )


def twice(reading: Reading, floor: int = 0) -> tuple[set[int], set[int]]:
    """Tokens that one layer reads as a window row and in an entry; window tokens before `floor` that it has lost."""
    first, query = reading.window
    window, entries = set(range(max(first, floor), query + 1)), set(reading.tokens())
    return window & entries, set(range(first, min(floor, query + 1)))


def overlapping(found: list[Reading], floor: int = 0) -> str:
    """One line of HTML a group of layers that share a selection: read twice, lost, and lost but still in an entry."""
    lines, seen = [f"query {found[0].window[1]}"], set()
    for reading in found:
        if reading.chooser is None or reading.chooser in seen:
            continue
        seen.add(reading.chooser)
        both, lost = twice(reading, floor)
        still = lost & set(reading.tokens())
        layers = [r.layer for r in found if r.chooser == reading.chooser]
        missing = f", {len(lost)} rows lost, {len(still)} of them still in an entry" if lost else ""
        lines.append(f"layers {layers[0]}–{layers[-1]}: {len(both)} tokens read twice{missing}")
    return "<br>".join(lines)
