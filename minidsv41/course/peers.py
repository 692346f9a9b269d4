"""Recorded times of others' kernels, each beside the work that it does for this model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from minidsv41.config import ModelConfig
from minidsv41.course.limits import Card
from minidsv41.ledger import operations
from minidsv41.ledger.flops import label
from minidsv41.ledger.operations import Work


@dataclass(frozen=True, kw_only=True)
class Point:
    """A time in µs of one call. label: its shape; who: what ran. Peers may read larger rows than `work` counts."""

    work: Work
    tokens: int
    us: float
    label: str
    who: str

    @property
    def intensity(self) -> float:
        """FLOP a byte, of the fewest bytes."""
        return self.work.products(self.tokens) / self.work.bytes(self.tokens)

    @property
    def tflops(self) -> float:
        return self.work.products(self.tokens) / self.us / 1e6

    def floor(self, on: Card) -> float:
        return on.floor(self.work.bytes(self.tokens), self.work.products(self.tokens))

    def times(self, on: Card) -> float:
        """How many floors it takes."""
        return self.us / self.floor(on)


def best(found: dict[str, Any], name: str, shape: str) -> dict[str, Any]:
    """The fastest of the rows that both patterns match. Raises LookupError if there is none."""
    rows = [r for r in found["results"] if re.search(name, r["name"]) and re.search(shape, r["shape"])]
    if not rows:
        raise LookupError(f"no row {name!r} of shape {shape!r}")
    return min(rows, key=lambda row: row["us"])


def points(found: dict[str, Any], c: ModelConfig) -> list[Point]:
    """The best peer at each recorded shape; scores and their top-k are two kernels, and count together."""
    out = []

    def add(work: Work, tokens: int, *parts: tuple[str, str], keys: int = 0) -> None:
        rows = [best(found, *part) for part in parts]
        names = " + ".join(row["name"].partition(": ")[2] for row in rows)
        shape = label(tokens) + (f" × {label(keys)}" if keys else "")
        out.append(Point(work=work, tokens=tokens, us=sum(row["us"] for row in rows), label=shape, who=names))

    for tokens in (1, 32, 128, 4096, 32768):
        add(operations.seam(c), tokens, ("^mHC (V4|delayed) seam", rf"^T={tokens} "))
    for tokens, length in ((1, 2**20), (32, 2**17), (32, 2**20)):
        parts = (r"^indexer logits", rf"B={tokens} L={length},"), ("^top-k", rf"^{tokens}x{length} k=512")
        add(operations.index_select(c, length), tokens, *parts, keys=length)
    for tokens in (1, 32, 128):
        add(operations.attention(c, 2**17), tokens, ("^sparse attention decode", rf"B={tokens},"))
    add(operations.attention(c, 2**15, prompt=True), 4096, ("^sparse attention prefill", "T=4096"))
    for tokens in (4096, 32768):
        add(operations.window_attention(c), tokens, ("^SWA prefill", rf"T={tokens},"))
        add(operations.engram_read(c), tokens, ("^Engram gather from HBM", rf"T={tokens},"))
        add(operations.gated_delta(), tokens, (r"^gated delta rule fwd:", rf"^1x{tokens},"))
    return out
