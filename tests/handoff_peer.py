"""The other process of the hand-over tests: `python -m tests.handoff_peer ROLE PORT JOBS`, JOBS as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch

from minidsv41.cache import Cache, State
from minidsv41.cache.pages import fingerprint
from minidsv41.serve.generate import step
from minidsv41.serve.handoff import receive, send
from minidsv41.serve.link import GroupLink, Link
from minidsv41.serve.prefill import prefill
from tests.tiny import prompt, tiny

SECONDS = 20.0


class Dying:
    """A link whose process is killed when piece number `last` is about to pass, in either direction."""

    def __init__(self, link: Link, last: int) -> None:
        self.link, self.left = link, last

    def send(self, data: torch.Tensor) -> None:
        self.count()
        self.link.send(data)

    def receive(self, size: int) -> torch.Tensor:
        self.count()
        return self.link.receive(size)

    def count(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def start(model, length: int, *, packed: bool) -> tuple[Cache, State, torch.Tensor]:
    """A prompt of `length` tokens in a cache, and the logits after it."""
    cache = Cache(model.config, dtype=model.dtype, cache_format="packed" if packed else "float")
    state = cache.new()
    return cache, state, prefill(model, cache, state, prompt(length))


@torch.no_grad()
def go_on(model, cache: Cache, state: State, token: int, steps: int = 5) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens from `token` on, and the logits [steps, V] that chose them."""
    tokens, logits = [token], []
    for _ in range(steps):
        logits.append(model.logits(step(model, cache, state, torch.tensor(tokens[-1:])).hidden)[0])
        tokens.append(int(logits[-1].argmax()))
    return tokens, torch.stack(logits)


def prefiller(link: GroupLink, jobs: list[dict]) -> None:
    model = tiny()
    for job in jobs:
        if "announce" in job:  # a frame of more bytes than are due, which never come
            torch.distributed.send(torch.tensor([job["announce"]]).view(torch.uint8), 0)
        elif "silent" in job:
            time.sleep(job["silent"])
        else:
            cache, state, logits = start(model, job["length"], packed=job["packed"])
            through = Dying(link, job["dies"]) if "dies" in job else link
            order = prompt(job["length"]) if job.get("replay") else None
            send(through, cache, state, model=fingerprint(model), token=int(logits.argmax()), replay=order)


def decoder(link: GroupLink, jobs: list[dict]) -> None:
    model = tiny()
    for job in jobs:
        cache = Cache(model.config, dtype=model.dtype, cache_format="packed" if job["packed"] else "float")
        receive(Dying(link, job["dies"]), cache, model=fingerprint(model))


if __name__ == "__main__":
    role, port, jobs = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    link = GroupLink.join("127.0.0.1", port, timeout=SECONDS)
    link.connect()
    {"prefiller": prefiller, "decoder": decoder}[role](link, jobs)
    link.close()
