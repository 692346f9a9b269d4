"""The seam at released widths, forward and backward.

Floors: forward reads X and F and writes X' and x: 10C elements a token, and the predictor once. Backward at best reads
X, F and the gradients of X' and x and writes those of X and F: 15C elements a token, the predictor and its gradient.
Targets: forward 75 % of a copy at 4.25 TB/s from 4,096 tokens on; backward 2.5 times its floor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.kernels.seam import crossed, seam, tile_for
from minidsv41.kernels.seam_steps import seam_in_steps
from minidsv41.ops import seam as operation
from minidsv41.ops.seam import Next

COPY = 4.25e6  # bytes a microsecond
ITERS = 20  # of Sinkhorn
plain = operation.plain


@cache
def compiler() -> Callable:
    """Imported late: that alone takes seconds."""
    return torch.compile(plain, dynamic=False)


def compiled(*args):
    return compiler()(*args)


def forward(T: int, C: int = 5120, target_us: float | None = None) -> Case:
    return Case("seam", f"T={T:,}", T * 20 * C + 96 * 4 * C, 2 * 2 * T * 24 * 4 * C, target_us, partial(cross, T, C))


def backward(T: int, C: int = 5120) -> Case:
    moved = T * 30 * C + 2 * 96 * 4 * C
    return Case("seam backward", f"T={T:,}", moved, 3 * 2 * T * 24 * 4 * C, 2.5 * moved / COPY, partial(back, T, C))


def inputs(T: int, C: int, device: torch.device, seed: int) -> tuple[list[Tensor], Next]:
    """X, F, pre, post, comb with the sizes they have in a model, and a predictor of random weights."""
    normal = partial(torch.randn, generator=torch.Generator(device).manual_seed(seed), device=device)
    given = [normal(T, 4, C, dtype=torch.bfloat16), normal(T, C, dtype=torch.bfloat16), normal(T, 4).sigmoid()]
    given += [2 * normal(T, 4).sigmoid(), normal(T, 4, 4).softmax(-2)]
    norm = 1 + 0.1 * normal(C)
    return given, Next(normal(24, 4 * C) * C**-0.5, normal(24), normal(3).sigmoid(), norm, 1e-20, 1e-6, ITERS)


def cross(T: int, C: int, device: torch.device, seed: int) -> Contest:
    given, into = inputs(T, C, device, seed)
    runs = {
        "kernel": torch.no_grad()(partial(seam, *given, into)),
        "three_step": partial(seam_in_steps, *given, into),
        "plain": torch.no_grad()(partial(plain, *given, into)),
        "compile": torch.no_grad()(partial(compiled, *given, into)),
    }
    tile = tile_for(T, C, torch.bfloat16)
    workspace = 128 * T + 132 * T * tile.splits * (tile.splits > 1) + 96 * 4 * C * tile.packed
    return Contest(runs, torch.no_grad()(partial(error, given, into)), 6e-3, workspace)


def error(given: list[Tensor], into: Next, at_once: int = 1024) -> float:
    """The largest relative error of the five results, against float64."""
    found = seam(*given, into)
    exact = Next(*(t.double() for t in into[:4]), *into[4:])
    wrong, whole = [0.0] * 5, [0.0] * 5
    for start in range(0, len(given[0]), at_once):
        rows = slice(start, start + at_once)
        for i, wanted in enumerate(plain(*(t[rows].double() for t in given), exact)):
            wrong[i] += float((found[i][rows].double() - wanted).square().sum())
            whole[i] += float(wanted.square().sum())
    return max((a / b) ** 0.5 for a, b in zip(wrong, whole, strict=True))


def back(T: int, C: int, device: torch.device, seed: int) -> Contest:
    given, into = inputs(T, C, device, seed)
    leaves = [t.requires_grad_() for t in (*given, *into[:4])]
    generator = torch.Generator(device).manual_seed(seed + 1)
    out = crossed(*given, into)[:5]
    grads = [torch.randn(t.shape, generator=generator, device=device, dtype=t.dtype) for t in out]
    steps = {"kernel": seam, "plain": plain, "compile": compiled}
    runs = {name: walked_back(run, given, into, leaves, grads) for name, run in steps.items()}
    workspace = 4 * T * (32 + 24 + 160) + 4 * (T // 32 + T // 4 + 9) * C + 4 * 24 * 4 * 4 * C
    return Contest(runs, partial(back_error, given, into, leaves, grads), 3e-2, workspace)


def walked_back(run, given, into, leaves, grads) -> Callable[[], object]:
    """The gradients alone: the forward pass, run when first asked for, is kept."""
    out = []

    def once() -> object:
        if not out:
            out.extend(run(*given, into))
        return torch.autograd.grad(out, leaves, grads, retain_graph=True)

    return once


def back_error(given, into, leaves, grads, most: int = 512) -> float:
    """The largest relative error of a gradient over the first tokens, against float64."""
    rows = slice(0, min(most, len(given[0])))
    short = [t[rows].detach() for t in given], [g[rows] for g in grads]

    def of(run, wide: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        tensors = [wide(t.detach()).requires_grad_() for t in (*short[0], *leaves[5:])]
        out = run(*tensors[:5], Next(*tensors[5:], *into[4:]))
        return torch.autograd.grad(out, tensors, [g.to(o.dtype) for g, o in zip(short[1], out, strict=True)])

    pairs = zip(of(seam, torch.clone), of(plain, torch.Tensor.double), strict=True)
    return max(float((found.double() - wanted).norm() / wanted.norm()) for found, wanted in pairs)


CASES = [
    *(forward(T, target_us=10.0) for T in (1, 32, 128)),
    forward(512),
    forward(2048),
    forward(4096, target_us=132.0),
    forward(32768, target_us=1055.0),
    *(backward(T) for T in (4096, 32768)),
]
