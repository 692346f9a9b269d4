"""Three programs of a kernel in any order: every interleaving of their steps, and what each leaves in memory.

A statement is one step that nothing can part. `p` is the program (0, 1, 2), `v` holds whole numbers and `f` floats, one
a program; `out`, `part` and `count` are memory, all zeros at first; other names are the program's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import CodeType
from typing import Any

Program = tuple[str, ...]
Memory = dict[str, list]

PROGRAMS = 3
GIVEN = {"v": (3, 5, 7), "f": (1e16, 1.0, -1e16)}

VARIANTS: dict[str, Program] = {
    "own row": ("out[p] = v[p]",),
    "shared row": ("t = out[0]", "out[0] = t + v[p]"),
    "atomic add": ("atomic_add(out, 0, v[p])",),
    "atomic add of floats": ("atomic_add(out, 0, f[p])",),
    "largest so far": ("t = out[0]", "out[0] = max(t, v[p])"),
    "same value": ("t = v[0]", "out[0] = t"),
    "the last one adds": (
        "part[p] = f[p]",
        "n = atomic_add(count, 0, 1)",
        "if n == 2: out[0] = sum(part)",
    ),
    "counts, then writes": (
        "n = atomic_add(count, 0, 1)",
        "part[p] = v[p]",
        "if n == 2: out[0] = sum(part)",
    ),
}


def atomic_add(cells: list, at: int, value: Any) -> Any:
    """Add to a cell in one step -> what it held before."""
    before = cells[at]
    cells[at] = before + value
    return before


def outcomes(program: Program) -> set[tuple]:
    """What `out` can hold at the end, over all orders of the steps."""
    return set(ends(program))


def race(program: Program) -> bool:
    """Whether the order of the steps can be seen in the result."""
    return len(outcomes(program)) > 1


def ends(program: Program) -> Iterator[tuple]:
    steps = [compile(line, "a program", "exec") for line in program]
    own = [dict(GIVEN, p=p) for p in range(PROGRAMS)]
    memory = {name: [0] * PROGRAMS for name in ("out", "part", "count")}
    yield from after(steps, [0] * PROGRAMS, memory, own)


def after(steps: list[CodeType], done: list[int], memory: Memory, own: list[dict[str, Any]]) -> Iterator[tuple]:
    """Every end from here on: each program that has a step left may be the next."""
    if min(done) == len(steps):
        yield tuple(memory["out"])
    for p in range(PROGRAMS):
        if done[p] < len(steps):
            cells = {name: list(row) for name, row in memory.items()}
            names = own[p] | cells
            exec(steps[done[p]], {"atomic_add": atomic_add}, names)
            mine = {name: value for name, value in names.items() if name not in cells}
            yield from after(steps, [n + (i == p) for i, n in enumerate(done)], cells, [*own[:p], mine, *own[p + 1 :]])


@cache
def racing() -> frozenset[str]:
    """Names of the variants whose result depends on the order."""
    return frozenset(name for name, program in VARIANTS.items() if race(program))


def listing() -> str:
    """All variants, a line each."""
    return "\n".join(f"{name:<21} {'; '.join(program)}" for name, program in VARIANTS.items())
