"""One stretch of training: an objective, its optimiser, and one update."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minidsv41.checkpoint.layout import DTYPES, storage
from minidsv41.train.losses import update_bias
from minidsv41.train.objective import Loss, Objective
from minidsv41.train.optim import Optimizer, lr_factor
from minidsv41.train.runs import RunError


def as_stored(name: str, w: Tensor) -> Tensor:
    """The weight `w` of parameter `name` as a checkpoint would give it back."""
    kind = storage(name)
    return w.to(DTYPES[kind]).to(w.dtype) if isinstance(kind, str) else kind.decode(*kind.encode(w), w.dtype)


@dataclass
class Stage:
    """Who is trained, and how fast. `warmup` is a share of the stage.

    A batch is cut into `threads` parts, each worked on by one thread: faster than letting all threads share every
    small operation.
    """

    name: str
    objective: Objective
    lr: float
    warmup: float
    threads: int = 1

    def __post_init__(self) -> None:
        self.optimizer = Optimizer(self.objective.parameters(), stacks=self.objective.stacks)
        self.workers = ThreadPoolExecutor(self.threads, initializer=partial(torch.set_num_threads, 1))

    def update(
        self, tokens: Tensor, *, step: int, progress: float, rounding: bool = False, weight: Tensor | None = None
    ) -> dict[str, float]:
        """One step on tokens [B, T + 1] at `progress` (0 to 1) of the stage; returns the terms of the loss.

        weight [B, T]: how much each target counts; all equal if None.
        With `rounding` the model then holds its weights as they will be stored.
        Raises RunError, before any weight changes, if the loss is not a number.
        """
        parts = tokens.chunk(self.threads)
        draws = [step * self.threads + i for i in range(len(parts))]
        weights = [None] * len(parts) if weight is None else weight.chunk(self.threads)
        losses, gradients = zip(*self.workers.map(self.gradients, parts, draws, weights), strict=True)
        values = {k: round(sum(loss.terms[k].item() for loss in losses) / len(losses), 4) for k in losses[0].terms}
        if not math.isfinite(values["total"]):
            raise RunError(f"{self.name}, step {step}: the loss is not a finite number ({values})")
        for p, *found in zip(self.optimizer.parameters.values(), *gradients, strict=True):
            found = [g for g in found if g is not None]
            p.grad = sum(found[1:], found[0]) / len(losses) if found else None
        rate = self.lr * lr_factor(progress, warmup=self.warmup)
        self.optimizer.step(rate, rounded=as_stored if rounding else None)
        for routers in zip(*(loss.chosen for loss in losses), strict=True):
            update_bias(routers[0][0], torch.cat([ids.flatten() for _, ids in routers]))
        return values

    def gradients(
        self, tokens: Tensor, step: int, weight: Tensor | None = None
    ) -> tuple[Loss, tuple[Tensor | None, ...]]:
        """The loss of one part of a batch, and its gradient for each trained parameter."""
        loss = self.objective.loss(tokens, step=step, weight=weight)
        parameters = list(self.optimizer.parameters.values())
        gradients = torch.autograd.grad(loss.terms["total"], parameters, allow_unused=True)
        return Loss({name: term.detach() for name, term in loss.terms.items()}, loss.chosen), gradients
