"""The other process of a hand-over that is tested or measured.

python -m tests.handoff_peer ROLE PORT JOBS [DEVICE], JOBS as JSON
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch

from minidsv41.cache import Cache, State
from minidsv41.cache.pages import fingerprint
from minidsv41.config import ModelConfig
from minidsv41.serve.generate import step
from minidsv41.serve.handoff import receive, send
from minidsv41.serve.link import GroupLink, Link, LinkError
from minidsv41.serve.manifest import HandoffError
from minidsv41.serve.parts import replay_tokens, reserve
from minidsv41.serve.prefill import prefill
from tests.tiny import prompt, tiny

SECONDS = 60.0


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


class Flipping:
    """A link that flips the first bit of one piece that is sent."""

    def __init__(self, link: Link, piece: int) -> None:
        self.link, self.left = link, piece

    def send(self, data: torch.Tensor) -> None:
        if self.left == 0:
            data = data.clone()
            data[0] ^= 1
        self.left -= 1
        self.link.send(data)

    def receive(self, size: int) -> torch.Tensor:
        return self.link.receive(size)


def empty(model, *, packed: bool) -> Cache:
    return Cache(model.config, dtype=model.dtype, device=model.device, cache_format="packed" if packed else "float")


def released(length: int, device: str) -> tuple[Cache, State, torch.Tensor]:
    """A sequence of the released model's cache, random bytes in place of what a prompt leaves, and ids for an order."""
    cache = Cache(ModelConfig(), cache_format="packed", device=device)
    state, generator = cache.new(), torch.Generator(device).manual_seed(length)
    state.length = length
    reserve(cache, state, windows=True)
    for pool in cache.pools.values():
        for column in (pool.data, pool.scales):
            column.random_(0, 256, generator=generator)
    return cache, state, torch.arange(replay_tokens(cache, length))


def start(model, length: int, *, packed: bool) -> tuple[Cache, State, torch.Tensor]:
    """A prompt of `length` tokens in a cache, and the logits after it."""
    cache = empty(model, packed=packed)
    state = cache.new()
    return cache, state, prefill(model, cache, state, prompt(length).to(model.device))


@torch.no_grad()
def go_on(model, cache: Cache, state: State, token: int, steps: int = 5) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens from `token` on, and the logits [steps, V] that chose them."""
    tokens, logits = [token], []
    for _ in range(steps):
        logits.append(model.logits(step(model, cache, state, torch.tensor(tokens[-1:], device=model.device)).hidden)[0])
        tokens.append(int(logits[-1].argmax()))
    return tokens, torch.stack(logits)


def hand_over(link: Link, model, job: dict) -> None:
    """Send a sequence. A refusal that begins as the job says is no error."""
    if "released" in job:
        cache, state, ids = released(job["released"], model.device)
        name, token = "random bytes", 0
        link.receive(1)  # whoever measures is ready
    else:
        cache, state, logits = start(model, job["length"], packed=job["packed"])
        ids, name, token = prompt(job["length"]), fingerprint(model), int(logits.argmax())
    through = Dying(link, job["dies"]) if "dies" in job else Flipping(link, job["flips"]) if "flips" in job else link
    how = {"model": name, "token": token, "replay": ids if job.get("replay") else None} | job.get("options", {})
    try:
        send(through, cache, state, **how)
    except HandoffError as error:
        if isinstance(error, LinkError) or "refused" not in job or job["refused"] not in str(error):
            raise


def prefiller(link: GroupLink, model, jobs: list[dict]) -> None:
    for job in jobs:
        if "announce" in job:  # a frame of more bytes than are due, which never come
            said = torch.tensor([job["announce"]]).view(torch.uint8).to(model.device)
            torch.distributed.isend(said, 0).wait()
        elif "silent" in job:
            time.sleep(job["silent"])
        elif "raw" in job:  # bytes alone, from device to device
            data = torch.zeros(job["raw"], dtype=torch.uint8, device=model.device)
            for _ in range(job["times"]):
                link.receive(1)
                for work in [torch.distributed.isend(data, 0) for _ in range(job["burst"])]:
                    work.wait(link.timeout)
        else:
            hand_over(link, model, job)


def decoder(link: GroupLink, model, jobs: list[dict]) -> None:
    for job in jobs:
        receive(Dying(link, job["dies"]), empty(model, packed=job["packed"]), model=fingerprint(model))


if __name__ == "__main__":
    role, port, jobs, device = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), *(sys.argv[4:] or ["cpu"])
    link = GroupLink.join("127.0.0.1", port, timeout=SECONDS, device=device)
    model = tiny().to(device)
    link.connect()
    {"prefiller": prefiller, "decoder": decoder}[role](link, model, jobs)
    link.close()
