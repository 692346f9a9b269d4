"""The 3:1 hybrid (Qwen3-Next, Qwen3.5): three layers whose state is fixed, one whose rows grow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from minidsv41.families.deltanet import GatedDeltaNet
from minidsv41.families.heads import CentredNorm, GatedHeads
from minidsv41.families.state import Family, State


@dataclass
class Stack(State):
    """States of layers that follow each other."""

    inner: list[State] = field(default_factory=list)

    def nbytes(self) -> tuple[int, int]:
        grows, fixed = zip(*(state.nbytes() for state in self.inner), strict=True)
        return sum(grows), sum(fixed)

    def copy(self) -> Stack:
        return replace(self, inner=[state.copy() for state in self.inner])


class Hybrid(Family):
    """`period - 1` layers of gated DeltaNet and one of gated heads, each added to what it reads, behind a norm."""

    def __init__(self, *, hidden: int, heads: dict, delta: dict, period: int = 4, eps: float = 1e-6) -> None:
        super().__init__()
        layers = [GatedDeltaNet(hidden=hidden, **delta) for _ in range(period - 1)] + [
            GatedHeads(hidden=hidden, **heads)
        ]
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(CentredNorm(hidden, eps) for _ in layers)

    def new(self) -> Stack:
        return Stack(inner=[layer.new() for layer in self.layers])

    def attend(self, x: Tensor, positions: Tensor, state: Stack) -> Tensor:
        for layer, norm, inner in zip(self.layers, self.norms, state.inner, strict=True):
            x = x + layer(norm(x), inner)
        return x
