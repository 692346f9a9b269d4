"""Lesson 07: a round of Sinkhorn, a seam in one visit, and the matrix that Sinkhorn likes least."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.config import ModelConfig
from minidsv41.course.exercise import Exercise, Mistake, Todo
from minidsv41.course.lessons import said07 as said
from minidsv41.course.mixing import EPS, drawn, errors
from minidsv41.course.seams import Memory, Program, Seam, Sums, executed, single_pass, two_pass
from minidsv41.ledger.traffic import mhc_rows_per_sublayer
from minidsv41.ops import Next
from minidsv41.ops.seam import sinkhorn


def rows(c: Tensor) -> Tensor:
    return c / c.sum(1, keepdim=True)


def columns(c: Tensor) -> Tensor:
    return c / c.sum(0, keepdim=True)


def one_round(c: Tensor) -> Tensor:
    c = c / c.sum(1, keepdim=True)
    return c / c.sum(0, keepdim=True)


ROUND = Exercise(
    name="07.round",
    inputs=lambda: [dict(c=drawn(1, n, n=size).exp()) for n, size in enumerate((2, 3, 4))],
    reference=lambda c: sinkhorn(c.log(), 1, 0.0),
    solution=one_round,
    why=said.ROUND_WHY,
    hints=said.ROUND_HINTS,
    mistakes=(
        Mistake(name="columns first", answer=lambda c: rows(columns(c)), thought=said.COLUMNS_FIRST),
        Mistake(
            name="both at once",
            answer=lambda c: c / c.sum(1, keepdim=True) / c.sum(0, keepdim=True),
            thought=said.AT_ONCE,
        ),
        Mistake(name="rows only", answer=rows, thought=said.ROWS_ONLY),
        Mistake(name="one sum", answer=lambda c: c / c.sum(), thought=said.WHOLE),
    ),
)


def example(n: int, seed: int, *, tokens: int = 3, width: int = 12) -> Seam:
    """A random seam of n streams in float64."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    numbers = n * (n + 2)
    into = Next(
        fn=normal(numbers, n * width) / 4,
        base=normal(numbers),
        scale=normal(3),
        norm=1 + normal(width) / 4,
        eps=1e-20,
        hc_eps=EPS,
        iters=20,
    )
    coefficients = normal(tokens, n), 2 * normal(tokens, n).sigmoid(), sinkhorn(normal(tokens, n, n), 20, EPS)
    return Seam(normal(tokens, n, width), normal(tokens, width), *coefficients, into)


def seams() -> Iterable[dict]:
    return [dict(streams=n, tiles=tiles) for n, tiles in ((2, 3), (3, 2), (4, 4))]


def judged(program: Program, streams: int, tiles: int) -> dict[str, float]:
    """Rows of width d that the program moves for a token, and how far its results are from the package's.

    Raises NotOnChip, or KeyError for rows that it does not write.
    """

    def run(*given: object) -> None:
        if isinstance(said := program(*given), Todo):
            raise said

    seam = example(streams, seed=streams)
    found, memory = executed(run, seam, tiles=tiles)
    off = max(float((a - b).abs().max()) for a, b in zip(found, ops.seam(*seam), strict=True))
    return {"rows": memory.moved, "off by": round(off, 9)}


def wanted(streams: int, tiles: int) -> dict[str, float]:
    """The lower bound by the ledger, and no error."""
    c = replace(ModelConfig.preset("flash"), hc_mult=streams)
    return {"rows": float(mhc_rows_per_sublayer(c, "single_pass").value), "off by": 0.0}


def through_memory(memory: Memory, sums: Sums, pre: Tensor, post: Tensor, comb: Tensor) -> None:
    """The mix is written, and read again for its norm."""
    for t in range(memory.tiles):
        X = ops.update(memory.read("X", t), memory.read("F", t), post, comb)
        memory.write("X'", t, X)
        sums.add(t, X)
        memory.write("u", t, ops.collapse(X, pre))
        memory.write("x", t, sums.weigh(t, memory.read("u", t)))


def slip(*, mixed: str = "new", summed: str = "new", own: bool = False) -> Program:
    """One visit with a slip: the old streams in the mix or in the sums, or coefficients before all tiles are seen."""

    def program(memory: Memory, sums: Sums, pre: Tensor, post: Tensor, comb: Tensor) -> None:
        for t in range(memory.tiles):
            old = memory.read("X", t)
            at = {"old": old, "new": ops.update(old, memory.read("F", t), post, comb)}
            memory.write("X'", t, at["new"])
            sums.add(t, at[summed])
            mix = sums.coefficients()[0] if own else pre
            memory.write("x", t, sums.weigh(t, ops.collapse(at[mixed], mix)))

    return program


def again(memory: Memory, sums: Sums, pre: Tensor, post: Tensor, comb: Tensor) -> None:
    two_pass(memory, sums, pre, post, comb, delayed=True)


PASS = Exercise(
    name="07.single_pass",
    inputs=seams,
    reference=wanted,
    use=judged,
    versus=said.PASS_VERSUS,
    solution=single_pass,
    why=said.PASS_WHY,
    hints=said.PASS_HINTS,
    mistakes=(
        Mistake(name="two visits", answer=again, thought=said.AGAIN),
        Mistake(name="norm apart", answer=through_memory, thought=said.SEPARATE),
        Mistake(name="old streams mixed", answer=slip(mixed="old"), thought=said.STALE_STREAMS),
        Mistake(name="old streams summed", answer=slip(summed="old"), thought=said.SUMS_OF_OLD),
        Mistake(name="own coefficients", answer=slip(own=True), thought=said.PARTIAL),
    ),
)


def handed_on_error(logits: Tensor | Callable[[], Tensor]) -> float:
    """What 20 rounds leave of the inexact side. Raises ValueError for logits that are not 4 x 4 finite numbers."""
    logits = torch.as_tensor(logits() if callable(logits) else logits).detach().double()
    if logits.shape != (4, 4) or not logits.isfinite().all():
        raise ValueError(f"logits of shape {tuple(logits.shape)}: wanted are 4 x 4 finite numbers")
    return float(errors(sinkhorn(logits, 20, EPS))[1])


@cache
def of_random(draws: int = 1_000) -> float:
    """The largest such error of normal logits of spread 8."""
    g = torch.Generator().manual_seed(0)
    return float(errors(sinkhorn(8 * torch.randn(draws, 4, 4, generator=g, dtype=torch.float64), 20, EPS))[1].max())


def worst() -> Tensor:
    z = torch.stack([drawn(8, n) for n in range(32)]).requires_grad_()
    optimiser = torch.optim.Adam([z], lr=0.3)
    for _ in range(300):
        optimiser.zero_grad()
        (-errors(sinkhorn(z, 20, 1e-6))[1].sum()).backward()
        optimiser.step()
    z = z.detach()
    return z[errors(sinkhorn(z, 20, 1e-6))[1].argmax()]


def triangle() -> Tensor:
    return torch.full((4, 4), -60.0).tril(-1)


WORST = Exercise(
    name="07.worst",
    inputs=lambda: [{}],
    reference=of_random,
    use=handed_on_error,
    accept=lambda value, random: value > random,
    versus=said.WORST_VERSUS,
    solution=worst,
    why=said.WORST_WHY,
    hints=said.WORST_HINTS,
    mistakes=(
        Mistake(name="zeros", answer=lambda: torch.zeros(4, 4), thought=said.FLAT),
        Mistake(name="one large logit", answer=lambda: drawn(0, 0, 20), thought=said.LONE),
        Mistake(name="triangle", answer=triangle, thought=said.TRIANGLE),
    ),
)

EXERCISES = (ROUND, PASS, WORST)
