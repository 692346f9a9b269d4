"""Side by side: this model and a plain Transformer of as many active parameters, same harness, text and threads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from tqdm import tqdm

from minidsv41.config import ModelConfig
from minidsv41.ledger.params import active_decode_full
from minidsv41.train import machine
from minidsv41.train.data import Batches, corpus
from minidsv41.train.evaluate import validate
from minidsv41.train.loop import fresh
from minidsv41.train.objective import Backbone, Objective, Plain
from minidsv41.train.plain import PlainConfig, PlainTransformer
from minidsv41.train.stage import Stage

CONTENDERS = ("minidsv41", "plain")
VALIDATIONS = 8  # a run is interrupted so often, its clock stands still meanwhile; all but the last are estimates


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """One comparison. The rate follows its schedule in time, so that each contender gets a whole schedule."""

    preset: str = "toy"
    minutes: float = 4.0  # for each contender
    threads: int = 2
    seed: int = 0
    length: int = 256
    batch: int = 16
    lr: float = 6e-3
    warmup: float = 0.05


def active_parameters(config: ModelConfig) -> int:
    """Matrix parameters that one token meets, without embedding and head."""
    return int(active_decode_full(config).value) - config.vocab_size * config.hidden_size


def build(name: str, c: BenchConfig) -> Objective:
    """A contender with fresh weights."""
    if name == "minidsv41":
        return Backbone(fresh(c.preset, c.seed), replay=c.batch // 4, align=max(1, c.batch // 8), seed=c.seed)
    shape = ModelConfig.preset(c.preset)
    plain = PlainConfig.with_parameters(
        active_parameters(shape),
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_layers=shape.num_hidden_layers,
        num_heads=shape.num_attention_heads,
    )
    return Plain(PlainTransformer(plain, generator=torch.Generator().manual_seed(c.seed)))


def train(name: str, c: BenchConfig) -> dict:
    """Train one contender for `minutes`. Runs in a process of its own, so that its memory can be told."""
    torch.set_num_threads(c.threads)
    text = corpus()
    stage = Stage(name, build(name, c), lr=c.lr, warmup=c.warmup)
    batches = Batches(tokens=text.train.tokens, batch_size=c.batch, length=c.length, seed=c.seed)
    limit, spent, times, curve = c.minutes * 60, 0.0, [], []
    bar = tqdm(total=round(limit), desc=name, unit="s", disable=None)
    while spent < limit:
        start = time.perf_counter()
        stage.update(batches(len(times)), step=len(times), progress=spent / limit)
        times.append(time.perf_counter() - start)
        spent += times[-1]
        bar.update(round(min(spent, limit)) - bar.n)
        if spent >= limit * (len(curve) + 1) / VALIDATIONS or spent >= limit:
            some = None if spent >= limit else 1
            bits = validate(stage.objective.logits, text, length=c.length, batch=c.batch, batches=some)["total"]
            curve.append({"seconds": round(spent, 1), "step": len(times), "bits_per_byte": round(bits, 4)})
    return {
        "parameters": sum(p.numel() for _, p in stage.objective.parameters()),
        "tokens_per_second": round(c.batch * c.length / median(times), 1),
        "tokens_per_second_range": [round(c.batch * c.length / t, 1) for t in (max(times), min(times))],
        "steps": len(times),
        "curve": curve,
        "peak_memory_mb": round(machine.peak_memory_mb()),
    }


def compare(c: BenchConfig) -> Iterator[tuple[str, dict]]:
    """Both contenders, one after the other."""
    for name in CONTENDERS:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            yield name, process.submit(train, name, c).result()


def record(kind: str, c: BenchConfig, results: dict[str, dict]) -> dict:
    """A measurement with everything that it depends on."""
    return {"kind": kind, "settings": asdict(c), "machine": machine.describe(threads=c.threads), "results": results}


def write(content: dict, folder: Path) -> Path:
    """Write a record as JSON, named by its kind."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bench_{content['kind']}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path
