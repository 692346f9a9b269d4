"""Training speed and bits per byte against time, beside the plain Transformer: same harness, text and threads."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch
from tqdm import tqdm

from minidsv41.train import machine
from minidsv41.train.bench import contender
from minidsv41.train.data import Batches, corpus
from minidsv41.train.evaluate import validate
from minidsv41.train.objective import Backbone, Objective, Plain
from minidsv41.train.stage import Stage

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


def objective(name: str, c: BenchConfig) -> Objective:
    model = contender(name, c.preset, c.seed)
    if name == "plain":
        return Plain(model)
    part = c.batch // c.threads
    return Backbone(model, replay=-(-part // 4), align=-(-part // 8), seed=c.seed)


def train(name: str, c: BenchConfig) -> dict:
    """Train one contender for `minutes`."""
    torch.set_num_threads(c.threads)
    text = corpus()
    stage = Stage(name, objective(name, c), lr=c.lr, warmup=c.warmup, threads=c.threads)
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
