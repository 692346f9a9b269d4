"""A router with favourites, and the bias that evens the load of its experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minidsv41.train.losses import update_bias

Update = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Router:
    """`steps` batches of `tokens` tokens, each of which picks `chosen` of the experts by score + bias."""

    experts: int = 8
    chosen: int = 2
    tokens: int = 512
    steps: int = 200
    seed: int = 0

    def batches(self) -> Iterator[Tensor]:
        """Scores [tokens, experts] of each step; some experts are liked more than others, and stay so."""
        g = torch.Generator().manual_seed(self.seed)
        liked = torch.randn(self.experts, generator=g, dtype=torch.float64)
        for _ in range(self.steps):
            noise = torch.randn(self.tokens, self.experts, generator=g, dtype=torch.float64)
            yield F.softplus(liked + noise).sqrt()

    def overload(self, update: Update) -> float:
        """Load of the busiest expert over the mean, averaged over the last quarter of the steps.

        update(bias [E], load [E]) -> bias [E]: what follows each step; it starts at zero.
        """
        bias, found = torch.zeros(self.experts, dtype=torch.float64), []
        for scores in self.batches():
            ids = (scores + bias).topk(self.chosen, -1).indices
            load = ids.flatten().bincount(minlength=self.experts).double()
            found.append(float(load.max() / load.mean()))
            bias = torch.as_tensor(update(bias.clone(), load.clone()), dtype=torch.float64)
            if bias.shape != load.shape:
                raise ValueError(f"update returns shape {tuple(bias.shape)}: one bias for each of {self.experts}")
            if not bias.isfinite().all():
                raise ValueError(f"update returns {bias.tolist()}: a bias is a finite number")
        last = found[-(self.steps // 4) :]
        return sum(last) / len(last)


def package_rule(bias: Tensor, load: Tensor) -> Tensor:
    """The rule that this package trains with, as an Update."""
    ids = torch.arange(len(load)).repeat_interleave(load.long())
    bias = bias.clone()
    update_bias(bias, ids)
    return bias
