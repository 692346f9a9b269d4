"""How many drafts to verify: confidence, made honest, against what a row costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.model import Model
from minidsv41.serve.prefill import prefill
from minidsv41.serve.scratch import ScratchKeys
from minidsv41.serve.speculative import Sampling, propose, verify

GRID = tuple(2 ** (i / 8) for i in range(-24, 33))  # temperatures: 1/8 to 16
BINS = 10


def calibration_error(p: Tensor, happened: Tensor) -> float:
    """Expected calibration error of predictions p [N]: the gap between forecast and frequency, averaged over bins."""
    p = p.double()
    bins = (p * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, p - happened.double())
    return float(gaps.abs().sum() / len(p))


@dataclass(frozen=True)
class Calibration:
    """One temperature for the confidence logits of each draft position."""

    temperatures: tuple[float, ...]

    def __call__(self, logits: Tensor) -> Tensor:
        """Confidence logits [..., block] -> probability that a draft is accepted if all before it are."""
        return (logits.double() / torch.tensor(self.temperatures, dtype=torch.float64, device=logits.device)).sigmoid()


def calibrate(logits: Tensor, accepted: Tensor) -> Calibration:
    """Sequential temperature scaling: left to right, each position's temperature is the one of GRID that leaves the
    running product with the least calibration error.

    logits [N, block] of steps whose whole block was verified; accepted [N], how many drafts were kept.
    """
    before, chosen = torch.ones(len(logits), dtype=torch.float64), []
    for k, column in enumerate(logits.double().unbind(1)):
        products = [before * (column / t).sigmoid() for t in GRID]
        errors = [calibration_error(p, accepted > k) for p in products]
        best = errors.index(min(errors))
        before = products[best]
        chosen.append(GRID[best])
    return Calibration(tuple(chosen))


@dataclass(frozen=True)
class Speed:
    """Measured seconds of a step at ascending numbers of rows in the batch; linear between them, and
    proportional to the rows beyond the last."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def steps_per_second(self, rows: int) -> float:
        seconds = float(np.interp(rows, self.rows, self.seconds))
        return 1 / (seconds * max(1.0, rows / self.rows[-1]))


@torch.no_grad()
def measure(
    model: Model,
    ids: Tensor,
    *,
    rows: tuple[int, ...],
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> Speed:
    """Time draft and verification with this model on this machine, behind a context ids [n]: medians.

    A batch of B rows is spread over as few sequences as hold it, block + 1 rows each at most.
    """
    size = model.config.dspark_block_size + 1
    cache = Cache(model.config, dtype=model.dtype, device=ids.device)
    states = [cache.new() for _ in range(-(-max(rows) // size))]
    for state in states:
        prefill(model, cache, state, ids)

    def step(count: int) -> float:
        used = states[: -(-count // size)]
        shares = torch.arange(count, device=ids.device).tensor_split(len(used))
        anchors = ids[-1].expand(len(used))
        start = clock()
        scratch = ScratchKeys(cache, used)
        drafts = propose(model, scratch, anchors, [Sampling()] * len(used))
        parts = [torch.cat([a[None], d[: len(s) - 1]]) for a, d, s in zip(anchors, drafts.tokens, shares, strict=True)]
        verify(model, scratch, parts)
        return clock() - start

    step(max(rows))  # warm
    return Speed(rows, tuple(median(step(count) for _ in range(repeats)) for count in rows))


def verify_lengths(
    confidence: Tensor, steps_per_second: Callable[[int], float], *, most: list[int], budget: int | None = None
) -> list[int]:
    """Drafts of each request to verify, for many expected tokens a second within `budget` rows.

    confidence [S, block]: probability of acceptance given all before; most [S]. Drafts are added in the order of
    their chance to be reached and accepted, and the first that gains nothing ends it, whatever lies behind. So a
    draft is verified or not regardless of what it is, only of those before it, and the output keeps the
    target's distribution; a search for the global best would not. Where speed has several peaks, this may
    stop at a lower one.
    """
    reach = confidence.double().cumprod(1).tolist()
    order = sorted((-a, j, r) for r, row in enumerate(reach) for j, a in enumerate(row[: most[r]]))
    lengths, rows, expected = [0] * len(reach), len(reach), float(len(reach))
    best = expected * steps_per_second(rows)
    for minus_a, _, r in order:
        rows, expected = rows + 1, expected - minus_a
        rate = expected * steps_per_second(rows)
        if rate <= best or (budget is not None and rows > budget):
            break
        lengths[r], best = lengths[r] + 1, rate
    return lengths


@dataclass(frozen=True)
class Schedule:
    """The plan of a step: calibrated confidence, measured speed, and a budget of rows for the whole batch."""

    calibration: Calibration
    speed: Speed
    budget: int | None = None

    def __call__(self, logits: Tensor, most: list[int]) -> list[int]:
        sps = self.speed.steps_per_second
        return verify_lengths(self.calibration(logits), sps, most=most, budget=self.budget)
