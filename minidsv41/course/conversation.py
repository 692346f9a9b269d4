"""A conversation's bytes over time: what its states hold by kind, and what of it dies when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from minidsv41.cache import Cache, State
from minidsv41.serve.parts import parts

MEMORY = ("window", "draft window", "entry", "index")
DISK = ("entry on disk", "index on disk")
KINDS = (*MEMORY, *DISK, "open pair")
MORNING = 11 * 3600


@dataclass
class Clock:
    """Seconds that pass only when they are told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class Sample:
    """Bytes of one moment by kind; open pairs count while they hold a token, which is at odd lengths."""

    seconds: float
    turn: str
    held: dict[str, int]


@dataclass(frozen=True)
class Death:
    """A kind of which nothing is left from sample `at` on, and the bytes that it had before."""

    kind: str
    at: int
    nbytes: int


@dataclass
class Diary:
    """Samples in the order of time, of sequences that live in `cache` or in caches like it."""

    cache: Cache
    samples: list[Sample] = field(default_factory=list)

    def note(
        self, seconds: float, turn: str = "", *, pages: int = 0, states: Iterable[tuple[Cache, State]] = ()
    ) -> None:
        """Record what sequences hold now, and so many pages on disk; turn is "" while nobody asks."""
        held = dict.fromkeys(KINDS, 0)
        for cache, state in states:
            sizes = cache.nbytes(state)
            for kind in MEMORY:
                held[kind] += sizes[kind]
            held["open pair"] += sizes["open pair"] * (state.length % 2)
        for (kind, _), pool in self.cache.pools.items():
            if kind != "window":
                held[f"{kind} on disk"] += pages * pool.page * pool.row_bytes
        self.samples.append(Sample(seconds, turn, held))


def sections(cache: Cache, state: State) -> dict[str, int]:
    """Bytes by kind of what a hand-over of this sequence sends."""
    sizes: dict[str, int] = {}
    for part in parts(cache, state, draft=True):
        kind = part.name.rstrip(" 0123456789")
        if kind == "window" and int(part.name.removeprefix(kind)) >= cache.config.num_hidden_layers:
            kind = "draft window"
        sizes[kind] = sizes.get(kind, 0) + part.size
    return sizes


def deaths(samples: Sequence[Sample]) -> list[Death]:
    """Where a kind falls to nothing. Open pairs are left out: they end with every second token."""
    found = []
    for at, (before, after) in enumerate(zip(samples, samples[1:], strict=False), start=1):
        for kind in (*MEMORY, *DISK):
            if before.held[kind] and not after.held[kind]:
                found.append(Death(kind, at, before.held[kind]))
    return found


def span(seconds: float) -> str:
    """A duration in the largest units that fit: "40 s", "10 min", "2 h 48 min", "3 days"."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours / 24:.0f} days"
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def hour(seconds: float) -> str:
    """The time of day of a conversation that begins at eleven: "11:01", "+1 day 15:06"."""
    days, rest = divmod(int(MORNING + seconds), 86400)
    time = f"{rest // 3600:02}:{rest // 60 % 60:02}"
    return f"+{days} day{'s' * (days > 1)} {time}" if days else time
