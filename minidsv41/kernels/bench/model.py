"""The whole model as it decodes: a prompt taken in, then steps at each length, and what the length adds to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from minidsv41 import ops
from minidsv41.cache import Cache, State
from minidsv41.cache.pool import PAGE
from minidsv41.cache.state import CacheFormat
from minidsv41.config import ConfigError, ModelConfig
from minidsv41.kernels.bench.breakdown import breakdown
from minidsv41.kernels.bench.clock import Clock, compiling, copy_speed
from minidsv41.kernels.bench.filling import copied, fill, random_model
from minidsv41.kernels.bench.step import Step, compare, line
from minidsv41.ops.twins import Choice
from minidsv41.serve.graph import DecodeGraph
from minidsv41.serve.prefill import Prefill

PARTS = ("verify", "no_pool", "float")
FLOAT_TOKENS = 1 << 22  # a float cache is measured up to this many tokens of all sequences: 32 x 128K


@dataclass(frozen=True, kw_only=True)
class ModelBench:
    """contexts: tokens of a sequence at the end of a verify step; batches: sequences in a step; chunk: of a prompt.

    parts: what is measured beside decoding: a verify step, a step without the pool, a step on a float cache.
    prefill_to: longer contexts are filled with random records, as are those whose prefill takes more than `patience`
    seconds. limit: seconds after which no new part begins. processes: that compile beforehand, on a GPU.
    """

    preset: str = "geometry"
    contexts: tuple[int, ...] = (4096, 32768, 131072, 1048576)
    batches: tuple[int, ...] = (1, 32)
    parts: tuple[str, ...] = PARTS
    chunk: int = 8192
    repeats: int = 20
    prefill_to: int = 1 << 20
    patience: float = 150.0
    limit: float = 480.0
    versions: Choice = "auto"
    device: str = "cuda"
    seed: int = 0
    threads: int = 1
    processes: int = 0

    def __post_init__(self) -> None:
        if wrong := [part for part in self.parts if part not in PARTS]:
            raise ConfigError(f"parts = {', '.join(wrong)}: allowed are {', '.join(PARTS)}")

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    def held(self, config: ModelConfig, context: int) -> int:
        """Tokens before a step: a verify step ends at the context or just before it, a decoded token closes a pair."""
        held = context - config.dspark_block_size - 1
        return held - (held % 2 == 0)

    def room(self, config: ModelConfig, form: CacheFormat, context: int, *, device: torch.device) -> Cache:
        """A cache for the sequences of the largest step at a context, and for the window rows of a chunk."""
        cache, count = Cache(config, dtype=self.dtype, device=device, cache_format=form), self.count(form, context)
        cache.entries.reserve(count * -(-context // PAGE))
        window = config.sliding_window // PAGE + 3
        cache.windows.reserve(count * window + self.chunk // PAGE)
        return cache

    def count(self, form: CacheFormat, context: int) -> int:
        """Sequences in the largest step at a context."""
        fits = [b for b in self.batches if form == "packed" or b * context <= FLOAT_TOKENS]
        return max(fits, default=0)

    def steps(self, config: ModelConfig, context: int, form: CacheFormat) -> Iterator[Step]:
        for batch in sorted(b for b in self.batches if b <= self.count(form, context)):
            yield Step(context, batch, cache=form)
            if "verify" in self.parts and form == "packed":
                yield Step(context, batch, rows=config.dspark_block_size + 1)
            if "no_pool" in self.parts and form == "packed":
                yield Step(context, batch, pool=False)

    def forms(self, context: int) -> tuple[CacheFormat, ...]:
        """Which caches there are at a context."""
        return ("packed", "float") if "float" in self.parts and self.count("float", context) else ("packed",)

    def warm(self, length: int) -> int:
        """Tokens of a prompt that warms up for one of `length`: two chunks, and a last one of the same size."""
        return min(length, 2 * self.chunk + length % self.chunk)


def measure(c: ModelBench, *, save: Callable[[dict], Any], say: Callable[[str], Any] = print) -> dict[str, Any]:
    """Prefill and steps at every context -> all results; `save` is given those so far after each part."""
    torch.set_num_threads(c.threads)
    run = Measurement(c, save, say)
    for context in c.contexts:
        if not run.late(f"{context} tokens"):
            run.at(context)
    return run.results


class Measurement:
    """One run of the benchmark: the model, and what was found so far."""

    def __init__(self, c: ModelBench, save: Callable[[dict], Any], say: Callable[[str], Any]) -> None:
        self.c, self.save, self.say = c, save, say
        self.began, self.clock, self.device = time.perf_counter(), Clock(c.device), torch.device(c.device)
        self.generator = torch.Generator(self.device).manual_seed(c.seed)
        self.config = ModelConfig.preset(c.preset)
        found = self.ahead() if c.processes and self.device.type == "cuda" and c.versions != "plain" else None
        self.model = random_model(self.config, device=self.device, dtype=c.dtype, seed=c.seed)
        self.speed = copy_speed(self.clock, self.device)
        self.results: dict[str, Any] = {
            "weight_bytes": sum(p.nbytes for p in self.model.parameters()),
            "copy_bytes_per_second": round(self.speed),
            "prefill": [],
            "steps": [],
        }
        if found:
            self.results["compiled_ahead"] = found

    def ahead(self) -> dict[str, Any]:
        """Compile what the run will start, in a third of its time at most; what is not done by then it does itself."""
        from minidsv41.kernels.bench import ahead, rehearsal

        pool, card = ahead.compilers(self.c.processes), torch.cuda.get_device_capability()
        launches = rehearsal.launches(self.c, card=card, say=self.say)
        seconds = self.c.limit / 3
        return ahead.compile_all(launches, capability=10 * card[0] + card[1], pool=pool, seconds=seconds, say=self.say)

    def late(self, what: str) -> bool:
        """Whether no time is left to begin something; then it is noted as left out."""
        seconds = time.perf_counter() - self.began
        if seconds > self.c.limit:
            self.results.setdefault("left_out", []).append(what)
            self.done(f"{what}: left out after {seconds:.0f} s")
        return seconds > self.c.limit

    def done(self, line: str) -> None:
        self.save(self.results)
        self.say(line)

    def cache(self, form: CacheFormat, context: int) -> Cache:
        return self.c.room(self.config, form, context, device=self.device)

    def at(self, context: int) -> None:
        """Everything at one context."""
        c, count, held = self.c, max(self.c.batches), self.c.held(self.config, context)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        cache = self.cache("packed", context)
        state = self.prefill(cache, held) if context <= c.prefill_to else None
        how = "copies of one prefilled sequence"
        if state is None:
            del cache  # before there is another
            cache, how = self.cache("packed", context), "random records"
            states = fill(cache, held, count, self.generator)
        else:
            states = [state, *(copied(state, cache, cache) for _ in range(count - 1))]
        for form in c.forms(context):
            if form == "float":
                values = self.cache(form, context)
                states = [copied(state, cache, values) for state in states[: c.count(form, context)]]
                cache, how = values, f"{how}, decoded"
            for step in c.steps(self.config, context, form):
                self.step(step, cache, states, how)

    @torch.no_grad()
    def prefill(self, cache: Cache, length: int) -> State | None:
        """Take in a random prompt, the decoder on its tail only; None where that takes too long."""
        c, state = self.c, cache.new()
        ids = torch.randint(self.config.vocab_size, (length,), device=self.device, generator=self.generator)
        warm = cache.new()  # kernels compile, untimed
        with ops.versions(c.versions):
            Prefill(self.model, cache, warm, ids[: c.warm(length)]).finish(c.chunk)
        cache.release(warm)
        work, row = Prefill(self.model, cache, state, ids), {"tokens": length, "chunk": c.chunk}
        self.clock.peak()
        began = self.clock.now()
        with ops.versions(c.versions) as seen, compiling() as compiled:
            while (hidden := work.run(c.chunk)) is None:
                if (seconds := self.clock.now() - began) > c.patience:
                    break
        seconds = self.clock.now() - began
        row |= {"seconds": seconds, "tokens_per_second": (length - work.left) / seconds}
        row |= {"compiled_during": len(compiled)}
        row |= {"peak_bytes": self.clock.peak(), "versions": seen.summary(), "bytes_per_token": global_bytes(cache)}
        if hidden is None:
            row["stopped_after"] = length - work.left
        else:
            row["finite"] = bool(hidden.isfinite().all())
        self.results["prefill"].append(row)
        text = f"prefill {length:9,} tokens {seconds:8.2f} s, {row['bytes_per_token']:.1f} B/token of global cache"
        self.done(text + (f"; false, for within it compiled {', '.join(compiled)}" if compiled else ""))
        return state if hidden is not None else None

    def step(self, step: Step, cache: Cache, states: list[State], how: str) -> None:
        """Time one kind of step, in a graph where there is one; a failure is noted, and the others go on."""
        row: dict[str, Any] = asdict(step) | {"filled": how}
        if self.late(f"step {row}"):
            return
        scanned = step.scanned(self.config, cache.pools["index", self.config.kv_source_layer_ids[0]].row_bytes)
        self.clock.peak()
        try:
            with step.restricted(), ops.versions(self.c.versions) as seen:
                row |= self.timed(cache, states[: step.batch], step)
        except RuntimeError as error:  # out of memory too
            row["failed"] = f"{type(error).__name__}: {error}"[:300]
        row |= {"peak_bytes": self.clock.peak(), "versions": seen.summary(), "scanned_bytes": scanned}
        self.results["steps"].append(row)
        compare(self.results["steps"], self.speed)
        self.done(line(row))

    def timed(self, cache: Cache, states: list[State], step: Step) -> dict[str, Any]:
        found: dict[str, Any] = {}
        try:
            graph = DecodeGraph(self.model, cache, states, rows=step.rows)
        except RuntimeError as error:  # something in the step cannot be captured: it runs launch by launch
            found["not_captured"] = str(error)[:300]
            torch.cuda.synchronize()
            graph = DecodeGraph(self.model, cache, states, rows=step.rows, capture=False)
        shape = (len(states) * step.rows,)
        tokens = torch.randint(self.config.vocab_size, shape, device=self.device, generator=self.generator)
        logits = graph.replay(tokens)
        for _ in range(3 if graph.captured else 0):
            graph.replay()
        us = sorted(1e6 * s for s in self.clock.times(graph.replay, self.c.repeats))
        spread = {"median": median(us), "least": us[0], "most": us[-1]}
        if graph.captured and step.decodes:
            found["kernels"] = breakdown(graph.replay)
        return found | {"captured": graph.captured, "us": spread, "finite": bool(logits.isfinite().all())}


def global_bytes(cache: Cache) -> float:
    """Bytes on the device that the cache keeps for good of one token, from the tensors themselves."""
    pools = [pool for (kind, _), pool in cache.pools.items() if kind != "window"]
    held = sum(t.untyped_storage().nbytes() for p in pools for t in (p.data, p.scales) if t is not None)
    return held / (PAGE * (cache.entries.pages + 1))
