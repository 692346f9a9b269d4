"""Lesson 08b: four slips of tables in parts and of rows on their way. No trace of one process shows them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from minidsv41.course.prefetching import NOTHING
from minidsv41.course.sabotage import Fault
from minidsv41.replaced import replaced
from minidsv41.serve.prefetch import Prefetcher, Simulated, SlowTable
from minidsv41.train import optim
from minidsv41.train.group import Group, in_threads
from minidsv41.train.optim import Optimizer
from minidsv41.train.sharded import Fetched, Shard


def last_wins() -> AbstractContextManager[None]:
    """Gradients of one row from several members: the last to arrive is stored, not added."""

    def give_back(self: Shard, fetched: Fetched) -> None:
        arrived = self.group.exchange(list(fetched.rows.grad.split(fetched.counts)))
        self.weight.grad = torch.zeros_like(self.weight)
        for own, gradient in zip(fetched.asked, arrived, strict=True):
            self.weight.grad[own] = gradient

    return replaced(Shard, "give_back", lambda original: give_back)


def local_columns() -> AbstractContextManager[None]:
    return replaced(optim, "sinkhorn_balance", lambda original: lambda u, **_: original(u))


def early_rows() -> AbstractContextManager[None]:
    """Each batch reads the weights as they were when the batch before it was sent for."""

    def late(original: Callable) -> Callable:
        def fetch(self: Shard, ids: Tensor) -> Fetched:
            now = self.weight.detach().clone()
            self.weight.data.copy_(getattr(self, "before", now))
            found = original(self, ids)
            self.weight.data.copy_(now)
            self.before = now
            return found

        return fetch

    return replaced(Shard, "fetch", late)


def one_buffer() -> AbstractContextManager[None]:
    """An answer stays in its buffer, and the next pass reads what lies there."""

    def stale(original: Callable) -> Callable:
        def take(self: Prefetcher, layer: int) -> Tensor:
            kept = self.__dict__.setdefault("buffer", {})
            found = kept.get(layer)
            kept[layer] = original(self, layer)
            return kept[layer] if found is None else found

        return take

    return replaced(Prefetcher, "take", stale)


def two_members() -> Tensor:
    """A table of six rows after two steps of two members, which both read rows 0 and 4."""
    table = torch.arange(18.0, dtype=torch.float64).view(6, 3).sin()

    def learn(group: Group) -> Tensor:
        shard = Shard(table, group)
        optimizer = Optimizer([("engram.embed.weight", shard.weight)], stacks={}, total=group.total)
        for step in range(2):
            fetched = shard.fetch(torch.tensor([[0, 4, 1], [4, 3, 0]][group.rank]))
            (fetched.rows - step - group.rank).square().sum().backward()
            shard.give_back(fetched)
            optimizer.step(0.5)
        return shard.weight.detach()

    return torch.cat(in_threads(learn))


def two_passes() -> Tensor:
    """What two passes in a row get from a table of two rows."""
    clock, table = Simulated(), torch.cat([NOTHING, NOTHING + 1])
    prefetcher = Prefetcher({1: SlowTable(table, clock, 1.0)}, clock)
    out = []
    for row in (0, 1):
        prefetcher.ask(1, torch.tensor([[row]]))
        out.append(prefetcher.take(1))
    return torch.stack(out)


FAULTS = (
    Fault(
        name="08b.last_wins",
        kind={"en": "accumulation", "zh": "累加"},
        change={
            "en": "an owner stores the gradients that arrive for a row and does not add them",
            "zh": "源成员收到同一行的多份梯度时直接覆盖，而不是相加",
        },
        symptom={
            "en": "the loss falls as before; rows of frequent phrases learn from one member's batch only, the more "
            "members, the less",
            "zh": "损失照常下降；常见短语的行只从一个成员的批次学习，成员越多，学到的越少",
        },
        apply=last_wins,
        probe=two_members,
    ),
    Fault(
        name="08b.local_columns",
        kind={"en": "missing sum", "zh": "漏掉求和"},
        change={
            "en": "each member balances the columns of its own rows",
            "zh": "每个成员只对自己的行做列归一化",
        },
        symptom={
            "en": "training is fine, but a run from the same checkpoint on other numbers of members is another run",
            "zh": "训练正常，但同一检查点换一个成员数，就成了另一次训练",
        },
        apply=local_columns,
        probe=two_members,
    ),
    Fault(
        name="08b.early_rows",
        kind={"en": "order", "zh": "顺序"},
        change={
            "en": "rows of the next batch are fetched before this batch has changed them",
            "zh": "在本批更新之前就取了下一批的行",
        },
        symptom={
            "en": "frequent rows lag one step behind, rare ones do not; noise that grows with the rate",
            "zh": "常见的行落后一步，罕见的行不受影响；学习率越大噪声越大",
        },
        apply=early_rows,
        probe=two_members,
    ),
    Fault(
        name="08b.one_buffer",
        kind={"en": "stale data", "zh": "过期数据"},
        change={
            "en": "a pass reads the rows that the pass before it had asked for",
            "zh": "本次前向读到的是上一次请求的行",
        },
        symptom={
            "en": "fluent text that reminds one of other words; the first pass after a start is right",
            "zh": "文本通顺，却总像想起了别的词；启动后的第一次前向是对的",
        },
        apply=one_buffer,
        probe=two_passes,
    ),
)
