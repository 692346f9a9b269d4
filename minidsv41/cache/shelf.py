"""Finished sequences whose window rows are kept in memory for a while, for the next turn to go on from."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from minidsv41.cache.state import Cache, State


@dataclass
class Counters:
    """added, taken again, and why the others left: too old, no room, or the same tokens came anew."""

    added: int = 0
    hits: int = 0
    misses: int = 0
    expired: int = 0
    evicted: int = 0
    replaced: int = 0


class Shelf:
    """Owns the states that are put on it, until they are taken, too old, or in the way.

    ttl: seconds that an unused state stays. budget: bytes in all; the one unused for longest goes first.
    clock: seconds; if it jumps back no time has passed, if it jumps ahead states leave early and must be replayed.
    """

    def __init__(self, cache: Cache, *, ttl: float, budget: int, clock: Callable[[], float] = monotonic) -> None:
        self.cache, self.ttl, self.budget, self.clock = cache, ttl, budget, clock
        self.counters = Counters()
        self.states: dict[bytes, tuple[float, State]] = {}  # tokens -> (age of the shelf, state), oldest first
        self._read, self._age = clock(), 0.0

    @property
    def age(self) -> float:
        """Seconds since the shelf was made, never falling."""
        now = self.clock()
        self._age += max(0.0, now - self._read)
        self._read = now
        return self._age

    @property
    def nbytes(self) -> int:
        return sum(self._size(state) for _, state in self.states.values())

    def _size(self, state: State) -> int:
        return sum(self.cache.nbytes(state, "allocated").values())

    def put(self, ids: Sequence[int], state: State) -> None:
        """Take over a state that holds the tokens ids."""
        assert len(ids) == state.length, f"{len(ids)} tokens, but the sequence holds {state.length}"
        self.expire()
        key = array("I", ids).tobytes()
        if key in self.states:
            self._drop(key)
            self.counters.replaced += 1
        self.states[key] = self.age, state
        self.counters.added += 1
        while self.nbytes > self.budget and self.evict():
            pass

    def evict(self) -> bool:
        """Release the state that was unused for longest -> whether there was one."""
        if not self.states:
            return False
        self._drop(next(iter(self.states)))
        self.counters.evicted += 1
        return True

    def take(self, ids: Sequence[int]) -> State | None:
        """The state of the longest sequence that ids goes on from, by a token at least. The caller owns it then."""
        self.expire()
        wanted = array("I", ids).tobytes()
        fitting = [key for key in self.states if len(key) < len(wanted) and wanted.startswith(key)]
        if not fitting:
            self.counters.misses += 1
            return None
        self.counters.hits += 1
        return self.states.pop(max(fitting, key=len))[1]

    def expire(self) -> None:
        """Release what has been here for longer than ttl. `put` and `take` do it too."""
        age = self.age
        for key in [key for key, (since, _) in self.states.items() if age - since > self.ttl]:
            self._drop(key)
            self.counters.expired += 1

    def clear(self) -> None:
        for key in list(self.states):
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self.cache.release(self.states.pop(key)[1])
