"""What each way to keep, lose and find a cache costs in time, on real text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.cache.pages import identity, persist, restore
from minidsv41.cache.replay import reconstruct
from minidsv41.cache.store import Store
from minidsv41.model import Model
from minidsv41.serve.engine import Engine
from minidsv41.serve.prefill import prefill


@dataclass(frozen=True, kw_only=True)
class LifecycleConfig:
    """prefix: tokens before a turn; turn: new ones, and two windows of them as well; lengths: of cold prompts;
    requests: served at once, `new` tokens each, behind prompts of `new` tokens."""

    prefix: int = 10_000
    turn: int = 50
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    requests: int = 8
    new: int = 64
    repeats: int = 5
    threads: int = 2


def measured(work: Callable[[], object], repeats: int, prepare: Callable[[], object] = lambda: None) -> dict:
    """Seconds of `work`, median and range; each time after `prepare`, which is not counted."""
    times = []
    for _ in range(repeats):
        prepare()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return {"seconds": median(times), "range": [min(times), max(times)]}


def measure(model: Model, text: Tensor, c: LifecycleConfig) -> dict:
    """All sections; text [n], n >= what the config asks for."""
    torch.set_num_threads(c.threads)
    cache = Cache(model.config, dtype=model.dtype, cache_format="packed" if model.config.qat else "float")
    state = cache.new()
    prefill(model, cache, state, text[: c.prefix])  # its entries are those of a cold run, whatever the cut
    return {
        "turn": [turn(model, cache, state, text, n, c) for n in (c.turn, 2 * model.config.sliding_window)],
        "hit": hit(model, cache, state, text, c),
        "cold": [cold(model, cache, text[:n], c) for n in c.lengths],
        "decode": [serve(model, text, n, c) for n in (1, c.requests)],
    }


def turn(model: Model, cache: Cache, state: State, text: Tensor, new: int, c: LifecycleConfig) -> dict:
    """`new` tokens behind the prefix, whose windows are there, or lost and made anew in one of two ways."""
    ids = text[: c.prefix + new]

    def lose() -> None:
        cache.truncate(state, c.prefix)

    def rebuild() -> None:
        reconstruct(model, cache, state, ids)

    def go_on() -> None:
        prefill(model, cache, state, ids)

    def keep() -> None:
        lose()
        rebuild()

    def exact() -> None:
        rebuild()
        go_on()

    ways = {"no replay": (go_on, keep), "bounded replay": (go_on, lose), "exact replay": (exact, lose)}
    found = {name: measured(work, c.repeats, prepare) for name, (work, prepare) in ways.items()}
    lose()
    return {"prefix": c.prefix, "new": new, "ways": found}


def hit(model: Model, cache: Cache, state: State, text: Tensor, c: LifecycleConfig) -> dict:
    """Time to the first logits of prefix and turn, cold and from a store on disk; time to store the prefix."""
    ids = text[: c.prefix + c.turn]

    def run(start: Callable[[], State]) -> None:
        new = start()
        prefill(model, cache, new, ids)
        cache.release(new)

    with TemporaryDirectory() as folder, Store(folder, identity(model, cache)) as store:
        began = time.perf_counter()
        pages = persist(store, cache, state, text[: c.prefix].tolist(), replayed=False)
        stored = time.perf_counter() - began
        found = measured(lambda: run(lambda: restore(store, cache, ids.tolist())[0]), c.repeats)
        nbytes = store.nbytes
    return {
        "tokens": len(ids),
        "cold": measured(lambda: run(cache.new), c.repeats),
        "store": found,
        "persist": {"seconds": stored, "pages": pages, "file_bytes": nbytes},
    }


def cold(model: Model, cache: Cache, ids: Tensor, c: LifecycleConfig) -> dict:
    """A prompt without decoder replay and with both cuts."""

    def run(cut: str | None) -> None:
        state = cache.new()
        prefill(model, cache, state, ids, cut=cut)
        cache.release(state)

    ways = {cut or "none": measured(lambda cut=cut: run(cut), c.repeats) for cut in (None, "late", "report")}
    speedup = {cut: ways["none"]["seconds"] / ways[cut]["seconds"] for cut in ("late", "report")}
    return {"tokens": len(ids), "cut": ways, "speedup": speedup}


def serve(model: Model, text: Tensor, requests: int, c: LifecycleConfig) -> dict:
    """Greedy requests at once, plain and drafted: tokens a second in all, prompts left out."""
    found = {"requests": requests}
    for name, drafted in (("plain", False), ("speculative", True)):
        speeds = [speed(model, text, requests, c, drafted) for _ in range(c.repeats)]
        found[name] = {"tokens_per_second": median(speeds), "range": [min(speeds), max(speeds)]}
    return found


def speed(model: Model, text: Tensor, requests: int, c: LifecycleConfig, drafted: bool) -> float:
    cache = Cache(model.config, dtype=model.dtype, cache_format="packed" if model.config.qat else "float")
    settings = dict(max_requests=requests, token_budget=requests * c.new + 1024, stop=frozenset())
    with Engine(model, cache=cache, speculative=drafted, **settings) as engine:
        for i in range(requests):
            engine.submit(text[i * c.new : (i + 1) * c.new], max_new=c.new)
        engine.step()  # all prompts
        first, began = engine.counters.new_tokens, time.perf_counter()
        engine.run()
        return (engine.counters.new_tokens - first) / (time.perf_counter() - began)


def lines(results: dict) -> Iterator[str]:
    """The results of `measure`, to be read."""

    def seconds(row: dict) -> str:
        return f"{row['seconds']:8.3f} s ({row['range'][0]:.3f} to {row['range'][1]:.3f})"

    for row in results["turn"]:
        for name, way in row["ways"].items():
            yield f"{row['new']:6} tokens after {row['prefix']:6}, {name:14} {seconds(way)}"
    for name in ("cold", "store"):
        yield f"{results['hit']['tokens']:6} tokens, prefix from {name:20} {seconds(results['hit'][name])}"
    for row in results["cold"]:
        for cut, way in row["cut"].items():
            yield f"{row['tokens']:6} tokens cold, cut {cut:19} {seconds(way)}"
    for row in results["decode"]:
        plain, drafted = (row[name]["tokens_per_second"] for name in ("plain", "speculative"))
        yield f"{row['requests']:6} requests: {plain:.0f} plain, {drafted:.0f} speculative tokens/s"
