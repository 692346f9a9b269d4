"""Seconds of a decoding step by load and rows: measured on the toy, modelled for the release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol

from minidsv41.config import ModelConfig
from minidsv41.ledger.checkpoint import block_other_bytes, expert_bytes
from minidsv41.ledger.flops import flop_decode
from minidsv41.ledger.params import attn_matrices, expert_params
from minidsv41.serve.schedule import Speed


class StepCost(Protocol):
    """block: drafts of a request; loads: numbers of requests that make sense to ask for."""

    block: int
    loads: tuple[int, ...]

    def plain(self, requests: int) -> float:
        """Seconds of a step without drafts."""

    def seconds(self, requests: int, rows: int) -> float:
        """Seconds to draft for all requests and to verify `rows`, their anchors included."""


def rate(cost: StepCost, requests: int) -> Callable[[int], float]:
    """Steps a second by rows, as a schedule takes it; each number of rows is priced once."""
    return cache(lambda rows: 1 / cost.seconds(requests, rows))


@dataclass(frozen=True)
class Recorded:
    """A `bench_verify` record. Between measured rows linear; other loads than the measured ones are refused."""

    draft: dict[int, float]
    verify: dict[int, tuple[float, ...]]

    @classmethod
    def of(cls, record: dict[str, Any]) -> Recorded:
        rows = record["results"]["seconds"]
        return cls({r["requests"]: r["draft"] for r in rows}, {r["requests"]: tuple(r["verify"]) for r in rows})

    @property
    def loads(self) -> tuple[int, ...]:
        return tuple(self.draft)

    @property
    def block(self) -> int:
        return len(next(iter(self.verify.values()))) - 1

    def plain(self, requests: int) -> float:
        return self._measured(requests).seconds[0]

    def seconds(self, requests: int, rows: int) -> float:
        return self.draft[requests] + 1 / self._measured(requests).steps_per_second(rows)

    def _measured(self, requests: int) -> Speed:
        if requests not in self.verify:
            raise ValueError(f"{requests} requests were not measured; there are {', '.join(map(str, self.loads))}")
        seconds = self.verify[requests]
        return Speed(tuple(requests * (1 + n) for n in range(len(seconds))), seconds)


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """A floor for the release on several GPUs: the slower of reading weights and computing, and a fixed part.

    Experts are read if any row chose them; rows choose evenly and independently. Assumed, not measured: bandwidth
    [B/s] and BF16 rate [FLOP/s] of a GPU as its maker gives them, the share of both that is reached, seconds a layer
    for launches and the network, tokens of context. Keys and values are computed with, their reading is left out.
    pad: rows are padded to multiples of it, as engines do that replay captured graphs.
    """

    config: ModelConfig
    gpus: int = 8
    bandwidth: float = 4.8e12
    flops: float = 989e12
    reached: float = 0.6
    per_layer: float = 1e-4
    context: int = 32768
    pad: int = 1
    loads: tuple[int, ...] = (8, 32, 64, 128, 512, 1024, 2048)

    @property
    def block(self) -> int:
        return self.config.dspark_block_size

    def plain(self, requests: int) -> float:
        return self._verify(requests)

    def seconds(self, requests: int, rows: int) -> float:
        return self._draft(requests) + self._verify(rows)

    def experts_read(self, rows: int) -> float:
        """Of each layer's routed experts, how many at least one of the rows chose."""
        return touched(self.config.n_routed_experts, self.config.num_experts_per_tok, self._padded(rows))

    def _padded(self, rows: int) -> int:
        return -(-rows // self.pad) * self.pad

    @cached_property
    def _weights(self) -> Weights:
        return weights(self.config, self.context)

    def _verify(self, rows: int) -> float:
        w, rows = self._weights, self._padded(rows)
        read = w.layers * (self.experts_read(rows) * w.expert + w.other) + w.head
        return self._slower(w.layers, read, rows * w.flop_row)

    def _draft(self, requests: int) -> float:
        c, w, rows = self.config, self._weights, requests * self.block
        experts = touched(c.dspark_n_routed_experts, c.dspark_num_experts_per_tok, rows)
        read = w.draft_layers * (experts * w.expert + w.other) + w.head
        return self._slower(w.draft_layers, read, rows * w.flop_drafted)

    def _slower(self, layers: int, read: float, done: float) -> float:
        here = self.gpus * self.reached
        return layers * self.per_layer + max(read / (here * self.bandwidth), done / (here * self.flops))


class Weights(NamedTuple):
    """Bytes of an expert, of the rest of a block, of the head; FLOPs of a verified and of a drafted row, as BF16."""

    layers: int
    draft_layers: int
    expert: int
    other: int
    head: int
    flop_row: float
    flop_drafted: float


@cache
def weights(c: ModelConfig, context: int) -> Weights:
    """From the ledger. Drafting: FP8 matrices at one FLOP a parameter, and the BF16 head at two."""
    head, draft_layers = 2 * c.vocab_size * c.hidden_size, c.num_nextn_predict_layers
    active = int(attn_matrices(c)) + (c.dspark_num_experts_per_tok + 1) * int(expert_params(c))
    return Weights(
        layers=c.num_hidden_layers,
        draft_layers=draft_layers,
        expert=int(expert_bytes(c)),
        other=int(block_other_bytes(c)),
        head=head,
        flop_row=float(flop_decode(c, context).value),
        flop_drafted=draft_layers * active + head,
    )


def touched(experts: int, chosen: int, rows: int) -> float:
    """Expected number of experts that at least one of the rows chose, evenly and independently."""
    return experts * (1 - (1 - chosen / experts) ** rows)


def even_chance(tokens: float, block: int) -> float:
    """The chance of each draft, if it is the same for all, with which a step of a whole block gains `tokens`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**k for k in range(block + 1)) < tokens else (low, middle)
    return low


def chances_of(reach: Sequence[float]) -> list[float]:
    """Shares of steps that kept at least 1, 2, … drafts -> chance of each draft, given all before it."""
    return [kept / before if before else 0.0 for before, kept in zip([1.0, *reach], reach, strict=False)]
