"""Which step of a computation needs which: each value in turn is dyed with NaN while all others are kept clean."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Hook = Callable[[str, Tensor], Tensor]


class Node(NamedTuple):
    """A value by its name, or one tile of its last axis."""

    name: str
    tile: int | None = None


def direct_needs(program: Callable[[Hook], object], *, width: int, tiles: int) -> set[tuple[Node, Node]]:
    """(needed, by whom) of a program that passes each of its values through `hook(name, value)`.

    A value whose last axis is `width` long counts as `tiles` nodes. What a step needs only through other named
    values is not reported.
    """
    clean: dict[str, Tensor] = {}
    program(lambda name, value: clean.setdefault(name, value))

    def parts(name: str, value: Tensor) -> list[tuple[Node, Tensor]]:
        if value.shape[-1] != width:
            return [(Node(name), value)]
        return [(Node(name, k), part) for k, part in enumerate(value.chunk(tiles, -1))]

    found = set()
    for source in [node for name, value in clean.items() for node, _ in parts(name, value)]:

        def hook(name: str, value: Tensor, source: Node = source) -> Tensor:
            found.update((source, node) for node, part in parts(name, value) if part.isnan().any())
            if name != source.name:
                return clean[name]
            stained = [
                torch.full_like(part, torch.nan) if node == source else part for node, part in parts(name, clean[name])
            ]
            return torch.cat(stained, -1)

        program(hook)
    return found


def levels(needs: set[tuple[Node, Node]]) -> dict[Node, int]:
    """How many steps must be finished, one after the other, before each node can be made."""
    level = {node: 0 for pair in needs for node in pair}
    for _ in level:
        for needed, by in needs:
            level[by] = max(level[by], level[needed] + 1)
    return level


def reductions(needs: set[tuple[Node, Node]]) -> set[Node]:
    """Nodes that need more than one tile of something."""
    tiles: dict[tuple[Node, str], set[int | None]] = {}
    for needed, by in needs:
        tiles.setdefault((by, needed.name), set()).add(needed.tile)
    return {by for (by, _), found in tiles.items() if len(found) > 1}


def above(needs: set[tuple[Node, Node]], name: str) -> set[Node]:
    """All that must exist before any tile of `name` does."""
    found = {by for _, by in needs if by.name == name}
    for _ in range(len(needs)):
        found |= {needed for needed, by in needs if by in found}
    return {node for node in found if node.name != name}
