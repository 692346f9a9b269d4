"""Hand-overs with faults in the stream: refused or lost, never believed; the receiver and its other sequence go on."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch

from minidsv41.cache import Cache, State
from minidsv41.serve.handoff import receive, send
from minidsv41.serve.link import PipeEnd, pipe
from minidsv41.serve.manifest import HandoffError
from minidsv41.serve.parts import parts
from tests.handoff_peer import empty, start
from tests.test_handoff import MINE, MODEL, Edited, W, both, bystander, same_bytes
from tests.tiny import prompt

HAND_OVERS = 4
LENGTHS = (1, 2, W - 1, W, W + 1, 2 * W, 63, 64, 65, 71, 128, 130)
FAULTS = ("flip", "truncate", "lengthen", "drop", "repeat", "reorder", "insert", "dead peer")


class Fault:
    """What somebody in between does to one piece of the stream."""

    def __init__(self, draw: random.Random, kind: str, piece: int, link: PipeEnd) -> None:
        self.draw, self.kind, self.piece, self.link, self.held = draw, kind, piece, link, None

    def __call__(self, i: int, data: torch.Tensor) -> list[torch.Tensor]:
        if self.held is not None:
            held, self.held = self.held, None
            return [data, held]
        if i != self.piece:
            return [data]
        if self.kind == "dead peer":
            self.link.close()
            return [data[: self.draw.randrange(len(data))]]
        if self.kind == "reorder":
            self.held = data
            return []
        noise = torch.randint(0, 256, (self.draw.randint(1, 40),), dtype=torch.uint8)
        if self.kind == "flip":
            at, data = self.draw.randrange(8 * len(data)), data.clone()
            data[at // 8] ^= 1 << at % 8
        if self.kind == "lengthen":
            data = torch.cat([data, noise])
        cut = data[: self.draw.randrange(len(data))]
        return {"truncate": [cut], "drop": [], "repeat": [data, data], "insert": [noise, data]}.get(self.kind, [data])


def play(seed: int, folder: Path) -> dict[str, int]:
    draw, seen, packed = random.Random(seed), Counter(), True
    torch.manual_seed(seed)
    there = empty(MODEL, packed=packed)
    with bystander(there):
        for _ in range(HAND_OVERS):
            length = draw.choice(LENGTHS)
            cache, state, _ = start(MODEL, length, packed=packed)
            order = prompt(length) if draw.random() < 0.3 else None
            kind = draw.choice(FAULTS)
            outcome = faulty(draw, kind, cache, state, there, order)
            seen.update([kind, outcome])
            a, b = pipe(timeout=60)
            got = handed(a, b, cache, state, there, None)[0]  # a good one afterwards
            same_bytes(cache, state, there, got.state)
            there.release(got.state)
    return dict(seen)


def handed(a, b: PipeEnd, cache: Cache, state: State, there: Cache, order: torch.Tensor | None) -> tuple:
    return both(lambda: send(a, cache, state, model=MINE, token=5, replay=order), lambda: receive(b, there, model=MINE))


def faulty(draw: random.Random, kind: str, cache: Cache, state: State, there: Cache, order) -> str:
    """One hand-over with a fault -> how it ended."""
    pieces = 2 + sum(p.size > 0 for p in parts(cache, state, draft=True, replay=order))
    a, b = pipe(timeout=1)
    fault = Fault(draw, kind, draw.randrange(pieces), a)
    got, heard = handed(Edited(a, fault), b, cache, state, there, order)
    if isinstance(got, HandoffError):
        return type(got).__name__
    # The pieces that were exchanged may be equal, and what is too much may come behind the end.
    assert kind in ("reorder", "lengthen", "repeat"), f"{kind}: not noticed"
    if order is None:
        same_bytes(cache, state, there, got.state)
    else:
        assert torch.equal(got.replay, order[-len(got.replay) :])
    there.release(got.state)
    return "nothing lost"
