"""What a schedule gains: tokens a second over verify length, early stop beside the best of all, by load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41.course.stepcost import StepCost, rate
from minidsv41.serve.schedule import verify_lengths


def best_of_all(
    confidence: Tensor, steps_per_second: Callable[[int], float], *, most: list[int], budget: int | None = None
) -> list[int]:
    """As `verify_lengths`, but the best number of drafts is looked for everywhere. Not lossless."""
    reach = confidence.double().cumprod(1).tolist()
    order = sorted((-a, j, r) for r, row in enumerate(reach) for j, a in enumerate(row[: most[r]]))
    rows, expected, lengths = len(reach), float(len(reach)), [0] * len(reach)
    order, best, chosen = order[: None if budget is None else budget - rows], expected * steps_per_second(rows), 0
    for count, (minus_a, _, _) in enumerate(order, start=1):
        expected -= minus_a
        if (found := expected * steps_per_second(rows + count)) > best:
            best, chosen = found, count
    for _, _, r in order[:chosen]:
        lengths[r] += 1
    return lengths


def expected_tokens(confidence: Tensor, lengths: Sequence[int]) -> float:
    """Tokens of a step that verifies lengths [S] drafts: each request's reached ones and one more."""
    reach = confidence.double().cumprod(1)
    return len(reach) + sum(float(row[:n].sum()) for row, n in zip(reach, lengths, strict=True))


def curve(confidence: Tensor, steps_per_second: Callable[[int], float]) -> list[float]:
    """Expected tokens a second if the 0, 1, … likeliest drafts of the batch are verified; confidence [S, block]."""
    reach, count = confidence.double().cumprod(1).flatten().sort(descending=True).values, len(confidence)
    expected = [float(count), *(count + reach.cumsum(0)).tolist()]
    return [tokens * steps_per_second(count + k) for k, tokens in enumerate(expected)]


@dataclass(frozen=True)
class Choice:
    """Tokens a second over the drafts verified in the batch, without drafts, and where both searches end."""

    confidence: Tensor
    rates: list[float]
    plain: float
    early: list[int]
    best: list[int]

    @classmethod
    def of(cls, confidence: Tensor, cost: StepCost) -> Choice:
        count, block = confidence.shape
        sps, most = rate(cost, count), [block] * count
        early, best = (plan(confidence, sps, most=most) for plan in (verify_lengths, best_of_all))
        return cls(confidence, curve(confidence, sps), count / cost.plain(count), early, best)

    @property
    def gains(self) -> dict[str, float]:
        """Tokens a second, as multiples of plain decoding."""
        found = {"all drafts": self.rates[-1], "early stop": self.rates[sum(self.early)]}
        return {name: value / self.plain for name, value in found.items()}


def alike(chances: Sequence[float], requests: int) -> Tensor:
    """[S, block] requests with the same confidence."""
    return torch.tensor([list(chances)] * requests, dtype=torch.float64)


def mixed(sure: float, unsure: float, requests: int, block: int, *, fade: float = 1.0) -> Tensor:
    """[S, block] half of them (the odd one too) sure, the others unsure; each draft's chance is `fade` of the last."""
    first = torch.tensor([sure if r % 2 == 0 else unsure for r in range(requests)], dtype=torch.float64)
    return first[:, None] * fade ** torch.arange(block, dtype=torch.float64)


def sweep(chances: Sequence[float], cost: StepCost) -> dict[str, list[float]]:
    """Gains over plain decoding by load, for requests that are alike."""
    found = [Choice.of(alike(chances, load), cost).gains for load in cost.loads]
    return {name: [gains[name] for gains in found] for name in found[0]}


def described(choice: Choice, seconds: float) -> str:
    """What the widget says: lengths of sure and unsure requests, and tokens a second. HTML."""
    count, drafts = len(choice.early), sum(choice.early)
    sure, unsure = ([choice.early[r] for r in range(start, count, 2)] for start in (0, 1))
    lengths = f"{span(sure)} of each sure request" + (f", {span(unsure)} of each unsure one" if unsure else "")
    speeds = ", ".join(f"{name} {value:.2f}×" for name, value in choice.gains.items())
    best = choice.rates[sum(choice.best)] / choice.plain
    return (
        f"{count} request{'s' * (count > 1)}: early stop verifies {drafts} drafts, {lengths}<br>"
        f"a step of {1000 * seconds:.1f} ms without drafts, {choice.plain:,.0f} tokens/s<br>"
        f"{speeds}, best of all {best:.2f}× ({sum(choice.best)} drafts)"
    )


def span(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"
