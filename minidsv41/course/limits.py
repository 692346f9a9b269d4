"""Three limits of a kernel's time on one card: memory, arithmetic, and a launch. Times in µs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from minidsv41.config import ModelConfig
from minidsv41.course.records import record
from minidsv41.ledger.operations import Work, operations

Name = Literal["memory", "arithmetic", "launch"]
STARTS = {"a graph": "launch_graph_us", "Python": "launch_stream_us"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a card does at best: GB/s of a copy, read and written bytes counted; BF16 TFLOP/s; µs of an empty launch."""

    copy: float
    products: float
    launch: float

    @property
    def ridge(self) -> float:
        """FLOP a byte at which memory and arithmetic take equally long."""
        return 1e3 * self.products / self.copy

    def limits(self, moved: float, flops: float) -> dict[Name, float]:
        """µs that each of the three takes at least."""
        return {"memory": moved / self.copy / 1e3, "arithmetic": flops / self.products / 1e6, "launch": self.launch}

    def floor(self, moved: float, flops: float) -> float:
        return max(self.limits(moved, flops).values())

    def binds(self, moved: float, flops: float) -> Name:
        """The one that takes longest."""
        found = self.limits(moved, flops)
        return max(found, key=found.get)


def card(found: dict[str, Any], *, start: str = "a graph") -> Card:
    """The card of a record, the better of its rounds. start: who launches, "a graph" or "Python"."""
    best = found["ceilings"]
    launch = min(each[STARTS[start]] for each in found["ceilings_by_round"].values())
    return Card(copy=best["copy_gbs"], products=best["bf16_tflops"], launch=launch)


def limits(work: Work, tokens: int, on: Card) -> dict[Name, float]:
    return on.limits(work.bytes(tokens), work.products(tokens))


def floor(work: Work, tokens: int, on: Card) -> float:
    return on.floor(work.bytes(tokens), work.products(tokens))


def binds(work: Work, tokens: int, on: Card) -> Name:
    return on.binds(work.bytes(tokens), work.products(tokens))


@cache
def released() -> dict[str, Work]:
    return operations(ModelConfig.preset("flash"))


@cache
def h200(start: str = "a graph") -> Card:
    return card(record("peers_h200"), start=start)


def described(*, power: int, operation: str, start: str) -> str:
    """HTML for the widget: 2**power tokens of an operation, started by a graph or by Python."""
    work, on, tokens = released()[operation], h200(start), 2**power
    moved, flops = work.bytes(tokens), work.products(tokens)
    each = ", ".join(f"{name} {us:,.3g}" for name, us in limits(work, tokens, on).items())
    much = f"{moved / 1e6:,.3g} MB, {flops / 1e9:,.3g} GFLOP, {flops / moved:,.3g} FLOP a byte"
    return f"{operation}, {tokens:,} tokens: {much}<br>µs at least: {each}; bound by {binds(work, tokens, on)}"
