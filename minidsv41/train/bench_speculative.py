"""Decoding with drafts and without, on each kind of text: accepted tokens, speed, and the schedule's two tables."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

import torch
from torch import Tensor

from minidsv41.model import Model
from minidsv41.serve.generate import generate
from minidsv41.serve.schedule import calibrate, calibration_error
from minidsv41.serve.schedule import measure as measure_speed
from minidsv41.serve.speculative import Gain, steps
from minidsv41.train.data import Corpus


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """One comparison on held-out text."""

    prompts: int = 8  # of each kind of text
    length: int = 64  # tokens of a prompt
    new: int = 128  # tokens added to each
    temperatures: tuple[float, ...] = (0.0, 1.0)
    rows: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of a batch, for the table of steps per second
    threads: int = 2
    seed: int = 0


class Pair(NamedTuple):
    """Tokens a second of one prompt, and whether both ways gave the same text."""

    plain: float
    speculative: float
    same: bool


def prompts(tokens: Tensor, c: SpeculativeConfig) -> list[Tensor]:
    """Slices at equal distances."""
    starts = torch.linspace(0, len(tokens) - c.length - 1, c.prompts).long().tolist()
    return [tokens[start : start + c.length] for start in starts]


def timed(steps: Iterable[list[int]]) -> tuple[list[int], float]:
    """All tokens, and tokens a second, the prompt's time and its token left out."""
    tokens, seconds = [], []
    for step in steps:
        tokens += step
        seconds += [time.perf_counter()] * len(step)
    return tokens, (len(tokens) - 1) / (seconds[-1] - seconds[0])


def compare(model: Model, ids: Tensor, c: SpeculativeConfig, temperature: float, seed: int) -> tuple[Pair, list[Gain]]:
    """One prompt with drafts and without, and what each step that verified a whole block gained."""

    def settings() -> dict:
        generator = torch.Generator().manual_seed(seed)
        return dict(max_new=c.new, temperature=temperature, generator=generator)

    gains: list[Gain] = []
    text, plain = timed([token] for token in generate(model, ids, **settings()))
    drafted, fast = timed(gains.append(g) or g.tokens.tolist() for g in steps(model, ids, **settings()))
    return Pair(plain, fast, text == drafted), [g for g in gains if g.verified == model.config.dspark_block_size]


def measure(model: Model, text: Corpus, c: SpeculativeConfig) -> dict:
    """Rows of accepted length and speed by kind and temperature; the calibration (at the last temperature); the
    table of seconds a step."""
    torch.set_num_threads(c.threads)
    rows, seen = [], {}
    for kind, held_out in text.validation.items():
        for temperature in c.temperatures:
            pairs, seen[kind, temperature] = [], []
            for i, ids in enumerate(prompts(torch.as_tensor(held_out.tokens).long(), c)):
                pair, gains = compare(model, ids, c, temperature, c.seed + i)
                pairs.append(pair)
                seen[kind, temperature] += gains
            rows.append({"kind": kind, "temperature": temperature, **summary(pairs, seen[kind, temperature])})
    last = [g for kind in text.validation for g in seen[kind, c.temperatures[-1]]]
    speed = measure_speed(model, torch.as_tensor(held_out.tokens[: c.length]).long(), rows=c.rows)
    table = dict(zip(map(str, speed.rows), speed.seconds, strict=True))
    return {"text": rows, "calibration": calibration(last), "seconds_per_step": table}


def summary(pairs: list[Pair], gains: list[Gain]) -> dict:
    """Of the steps, tokens a step and the share that kept at least k drafts; of the prompts, medians and ranges of
    tokens a second, and how many got the same text both ways (greedily, all but those that rounding tells apart)."""
    accepted = torch.tensor([len(g.tokens) - 1 for g in gains])
    block = len(gains[0].confidence)
    out = {"tokens_per_step": round(1 + mean(accepted.tolist()), 3), "steps": len(gains)}
    out["kept"] = [round(float((accepted >= k).double().mean()), 3) for k in range(1, block + 1)]
    out["same_text"] = sum(p.same for p in pairs)
    for name in ("plain", "speculative"):
        speeds = [getattr(p, name) for p in pairs]
        out[name] = round(median(speeds), 1)
        out[f"{name}_range"] = [round(min(speeds), 1), round(max(speeds), 1)]
    return out


def calibration(gains: list[Gain]) -> dict:
    """Temperatures fitted on every other step; calibration error of each position on the rest, before and after."""
    logits = torch.stack([g.confidence for g in gains])
    accepted = torch.tensor([len(g.tokens) - 1 for g in gains])
    fitted = calibrate(logits[::2], accepted[::2])

    def errors(p: Tensor) -> list[float]:
        products = p.cumprod(1).unbind(1)
        return [round(calibration_error(a, accepted[1::2] > k), 4) for k, a in enumerate(products)]

    raw, mended = logits[1::2].double().sigmoid(), fitted(logits[1::2])
    return {"temperatures": list(fitted.temperatures), "error_before": errors(raw), "error_after": errors(mended)}
