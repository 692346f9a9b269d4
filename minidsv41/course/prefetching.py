"""A pass whose Engram rows come from a store: when the network waits, and how long a block takes at full size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minidsv41.config import ModelConfig
from minidsv41.ledger import checkpoint, params
from minidsv41.ledger.machines import Machine
from minidsv41.serve.prefetch import Prefetcher, Simulated, SlowTable

NOTHING, FIRST = torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.int64)
PCIE = 55e9  # B/s of a PCIe 5.0 x16 link, as engines reach it


def passed(blocks: Sequence[float], layers: Sequence[int], fetch: float) -> Prefetcher:
    """The diary of a pass over blocks of these lengths: every table's rows are asked for at once and take `fetch`."""
    clock = Simulated()
    prefetcher = Prefetcher({n: SlowTable(NOTHING, clock, fetch) for n in layers}, clock)
    for n in layers:
        prefetcher.ask(n, FIRST)
    for n, length in enumerate(blocks):
        if n in layers:
            prefetcher.take(n)
        prefetcher.timed("compute", f"layer {n}", clock.sleep, length)
    return prefetcher


def stall(blocks: Sequence[float], layers: Sequence[int], fetch: float) -> float:
    """How long the network waits for rows."""
    return passed(blocks, layers, fetch).stall


def longest(blocks: Sequence[float], layers: Sequence[int], transfer: float) -> float:
    """The largest latency without a wait if a table takes latency + transfer, found by halving."""
    low, high = 0.0, sum(blocks)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if stall(blocks, layers, middle + transfer) > 0 else (middle, high)
    return low


def row_bytes(c: ModelConfig) -> int:
    """A stored row: FP8 values and a scale for each 32 of them."""
    return c.engram_head_dim + c.engram_head_dim // 32


def block_floor(c: ModelConfig, on: Machine, tokens: int) -> float:
    """Seconds that a block needs at least for a step of `tokens`: weights read once, products of FP8 count half.

    Experts are hit as if each token chose at random.
    """
    chosen, experts = c.num_experts_per_tok, c.n_routed_experts
    hit = experts * (1 - (1 - chosen / experts) ** tokens)
    read = hit * float(checkpoint.expert_bytes(c).value) + float(checkpoint.block_other_bytes(c).value)
    flops = 2 * float(params.active_per_layer_matrices(c).value) / 2
    return on.seconds(tokens * flops, read)


@dataclass(frozen=True)
class Case:
    """One setting of the widget. latency and block in µs; rows: of each of the two tables, for a token."""

    latency: int
    block: int
    rows: int
    batch: int

    def transfer(self, c: ModelConfig) -> float:
        """µs of the rows on the link."""
        return 1e6 * self.batch * self.rows * row_bytes(c) / PCIE

    def run(self, c: ModelConfig) -> Prefetcher:
        """The diary of the layers up to the last table, in µs."""
        layers = c.engram_layer_ids
        return passed([self.block] * (layers[-1] + 1), layers, self.latency + self.transfer(c))


def described(c: ModelConfig, case: Case) -> str:
    """The readout of the widget."""
    run, first = case.run(c), c.engram_layer_ids[0]
    waits = {s.what: s.end - s.begin for s in run.spans if s.what.startswith("wait")}
    said = [f"{waits[f'wait {n}']:,.0f} µs at layer {n}" for n in c.engram_layer_ids]
    fetch = case.latency + case.transfer(c)
    size = case.batch * case.rows * row_bytes(c)
    return (
        f"a table's rows: {case.latency:,} µs + {size:,} B on the link = {fetch:,.0f} µs; "
        f"before layer {first} there are {first * case.block:,} µs<br>"
        f"the network waits {' and '.join(said)}"
    )
