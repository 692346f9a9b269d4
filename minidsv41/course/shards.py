"""Engram's table learned anew by the members of a group, each with a part of the rows and a part of the batch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from minidsv41.model import Model
from minidsv41.model.attention import silent
from minidsv41.model.engram import Engram
from minidsv41.train.group import Group
from minidsv41.train.optim import Optimizer
from minidsv41.train.sharded import Shard


@dataclass(frozen=True)
class Lesson:
    """What an Engram has to learn: rows [T, columns] to read, streams before it and after it [T, n, C]."""

    engram: Engram
    rows: Tensor
    before: Tensor
    after: Tensor

    @classmethod
    def of(cls, model: Model, ids: Tensor, *, seed: int) -> Lesson:
        """What the model's first Engram does on ids [T]; its own table is drawn anew."""
        layer, trace = model.config.engram_layer_ids[0], model.trace(ids)
        engram = Engram(model.config, layer).to(model.dtype)
        engram.load_state_dict(model.layers[layer].engram.state_dict())
        with torch.no_grad():
            engram.embed.weight.normal_(0, 0.02, generator=torch.Generator().manual_seed(seed))
        rows = trace[f"L{layer}.engram.rows"]
        before = trace[f"L{layer - 1}.stream_after_ffn"]
        return cls(engram, rows, before, trace[f"L{layer}.stream_after_engram"])

    def part(self, group: Group) -> Lesson:
        """The tokens of one member, and an Engram of its own: `loss` puts a table into it for as long as it runs."""
        parts = (x.chunk(group.size)[group.rank] for x in (self.rows, self.before, self.after))
        return Lesson(deepcopy(self.engram), *parts)

    def loss(self, table: Tensor, rows: Tensor) -> Tensor:
        """The squared error of these tokens' streams, summed, reading `rows` of `table`."""
        alive = torch.ones(len(rows), dtype=torch.bool)
        out = functional_call(self.engram, {"embed.weight": table}, (self.before, rows, alive, silent))
        return (out - self.after).square().sum()


@dataclass
class Counted:
    """A group that counts the bytes that its member gives to others: ids, what is `doing`, and sums."""

    group: Group
    doing: str = "rows"
    sent: dict[str, int] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    def count(self, what: str, parts: list[Tensor]) -> None:
        self.sent[what] = self.sent.get(what, 0) + sum(part.nbytes for part in parts)

    def total(self, x: Tensor) -> Tensor:
        self.count("sums", [x] * (self.size - 1))
        return self.group.total(x)

    def exchange(self, parts: list[Tensor]) -> list[Tensor]:
        what = self.doing if parts[0].is_floating_point() else "ids"
        self.count(what, parts[: self.rank] + parts[self.rank + 1 :])
        return self.group.exchange(parts)


class Learned(NamedTuple):
    """One member's rows after the last step, the loss of its tokens in each, and the bytes that it sent."""

    rows: Tensor
    losses: list[float]
    sent: dict[str, int]


def relearn(group: Group, lesson: Lesson, steps: int, lr: float) -> Learned:
    """Train the table by Sinkhorn momentum, all tokens in each step."""
    counted, mine, losses = Counted(group), lesson.part(group), []
    shard = Shard(lesson.engram.embed.weight.detach(), counted)
    optimizer = Optimizer([("engram.embed.weight", shard.weight)], stacks={}, total=counted.total)
    for _ in range(steps):
        counted.doing = "rows"
        fetched = shard.fetch(mine.rows)
        loss = mine.loss(fetched.rows, fetched.index)
        loss.backward()
        counted.doing = "gradients"
        shard.give_back(fetched)
        optimizer.step(lr)
        losses.append(loss.item())
    return Learned(shard.weight.detach(), losses, counted.sent)
