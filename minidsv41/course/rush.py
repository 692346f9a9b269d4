"""An afternoon of a full shelf: agents come back within seconds, people within minutes or never."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from random import Random

from minidsv41.cache import Cache
from minidsv41.cache.shelf import Shelf
from minidsv41.config import ModelConfig

Waiting = Sequence[tuple[str, float]]  # (who, seconds idle), the longest idle first
Victim = Callable[[Waiting], int]

KINDS = {  # share of conversations, mean turns, median seconds of a pause, its spread (of the logarithm)
    "agent": (0.85, 4, 4.0, 0.6),
    "person": (0.15, 8, 150.0, 0.8),
}


@dataclass(frozen=True)
class Turn:
    """A turn of conversation `who` ends at `seconds`; the last one is followed by nothing."""

    seconds: float
    conversation: int
    who: str
    last: bool


def afternoon(*, conversations: int = 600, seconds: float = 4 * 3600, seed: int = 0) -> list[Turn]:
    """All turns in the order of time."""
    draw, turns = Random(seed), []
    for conversation in range(conversations):
        who = "agent" if draw.random() < KINDS["agent"][0] else "person"
        _, mean, median, spread = KINDS[who]
        at, count = draw.uniform(0, seconds), 1 + int(draw.expovariate(1 / mean))
        for left in reversed(range(count)):
            heapq.heappush(turns, (at, conversation, who, left == 0))
            at += median * exp(draw.gauss(0, spread))
    return [Turn(*heapq.heappop(turns)) for _ in range(len(turns))]


def share_found(victim: Victim, turns: Sequence[Turn], *, room: int) -> float:
    """Percent of later turns whose windows are still there, if a shelf of `room` conversations gives up `victim`."""
    shelf: dict[int, tuple[str, float]] = {}
    later = found = 0
    seen = set()
    for turn in turns:
        if turn.conversation in seen:
            later += 1
            found += shelf.pop(turn.conversation, None) is not None
        seen.add(turn.conversation)
        if len(shelf) == room:
            waiting = [(who, turn.seconds - since) for who, since in shelf.values()]
            at = victim(waiting)
            if not 0 <= at < room:
                raise IndexError(f"victim {at}: allowed are 0 to {room - 1}")
            del shelf[list(shelf)[at]]
        shelf[turn.conversation] = turn.who, turn.seconds
    return 100 * found / later


def package_share(turns: Sequence[Turn], *, room: int) -> float:
    """The same for the package's own shelf, which gives up whoever is idle for longest."""
    cache, now = Cache(ModelConfig.preset("toy"), cache_format="packed"), 0.0
    size = sum(cache.nbytes(cache.new(), "allocated").values())
    shelf = Shelf(cache, ttl=float("inf"), budget=room * size, clock=lambda: now)
    seen: dict[int, int] = {}
    for turn in turns:
        now = turn.seconds
        ids = [turn.conversation] * (seen.get(turn.conversation, 0) + 1)
        if len(ids) > 1:
            shelf.take(ids)
        seen[turn.conversation] = len(ids)
        state = cache.new()
        state.length = len(ids)
        shelf.put(ids, state)
    return 100 * shelf.counters.hits / (shelf.counters.hits + shelf.counters.misses)
