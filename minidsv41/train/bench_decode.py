"""Prefill and decode at several context lengths, beside the plain Transformer: time, bytes of cache, memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.model import Model
from minidsv41.serve.generate import prefill, step
from minidsv41.train import machine
from minidsv41.train.bench import contender
from minidsv41.train.data import corpus
from minidsv41.train.plain import PlainCache, PlainTransformer


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """One comparison, with fresh weights: their values do not change the work."""

    preset: str = "toy"
    lengths: tuple[int, ...] = (256, 2048, 8192)  # tokens in the context when decoding starts
    tokens: int = 64  # decoded after each
    threads: int = 2
    seed: int = 0


class Sequence(Protocol):
    """One sequence of a contender."""

    def feed(self, ids: Tensor) -> Tensor:
        """The next tokens ids [n] -> logits [V] after the last of them."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that the context occupies."""
        ...


class Ours:
    def __init__(self, model: Model, limit: int) -> None:
        self.model, self.cache = model, Cache(model.config, cache_format="packed")
        self.state = self.cache.new()

    def feed(self, ids: Tensor) -> Tensor:
        if len(ids) > 1:
            return prefill(self.model, self.cache, self.state, ids)
        return self.model.logits(step(self.model, self.cache, self.state, ids).hidden)[0]

    @property
    def nbytes(self) -> int:
        return sum(self.cache.nbytes(self.state).values())


class Theirs:
    def __init__(self, model: PlainTransformer, limit: int) -> None:
        self.model, self.cache = model, PlainCache(model.config, limit)

    def feed(self, ids: Tensor) -> Tensor:
        for part in ids.split(512):
            logits = self.model(part[None], self.cache)[0, 0]
        return logits

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@torch.no_grad()
def decode(name: str, c: DecodeConfig) -> list[dict]:
    """Measure one contender at every length, on real text. Runs in a process of its own."""
    torch.set_num_threads(c.threads)
    model = contender(name, c.preset, c.seed).eval()
    text = torch.from_numpy(corpus().train.tokens)
    found = []
    for length in c.lengths:
        sequence: Sequence = (Ours if name == "minidsv41" else Theirs)(model, length + c.tokens)
        first = timed(lambda s=sequence, n=length: s.feed(text[:n]))
        times = [timed(lambda s=sequence, i=i: s.feed(text[i : i + 1])) for i in range(length, length + c.tokens)]
        found.append(
            {
                "context": length,
                "prefill_tokens_per_second": round(length / first, 1),
                "decode_tokens_per_second": round(1 / median(times), 1),
                "decode_tokens_per_second_range": [round(1 / max(times), 1), round(1 / min(times), 1)],
                "cache_bytes": sequence.nbytes,
                "peak_memory_mb": round(machine.peak_memory_mb()),
            }
        )
    return found
