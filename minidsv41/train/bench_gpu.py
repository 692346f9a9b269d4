"""Training on a GPU with the kernels, on plain operations, and with these compiled: speed, and the same losses?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import mean, median

import torch

from minidsv41 import ops
from minidsv41.ops import Versions
from minidsv41.replaced import replaced
from minidsv41.train.bench_absorption import waited
from minidsv41.train.data import Batches, Corpus
from minidsv41.train.loop import DTYPES, fresh
from minidsv41.train.objective import Backbone
from minidsv41.train.stage import Stage

CONTENDERS = ("kernels", "plain", "compile")
LAST = 10  # steps whose mean is the final loss


@dataclass(frozen=True, kw_only=True)
class TrainGpuConfig:
    """The same steps for every contender and seed: equal weights at the start, equal batches.

    warm: steps that are not timed. minutes: no run begins that would not be done by then.
    """

    preset: str = "small"
    contenders: tuple[str, ...] = CONTENDERS
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 80
    warm: int = 10
    length: int = 512
    batch: int = 32
    lr: float = 4.5e-3
    warmup: float = 0.05
    minutes: float = 4.0
    device: str = "cuda"
    dtype: str = "bfloat16"
    threads: int = 1


@contextmanager
def chosen(contender: str) -> Iterator[Versions]:
    """Who computes the operations that have a kernel: it, the plain version, or that one under torch.compile."""
    with ExitStack() as stack:
        if contender == "compile":
            for name, operation in list(vars(ops).items()):
                if hasattr(operation, "plain"):
                    stack.enter_context(replaced(ops, name, compiled))
        yield stack.enter_context(ops.versions("auto" if contender == "kernels" else "plain"))


def compiled(operation: Callable) -> Callable:
    return torch.compile(operation.plain, dynamic=False)


def train(contender: str, seed: int, text: Corpus, c: TrainGpuConfig, *, clock: Callable[[], float]) -> dict:
    """One run: seconds of each step, the language model's loss at each, and which versions ran."""
    model = fresh(c.preset, seed).to(c.device).cast(DTYPES[c.dtype])
    part = c.batch // c.threads
    objective = Backbone(model, replay=-(-part // 4), align=-(-part // 8), seed=seed)
    stage = Stage(contender, objective, lr=c.lr, warmup=c.warmup, threads=c.threads)
    batches = Batches(tokens=text.train.tokens, batch_size=c.batch, length=c.length, seed=seed)
    seconds, losses = [], []
    with chosen(contender) as versions:
        for step in range(c.steps):
            tokens, began = batches(step).to(c.device), clock()
            losses.append(stage.update(tokens, step=step, progress=step / c.steps)["lm"])
            seconds.append(round(clock() - began, 5))
    return {"seconds": seconds, "loss": losses, "operations": versions.summary()}


def measure(
    text: Corpus,
    c: TrainGpuConfig,
    *,
    save: Callable[[dict], object] = lambda results: None,
    clock: Callable[[], float] | None = None,
) -> dict:
    """All runs, contenders in turn for each seed; `save` is given the results after each.

    A run is expected to take as many of the last one's steady steps: what its first steps compiled is not done again.
    """
    torch.set_num_threads(c.threads)
    clock = clock or (waited if c.device == "cuda" else time.perf_counter)
    end, took, runs = clock() + 60 * c.minutes, {}, {name: {} for name in c.contenders}
    results: dict = {}
    for seed in c.seeds:
        for name in c.contenders:
            if clock() + took.get(name, 0.0) > end:
                runs[name][seed] = {"skipped": "the time was up"}
            else:
                runs[name][seed] = train(name, seed, text, c, clock=clock)
                took[name] = c.steps * median(runs[name][seed]["seconds"][c.warm :])
            results = {"summary": summary(runs, c), "runs": runs}
            save(results)
    return results


def summary(runs: dict[str, dict[int, dict]], c: TrainGpuConfig) -> dict[str, dict]:
    """Of each contender: tokens a second after the warm-up (median, and range of the middle half of the steps), the
    final loss of each seed, and how far their mean is from that of the plain operations on the same seeds.

    noise: largest less smallest final loss of the plain operations over the seeds.
    """
    final = {
        name: {seed: round(mean(run["loss"][-LAST:]), 4) for seed, run in found.items() if "loss" in run}
        for name, found in runs.items()
    }
    out = {}
    for name, found in runs.items():
        steps = sorted(s for run in found.values() for s in run.get("seconds", [])[c.warm :])
        if not steps:
            continue
        tokens, quarter = c.batch * c.length, len(steps) // 4
        out[name] = {
            "tokens_per_second": round(tokens / median(steps)),
            "tokens_per_second_range": [round(tokens / s) for s in (steps[-1 - quarter], steps[quarter])],
            "final_loss": final[name],
        }
        out[name] |= beside(final[name], final.get("plain", {}))
    return out


def beside(own: dict[int, float], plain: dict[int, float]) -> dict:
    """The mean difference of the seeds that both have run, and whether it is within the spread of these seeds."""
    both = sorted(own.keys() & plain.keys())
    if own is plain or len(both) < 2:
        return {}
    apart = mean(own[seed] - plain[seed] for seed in both)
    noise = max(plain[s] for s in both) - min(plain[s] for s in both)
    return {"from_plain": round(apart, 4), "noise": round(noise, 4), "within_noise": abs(apart) <= noise}


def lines(results: dict) -> Iterator[str]:
    """The summary, to be read."""
    for name, found in results["summary"].items():
        loss = " ".join(f"{value:.3f}" for value in found["final_loss"].values())
        text = f"{name:8} {found['tokens_per_second']:9,} tokens/s  final loss {loss}"
        if "from_plain" in found:
            words = "within" if found["within_noise"] else "beyond"
            text += f"  {found['from_plain']:+.4f} from plain, {words} the seeds' {found['noise']:.4f}"
        yield text
