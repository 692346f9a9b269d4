"""The steps of a seam as lesson 12 launches them, each compared with the plain version, in words."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.course.mixing import EPS
from minidsv41.course.seams import Seam
from minidsv41.ops import Next
from minidsv41.ops.seam import predict, sinkhorn

EXACT = 1e-12


def example(*, tokens: int = 3, width: int = 64) -> Seam:
    """A random seam of four streams in float64."""
    g = torch.Generator().manual_seed(12)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    into = Next(normal(24, 4 * width) / 16, normal(24), normal(3), 1 + normal(width) / 4, 1e-20, EPS, 20)
    post, comb = 2 * normal(tokens, 4).sigmoid(), sinkhorn(normal(tokens, 4, 4), 20, EPS)
    return Seam(normal(tokens, 4, width), normal(tokens, width), normal(tokens, 4), post, comb, into)


def compared(name: str, programs: int, found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> str:
    off = max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True))
    first = ", ".join(f"{value:.3f}" for value in found[0].flatten()[:3])
    return f"{name}: {programs} programs, first values {first}, as the plain version: {off < EXACT}"


def step(name: str) -> Callable[[], str]:
    """A function that runs one of the three launches alone, on the plain version's inputs."""

    def run() -> str:
        from minidsv41.kernels.launch import recorded
        from minidsv41.kernels.lesson import steps

        at = example()
        with recorded() as launches:
            steps.in_three(*at)
        call = next(each for each in launches if each.kernel.fn.__name__ == name)
        new = ops.update(at.X, at.F, at.post, at.comb)
        if name != "update":
            call.args["X"].copy_(new)
        call.run()
        wanted = {
            "update": lambda: {"new": new},
            "predict": lambda: {"out": steps.packed(*predict(new, at.into))},
            "collapse": lambda: {"x": ops.rms_norm(ops.collapse(new, at.pre), at.into.norm, at.into.eps)},
        }[name]()
        return compared(name, prod(call.grid), tuple(call.args[key] for key in wanted), tuple(wanted.values()))

    return run


def launched(how: str) -> Callable[[], str]:
    """A function that crosses the seam `in_three` launches or `in_one`."""

    def run() -> str:
        from minidsv41.kernels.lesson import steps

        at = example()
        return compared(how, len(at.X), getattr(steps, how)(*at), ops.seam(*at))

    return run


COMPUTED: dict[str, Callable[[], str]] = {
    **{name: step(name) for name in ("update", "predict", "collapse")},
    **{how: launched(how) for how in ("in_three", "in_one")},
}
