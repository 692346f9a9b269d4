"""What drafting and verifying cost by load: seconds of a step for each number of requests and of drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import psutil
import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.model import Model
from minidsv41.serve.prefill import prefill
from minidsv41.serve.scratch import ScratchKeys
from minidsv41.serve.speculative import Sampling, propose, verify


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """loads: requests in a step; length: tokens of each before it."""

    loads: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    length: int = 64
    repeats: int = 5
    threads: int = 1


@torch.no_grad()
def measure(
    model: Model, text: Tensor, c: VerifyConfig, *, clock: Callable[[], float] = time.process_time
) -> dict[str, object]:
    """Rows of load, seconds to draft, and seconds to verify 0, 1, … block drafts of each request; text [n].

    Medians over rounds, each of which visits every cell once. The clock counts this process alone, so that on one
    thread others' work weighs little; `busy` is how much of it there was (the system's load over the cores).
    """
    torch.set_num_threads(c.threads)
    cache = Cache(model.config, dtype=model.dtype)
    states = [cache.new() for _ in range(max(c.loads))]
    starts = torch.linspace(0, len(text) - c.length - 1, len(states)).long().tolist()
    for state, start in zip(states, starts, strict=True):
        prefill(model, cache, state, text[start : start + c.length])
    anchors = text[torch.tensor(starts) + c.length]
    lengths = range(model.config.dspark_block_size + 1)

    def timed(load: int) -> Iterator[float]:
        scratch, sampling = ScratchKeys(cache, states[:load]), [Sampling()] * load
        began = clock()
        tokens = propose(model, scratch, anchors[:load], sampling).tokens
        yield clock() - began
        for drafts in lengths:
            rows = [torch.cat([a[None], t[:drafts]]) for a, t in zip(anchors, tokens, strict=False)]
            began = clock()
            verify(model, ScratchKeys(cache, states[:load]), rows)
            yield clock() - began

    list(timed(max(c.loads)))  # warm
    rounds = [{load: list(timed(load)) for load in c.loads} for _ in range(c.repeats)]
    rows = []
    for load in c.loads:
        draft, *checked = (median(times) for times in zip(*(found[load] for found in rounds), strict=True))
        rows.append({"requests": load, "draft": draft, "verify": checked})
    return {"busy": round(psutil.getloadavg()[0] / psutil.cpu_count(), 1), "seconds": rows}


def lines(results: dict) -> Iterator[str]:
    """The results of `measure`, to be read."""
    for row in results["seconds"]:
        checked = " ".join(f"{1000 * s:6.1f}" for s in row["verify"])
        yield f"{row['requests']:4} requests: draft {1000 * row['draft']:6.1f} ms, verify 0, 1, … drafts {checked} ms"
