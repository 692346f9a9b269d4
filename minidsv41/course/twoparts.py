"""A memory of two parts: rows that grow with the text, and matrices that do not. In the shapes of Qwen3.5-397B."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minidsv41.ledger.deployed import qwen35
from minidsv41.ledger.parts import DeltaState, HeadRows

BYTES = {"BF16": 2, "FP32": 4}  # of a number of the state
FULL, DELTA = qwen35(4).parts
LAYERS = FULL.layers + DELTA.layers


@dataclass(frozen=True, kw_only=True)
class TwoParts:
    """`LAYERS` layers, of which `state_layers` keep a matrix for each of `heads` and the others rows in BF16."""

    state_layers: int = DELTA.layers
    heads: int = DELTA.heads
    dtype: str = "FP32"

    @property
    def delta(self) -> DeltaState:
        return replace(DELTA, layers=self.state_layers, heads=self.heads, bytes=BYTES[self.dtype])

    @property
    def state(self) -> int:
        """Bytes of all matrices; the inputs that the convolutions remember are left out."""
        return int(self.delta.matrices)

    @property
    def per_token(self) -> int:
        """Bytes of rows that a token adds."""
        return int(self.rows(LAYERS - self.state_layers).per_token)

    def rows(self, layers: int) -> HeadRows:
        return replace(FULL, layers=layers)

    def held(self, tokens: int) -> int:
        return self.state + tokens * self.per_token

    @property
    def crossover(self) -> float | None:
        """Tokens from which the rows are the larger part; None where there are no rows."""
        return self.state / self.per_token if self.per_token else None

    @property
    def pays(self) -> float | None:
        """Tokens from which it holds less than if all layers kept rows; None where no layer has a state."""
        saved = int(self.rows(self.state_layers).per_token)
        return self.state / saved if saved else None


def described(*, tokens: int, state_layers: int, heads: int, dtype: str) -> str:
    """The widget's readout. tokens: the exponent of two."""
    m, n = TwoParts(state_layers=state_layers, heads=heads, dtype=dtype), 2**tokens
    first = f"{n:,} tokens: rows {n * m.per_token / 1e6:,.1f} MB + state {m.state / 1e6:,.1f} MB"
    full = f"; rows in all {LAYERS} layers: {n * TwoParts(state_layers=0).per_token / 1e6:,.1f} MB"
    even = "never" if m.crossover is None else f"at {m.crossover:,.0f} tokens"
    pays = "never" if m.pays is None else f"from {m.pays:,.0f} tokens on"
    return f"{first}{full}<br>rows catch up with the state {even}; the state pays {pays}"


def added(v: Tensor, alpha: float = 1.0) -> Tensor:
    """What one key reads after the values v [n, draws, V] were added under it, without a delta rule -> [draws, V]"""
    row = torch.zeros_like(v[0])
    for value in v:
        row = alpha * row + value
    return row
