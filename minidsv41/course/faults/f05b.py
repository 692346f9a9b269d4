"""Lesson 05b: choosing cheaply, by slips that a loss on plain text hardly shows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.course.sabotage import Fault, replaced
from minidsv41.model.indexer import Indexer


def newest():
    """Every query reads the k newest entries; a pool is built as before and not asked."""

    def recent(original: Callable) -> Callable:
        def select(q: Tensor, w: Tensor, keys, visible: Tensor, k: int, pool, *, batch, n: int):
            _, built = original(q, w, keys, visible, k, pool, batch=batch, n=n)
            at = visible[:, None] - torch.arange(k, 0, -1, device=q.device)
            first = (k - visible).clamp(min=0)[:, None]  # -1 stands behind the entries
            at = at.gather(1, (torch.arange(k, device=q.device) + first).clamp(max=k - 1))
            return torch.where(torch.arange(k, device=q.device) < visible[:, None], at, -1), built

        return select

    return replaced(ops, "index_select", recent)


def first_head():
    """The indexer listens to its first head only."""

    def one(original: Callable) -> Callable:
        def queries(self: Indexer, *args: Tensor) -> tuple[Tensor, Tensor]:
            q, w = original(self, *args)
            return q, torch.cat([w[:, :1], torch.zeros_like(w[:, 1:])], 1)

        return queries

    return replaced(Indexer, "queries", one)


def half():
    """The k best are found and only the first half of them, by index, is read."""

    def cut(original: Callable) -> Callable:
        def select(*args, **rest):
            topk, pool = original(*args, **rest)
            count = (topk >= 0).sum(1, keepdim=True)
            place = torch.arange(topk.shape[1], device=topk.device)
            return topk.masked_fill(place >= (count + 1) // 2, -1), pool

        return select

    return replaced(ops, "index_select", cut)


FAULTS = (
    Fault(
        name="05b.newest",
        kind={"en": "shortcut", "zh": "走捷径"},
        change={"en": "every query reads the k newest entries", "zh": "每个查询只读最新的 k 条"},
        symptom={
            "en": "text reads as well as before; whatever was told far back is gone",
            "zh": "普通文本几乎不受影响；很早以前说过的内容全部丢失",
        },
        apply=newest,
    ),
    Fault(
        name="05b.first_head",
        kind={"en": "broadcast", "zh": "广播"},
        change={
            "en": "the weight of one index head counts, the others are zero",
            "zh": "只有一个索引头的权重生效，其余为零",
        },
        symptom={
            "en": "an answer is missed now and then, with no pattern that a user could name",
            "zh": "偶尔漏掉答案，用户说不出任何规律",
        },
        apply=first_head,
    ),
    Fault(
        name="05b.half",
        kind={"en": "shape", "zh": "形状"},
        change={
            "en": "a list of k indices is read up to k / 2, and it is sorted by place",
            "zh": "k 个索引按位置排好后只读了前一半",
        },
        symptom={
            "en": "old entries are found and recent ones are not, as soon as more than k are visible",
            "zh": "可见条目一多，旧的找得到，新的反而找不到",
        },
        apply=half,
    ),
)
