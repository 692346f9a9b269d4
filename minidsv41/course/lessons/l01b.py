"""Lesson 01b: what fades under one key, one step of the gated delta rule, and where to save states."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.lessons import said01b as said
from minidsv41.course.snapshots import Policy, Prompt, at_branches, at_the_end, common, evenly, serve, traffic
from minidsv41.families import delta


def measured(stores: int, alpha: float, beta: float) -> float:
    """Store a one, then `stores` zeros under the same key, and read."""
    one = torch.ones(1 + stores, 1, 1, dtype=torch.float64)
    value = torch.zeros_like(one)
    value[0] = 1
    g, b = (one[..., 0] * alpha).log(), one[..., 0] * beta
    out, _ = delta.recurrent(one, one, value, g, b, torch.zeros_like(one[:1]))
    return float(out[-1])


def left(stores: int, alpha: float, beta: float) -> float:
    return beta * (alpha * (1 - beta)) ** stores


LEFT = Exercise(
    name="01b.left",
    inputs=lambda: [
        dict(stores=n, alpha=a, beta=b) for n, a, b in ((0, 0.9, 0.5), (1, 1.0, 0.25), (3, 0.9, 0.5), (2, 0.8, 1.0))
    ],
    reference=measured,
    solution=left,
    why=said.LEFT_WHY,
    hints=said.LEFT_HINTS,
    mistakes=(
        Mistake(
            name="no first beta",
            answer=lambda stores, alpha, beta: (alpha * (1 - beta)) ** stores,
            thought=said.NO_FIRST,
        ),
        Mistake(name="decay alone", answer=lambda stores, alpha, beta: beta * alpha**stores, thought=said.DECAY_ALONE),
        Mistake(name="no decay", answer=lambda stores, alpha, beta: beta * (1 - beta) ** stores, thought=said.NO_DECAY),
        Mistake(
            name="misplaced decay",
            answer=lambda stores, alpha, beta: beta * (alpha - beta) ** stores,
            thought=said.LEFT_MISPLACED,
        ),
        Mistake(
            name="one decay too many",
            answer=lambda stores, alpha, beta: alpha * beta * (alpha * (1 - beta)) ** stores,
            thought=said.FIRST_DECAYED,
        ),
    ),
)


def tokens() -> list[dict[str, Tensor]]:
    """One token behind a state, with a decay a head and a decay a channel; square and oblong."""
    dice = torch.Generator().manual_seed(7)
    found = []
    for heads, keys, values, channels in ((1, 2, 2, False), (2, 3, 3, True), (3, 4, 2, False), (2, 2, 4, True)):
        S, q, k, v = (
            torch.randn(n, generator=dice, dtype=torch.float64)
            for n in ((heads, keys, values), (heads, keys), (heads, keys), (heads, values))
        )
        g = -torch.rand((heads, keys) if channels else (heads,), generator=dice, dtype=torch.float64)
        beta = torch.rand(heads, generator=dice, dtype=torch.float64)
        found.append(dict(S=S, q=q, k=k / k.norm(dim=-1, keepdim=True), v=v, g=g, beta=beta))
    return found


def of_package(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    out, after = delta.recurrent(q[None], k[None], v[None], g[None], beta[None], S)
    return out[0], after


def kda_step(S, q, k, v, g, beta):
    decay = g.exp() if g.dim() == 2 else g.exp()[:, None]  # [H, K] or [H, 1]
    S = S * decay[:, :, None]
    error = v - torch.einsum("hkv,hk->hv", S, k)
    S = S + beta[:, None, None] * k[:, :, None] * error[:, None, :]
    return torch.einsum("hkv,hk->hv", S, q), S


def otherwise(
    *,
    early: bool = False,
    late: bool = False,
    log: bool = False,
    values: bool = False,
    before: bool = False,
    error: bool = True,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """`kda_step` with one thing done in another way."""

    def answer(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        decay = (g if log else g.exp()).view(len(g), -1)
        decay = decay[:, None, :] if values and g.dim() == 2 else decay[:, :, None]
        faded = S if late else S * decay
        predicted = torch.einsum("hkv,hk->hv", S if early else faded, k)
        new = faded + beta[:, None, None] * k[:, :, None] * (v - predicted if error else v)[:, None]
        new = new * decay if late else new
        return torch.einsum("hkv,hk->hv", faded if before else new, q), new

    return answer


STEP = Exercise(
    name="01b.step",
    inputs=tokens,
    reference=of_package,
    solution=kda_step,
    why=said.STEP_WHY,
    hints=said.STEP_HINTS,
    mistakes=(
        Mistake(name="misplaced decay", answer=otherwise(early=True), thought=said.MISPLACED),
        Mistake(name="decay afterwards", answer=otherwise(late=True), thought=said.AFTERWARDS),
        Mistake(name="no prediction", answer=otherwise(error=False), thought=said.NO_PREDICTION),
        Mistake(name="read before", answer=otherwise(before=True), thought=said.READ_BEFORE),
        Mistake(name="logarithm", answer=otherwise(log=True), thought=said.LOGARITHM),
        Mistake(name="channels of the value", answer=otherwise(values=True), thought=said.VALUE_CHANNELS),
    ),
)


@cache
def asked() -> tuple[Prompt, ...]:
    return tuple(traffic())


def blocks(policy: Policy) -> int:
    """Blocks that have to be run when states are saved where the policy says."""
    return serve(policy, asked()).run


def where(prompt, seen, hit):
    fork = max((common(prompt, other) for other in seen), default=0)
    middle = (hit + len(prompt) + 1) // 2
    return [fork if fork > hit else middle, len(prompt)]


PLACES = Exercise(
    name="01b.places",
    inputs=lambda: [{}],
    reference=lambda: min(map(blocks, (at_the_end, evenly, at_branches))),
    use=blocks,
    accept=lambda run, best: 0 < run < best,
    versus=said.PLACES_VERSUS,
    solution=where,
    why=said.PLACES_WHY,
    hints=said.PLACES_HINTS,
    mistakes=(
        Mistake(name="nothing", answer=lambda prompt, seen, hit: [], thought=said.NOTHING),
        Mistake(name="the end", answer=at_the_end, thought=said.THE_END),
        Mistake(name="halves", answer=evenly, thought=said.HALVES),
        Mistake(name="branches", answer=at_branches, thought=said.BRANCHES),
    ),
)

EXERCISES = (LEFT, STEP, PLACES)
