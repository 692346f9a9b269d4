"""GPU time of one call: many calls in one CUDA graph, over slots in turn, replayed between two events."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """samples: µs of one call, each a mean over `calls` calls; slots: how many different inputs these calls had.

    method: "graph", or "events" where the calls were started one by one from Python and the GPU may have waited;
    why: why there was no graph.
    """

    samples: list[float]
    calls: int
    slots: int
    method: str = "graph"
    why: str = ""

    @property
    def median(self) -> float:
        return median(self.samples)


class Timer(Protocol):
    """Times a call: `calls` does the same on the inputs of each slot; `capture` says whether a graph can hold it."""

    def __call__(self, calls: Sequence[Call], *, capture: bool = True) -> Timing: ...


@dataclass(frozen=True)
class GraphTimer:
    """The timer of a GPU. Compilation and warm-up are over before it looks at a clock.

    A graph is filled until a replay takes `span_us`, or filling it has taken about `patience_us` of the processor.
    The outputs of as many calls as there are slots are kept, so that writes go to fresh places as well.
    """

    span_us: float = 2000.0
    patience_us: float = 100_000.0
    repeats: int = 15
    budget_us: float = 400_000.0  # for all replays together; three are made in any case

    def __call__(self, calls: Sequence[Call], *, capture: bool = True) -> Timing:
        rough = self.warm(calls[0])
        used = list(calls[: max(1, int(self.patience_us / 2 / rough))])
        for call in used[1:]:
            call()
        if not capture:
            return self.by_events(used)
        try:
            return self.by_graph(used, rough)
        except Exception as error:  # what cannot be captured fails in many ways; the events below tell a dead GPU apart
            torch.cuda.synchronize()
            return self.by_events(used, why=first_line(error))

    def warm(self, call: Call) -> float:
        """Call it until nothing is left to compile -> µs from one start to the end of its work."""
        call()
        call()
        start, end = events()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return max(1.0, 1000 * start.elapsed_time(end))

    def by_graph(self, calls: Sequence[Call], rough: float) -> Timing:
        count = len(calls)
        graph = captured(calls, count)
        (took,) = spans(graph.replay, 1)
        more = min(math.ceil(self.span_us / took), max(1, int(self.patience_us / (rough * count))))
        if more > 1:
            count, took = count * more, took * more
            graph = captured(calls, count)
        samples = spans(graph.replay, self.fitting(took))
        return Timing([us / count for us in samples], count, len(calls))

    def by_events(self, calls: Sequence[Call], why: str = "") -> Timing:
        def round_() -> None:
            for call in calls:
                call()

        (took,) = spans(round_, 1)
        samples = spans(round_, self.fitting(took))
        return Timing([us / len(calls) for us in samples], len(calls), len(calls), "events", why)

    def fitting(self, took: float) -> int:
        """How many repeats of `took` µs the budget allows."""
        return max(3, min(self.repeats, int(self.budget_us / took)))


def events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def captured(calls: Sequence[Call], count: int) -> torch.cuda.CUDAGraph:
    """`count` calls in a graph, slot after slot, on the current stream, which must not be the default one."""
    graph, kept = torch.cuda.CUDAGraph(), deque(maxlen=len(calls))
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        for i in range(count):
            kept.append(calls[i % len(calls)]())
    return graph


def spans(run: Call, repeats: int) -> list[float]:
    """µs on the GPU of each of `repeats` runs, after one that does not count."""
    run()
    marks = [events() for _ in range(repeats)]
    for start, end in marks:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [max(1e-3, 1000 * start.elapsed_time(end)) for start, end in marks]


def first_line(error: BaseException) -> str:
    """An error in at most 200 characters."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}"[:200] if text else type(error).__name__
