"""Engram rows from a slow store, asked for before the first block runs: the ids alone decide which."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor

from minidsv41.model import Model
from minidsv41.replaced import replaced


class Handle(Protocol):
    """Work under way; `result` waits for it."""

    def result(self) -> Any: ...


class Clock(Protocol):
    """Seconds, and one lane in the background that does one thing at a time."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def start(self, work: Callable[[], Any]) -> Handle: ...


class WallClock:
    """Real seconds, and a thread."""

    def __init__(self) -> None:
        self.lane = ThreadPoolExecutor(1)

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def start(self, work: Callable[[], Any]) -> Future:
        return self.lane.submit(work)


@dataclass
class Simulated:
    """Nothing takes time but `sleep`: work in the background sleeps in its lane, and who needs it waits there."""

    time: float = 0.0
    free: float = 0.0  # when the lane has done all that was asked of it

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def start(self, work: Callable[[], Any]) -> Handle:
        here, self.time = self.time, max(self.time, self.free)
        found = work()
        self.free, self.time = self.time, here
        return Done(self, self.free, found)


class Done(NamedTuple):
    clock: Simulated
    at: float
    found: Any

    def result(self) -> Any:
        self.clock.time = max(self.clock.time, self.at)
        return self.found


@dataclass(frozen=True)
class SlowTable:
    """A table that answers late: `latency` seconds for each request, and `row_time` for each row."""

    weight: Tensor
    clock: Clock
    latency: float
    row_time: float = 0.0

    def read(self, rows: Tensor) -> Tensor:
        """rows [T, columns] -> [T, columns, width]"""
        self.clock.sleep(self.latency + self.row_time * rows.numel())
        return F.embedding(rows, self.weight)


class Span(NamedTuple):
    """What a lane (compute or store) did, in seconds of the clock."""

    lane: str
    what: str
    begin: float
    end: float


@dataclass
class Prefetcher:
    """Tables by layer, rows on their way, and a diary of both lanes."""

    tables: Mapping[int, SlowTable]
    clock: Clock
    waiting: dict[int, Handle] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def ask(self, layer: int, rows: Tensor) -> None:
        """Send for the rows [T, columns] of a layer and return at once."""
        table = self.tables[layer]
        self.waiting[layer] = self.clock.start(lambda: self.timed("store", f"rows {layer}", table.read, rows))

    def take(self, layer: int) -> Tensor:
        """The rows that were sent for, when they are there."""
        return self.timed("compute", f"wait {layer}", self.waiting.pop(layer).result)

    def timed(self, lane: str, what: str, work: Callable[..., Any], *arguments: Any) -> Any:
        begin = self.clock.now()
        found = work(*arguments)
        self.spans.append(Span(lane, what, begin, self.clock.now()))
        return found

    @property
    def stall(self) -> float:
        """Seconds for which the network waited."""
        return sum(s.end - s.begin for s in self.spans if s.what.startswith("wait"))


@contextmanager
def prefetching(model: Model, prefetcher: Prefetcher, *, pace: float = 0.0) -> Iterator[None]:
    """While the block runs, Engram reads what `prefetcher` brings, and every layer enters its diary.

    Rows are sent for before the first layer of the encoder, or of the decoder, whichever has the Engram. pace: seconds
    that each layer takes on top of its own time, for a clock that does not run by itself.
    """
    pad, due = int(model.token_map[model.config.engram_pad_token_id]), []

    def running(original: Callable) -> Callable:
        def run(layers: range, *arguments: Any) -> Any:
            due[:] = [layer for layer in prefetcher.tables if layer in layers]
            return original(layers, *arguments)

        return run

    def asking(original: Callable) -> Callable:
        def grams(ctx: Any) -> Tensor:
            found = original(ctx)
            for layer in due:
                prefetcher.ask(layer, model.layers[layer].engram.rows(found, pad))
            return found

        return grams

    def entered(layer: int) -> Callable[[Callable], Callable]:
        def run(original: Callable, *arguments: Any) -> Any:
            prefetcher.clock.sleep(pace)
            return original(*arguments)

        return lambda original: lambda *a: prefetcher.timed("compute", f"layer {layer}", run, original, *a)

    with ExitStack() as stack:
        stack.enter_context(replaced(model, "run", running))
        stack.enter_context(replaced(model, "grams", asking))
        for layer, block in enumerate(model.layers):
            stack.enter_context(replaced(block, "forward", entered(layer)))
            if layer in prefetcher.tables:
                stack.enter_context(
                    replaced(block.engram, "read", lambda _, layer=layer: lambda rows: prefetcher.take(layer))
                )
        yield
