"""One stretch of training: an objective, its optimiser, and one update."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from minidsv41.checkpoint.layout import DTYPES, storage
from minidsv41.train.objective import Objective
from minidsv41.train.optim import Optimizer, lr_factor
from minidsv41.train.runs import RunError


def as_stored(name: str, w: Tensor) -> Tensor:
    """The weight `w` of parameter `name` as a checkpoint would give it back."""
    kind = storage(name)
    return w.to(DTYPES[kind]).to(w.dtype) if isinstance(kind, str) else kind.decode(*kind.encode(w), w.dtype)


@dataclass
class Stage:
    """Who is trained, and how fast. `warmup` is a share of the stage."""

    name: str
    objective: Objective
    lr: float
    warmup: float

    def __post_init__(self) -> None:
        self.optimizer = Optimizer(self.objective.parameters(), stacks=self.objective.stacks)

    def update(self, tokens: Tensor, *, step: int, progress: float, rounding: bool = False) -> dict[str, float]:
        """One step on tokens [B, T + 1] at `progress` (0 to 1) of the stage; returns the terms of the loss.

        With `rounding` the model then holds its weights as they will be stored.
        Raises RunError, before any weight changes, if the loss is not a number.
        """
        terms = self.objective.loss(tokens, step=step)
        values = {name: round(term.item(), 4) for name, term in terms.items()}
        if not math.isfinite(values["total"]):
            raise RunError(f"{self.name}, step {step}: the loss is not a finite number ({values})")
        terms["total"].backward()
        rate = self.lr * lr_factor(progress, warmup=self.warmup)
        self.optimizer.step(rate, rounded=as_stored if rounding else None)
        self.objective.settle()
        return values
