"""How slow Engram's store may be: a prompt of real tokens, tables that answer late, both lanes in a diary."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from tqdm import tqdm

from minidsv41.model import Model
from minidsv41.model.keys import SequenceKeys
from minidsv41.ops import Batch
from minidsv41.serve.prefetch import Prefetcher, SlowTable, Span, WallClock, prefetching


@dataclass(frozen=True, kw_only=True)
class PrefetchConfig:
    """Tokens of the prompt, and what the store needs for a request, in units of block 0's own time."""

    tokens: int = 1024
    latencies: tuple[float, ...] = (0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
    repeats: int = 7
    threads: int = 1


def measure(model: Model, tokens: Tensor, c: PrefetchConfig) -> dict:
    """Medians over `repeats` rounds, each with every latency once; spans are those of the run with the median block 0.

    All times are in milliseconds, spans from the start of block 0. Of each run: the first table's fetch, block 0, and
    what the network then still waited for that table.
    """
    torch.set_num_threads(c.threads)
    clock, ids = WallClock(), tokens[: c.tokens]
    warm = [length(prompted(model, ids, clock, 0.0), "layer 0") for _ in range(c.repeats)]
    block = median(warm)
    found: dict[float, list[Prefetcher]] = {latency: [] for latency in c.latencies}
    for _ in tqdm(range(c.repeats), desc="rounds", disable=None):
        for latency, runs in found.items():
            runs.append(prompted(model, ids, clock, latency * block))
    runs = [run for each in found.values() for run in each]
    blocks = [ms(median(length(r, f"layer {n}") for r in runs)) for n in range(model.config.num_hidden_layers)]
    layers = list(model.config.engram_layer_ids)
    return {"layers": layers, "blocks": blocks, "runs": [row(k * block, runs) for k, runs in found.items()]}


@torch.no_grad()
def prompted(model: Model, ids: Tensor, clock: WallClock, latency: float) -> Prefetcher:
    """The diary of one prompt whose rows take `latency` seconds a table."""
    tables = {n: model.layers[n].engram.embed.weight for n in model.config.engram_layer_ids}
    prefetcher = Prefetcher({n: SlowTable(table, clock, latency) for n, table in tables.items()}, clock)
    batch = Batch.equal(ids[None])
    with prefetching(model, prefetcher):
        model(batch, SequenceKeys(model.config, batch))
    return prefetcher


def length(run: Prefetcher, what: str) -> float:
    return sum(s.end - s.begin for s in run.spans if s.what == what)


def row(latency: float, runs: list[Prefetcher]) -> dict:
    """What is recorded of one latency. A store's first request is for the first layer that has a table."""
    typical = sorted(runs, key=lambda run: length(run, "layer 0"))[len(runs) // 2]
    zero = next(s.begin for s in typical.spans if s.what == "layer 0")
    spans = [Span(s.lane, s.what, ms(s.begin - zero), ms(s.end - zero)) for s in typical.spans]
    first = next(s.what for s in typical.spans if s.lane == "store")
    names = first, "layer 0", first.replace("rows", "wait")
    each = [dict(zip(("fetch", "block", "wait"), (ms(length(r, n)) for n in names), strict=True)) for r in runs]
    return {"latency": ms(latency), "stall": ms(median(run.stall for run in runs)), "spans": spans, "runs": each}


def ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def lines(results: dict) -> list[str]:
    """A line for each latency."""
    return [f"block 0 takes {results['blocks'][0]:.1f} ms"] + [
        f"a table in {run['latency']:7.1f} ms or more: the network waits {run['stall']:7.1f} ms"
        for run in results["runs"]
    ]
