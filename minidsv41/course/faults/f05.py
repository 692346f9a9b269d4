"""Lesson 05: slips in scoring, in the pool and in how equal scores are told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from minidsv41.course.sabotage import Fault, replaced
from minidsv41.ops import Batch, PoolSize, Rows, index_select, select


def ties_by_width():
    """Equal scores are taken from the middle of the row on, and the row is as long as the call's longest context."""

    def from_the_middle(original: Callable) -> Callable:
        def topk(scores: Tensor, k: int) -> Tensor:
            n = scores.shape[-1]
            found = original(scores.roll(-(n // 2), -1), k)
            back = torch.where(found < 0, n, (found + n // 2) % n).sort(-1).values
            return torch.where(back == n, -1, back)

        return topk

    return replaced(select, "lowest_topk", from_the_middle)


def no_pin():
    """Blocks are ranked by their maximum alone."""

    def unpinned(original: Callable) -> Callable:
        def blocks(scores: Tensor, visible: Tensor, pool: PoolSize) -> Tensor:
            return select.lowest_topk(in_blocks(scores, pool.size).amax(-1), pool.blocks)

        return blocks

    return replaced(select, "best_blocks", unpinned)


def block_mean():
    """A block counts as much as its visible entries do on average; the newest stays pinned."""

    def averaged(original: Callable) -> Callable:
        def blocks(scores: Tensor, visible: Tensor, pool: PoolSize) -> Tensor:
            parts = in_blocks(scores, pool.size)
            seen = parts > -torch.inf
            mean = parts.masked_fill(~seen, 0).sum(-1) / seen.sum(-1)  # not a number where nothing is seen
            return original(mean.nan_to_num(nan=-torch.inf).repeat_interleave(pool.size, -1), visible, pool)

        return blocks

    return replaced(select, "best_blocks", averaged)


def in_blocks(scores: Tensor, size: int) -> Tensor:
    """[T, n] -> [T, blocks, size], -inf beyond the end."""
    missing = -scores.shape[-1] % size
    return torch.nn.functional.pad(scores, (0, missing), value=-torch.inf).unflatten(-1, (-1, size))


def no_relu():
    """Heads that disagree with a key count against it."""

    def signed(original: Callable) -> Callable:
        return lambda q, w, keys: torch.einsum("...lhd,...nd,...lh->...ln", q, keys, w)

    return replaced(select, "weigh", signed)


@contextmanager
def common_bound() -> Iterator[None]:
    """All rows of a call see the entries that its last row may see."""

    def last(original: Callable) -> Callable:
        def visible(self: Batch, ratio: int) -> Tensor:
            own = original(self, ratio)
            return own[(self.cu_seqlens[1:] - 1)[self.seq]]

        return visible

    with replaced(Batch, "visible", last):
        yield


def choices() -> dict[str, Any]:
    """Selections among few different scores: one query alone and in front of a longer one; then from its pool."""
    draw = torch.Generator().manual_seed(0)
    keys = torch.randint(0, 3, (60, 4), generator=draw).double()
    keys[36:40] = 0  # the newest block of the short one: nothing but its place speaks for it
    q, later = torch.randint(0, 3, (2, 2, 1, 4), generator=draw).double()
    w, found = torch.ones(2, 1).double(), {}
    for n in (40, 60):
        rows = Rows(keys, torch.zeros(2, 1, dtype=torch.int64), page=60)
        ask = dict(batch=Batch.ragged([torch.zeros(1, dtype=torch.int64)] * 2, [39, n - 1]), n=n)
        seen = torch.tensor([40, n])
        own, pool = index_select(q, w, rows, seen, 3, PoolSize(4, 4), **ask)
        bound, _ = index_select(later, w, rows, seen, 3, pool, **ask)
        found |= {f"own, {n}": own[0], f"pool, {n}": pool.blocks[0], f"later, {n}": bound[0]}
    return found


FAULTS = (
    Fault(
        name="05.ties_by_width",
        kind={"en": "ties", "zh": "并列"},
        change={
            "en": "among equal scores the choice depends on how long the row is",
            "zh": "分数并列时，选择取决于该行有多长",
        },
        symptom={
            "en": "every choice is a correct top-k; the same token chooses otherwise in prefill and in decode",
            "zh": "每次选择都是正确的 top-k；但同一个 token 在 prefill 和 decode 中选得不同",
        },
        apply=ties_by_width,
        probe=choices,
    ),
    Fault(
        name="05.no_pin",
        kind={"en": "edge", "zh": "边界"},
        change={
            "en": "the block of the newest entry has to earn its place in the pool",
            "zh": "最新条目所在的块不再固定在候选池里，要凭分数入选",
        },
        symptom={
            "en": "nothing while the pool holds every block; then later layers stop seeing the latest words as entries",
            "zh": "候选池装得下所有块时毫无异常；之后后面的层在条目里看不到最近的词",
        },
        apply=no_pin,
        probe=choices,
    ),
    Fault(
        name="05.block_mean",
        kind={"en": "reduction", "zh": "归约"},
        change={
            "en": "a block is ranked by the mean of its scores, not by the largest",
            "zh": "块按分数的平均值排序，而不是按最大值",
        },
        symptom={
            "en": "a lone strong entry among weak neighbours falls out of the pool, even one that its builder selects",
            "zh": "夹在弱邻居中的单个强条目会掉出候选池，哪怕建池的层自己选了它",
        },
        apply=block_mean,
        probe=choices,
    ),
    Fault(
        name="05.no_relu",
        kind={"en": "formula", "zh": "公式"},
        change={
            "en": "no ReLU: a head that points away from a key lowers its score",
            "zh": "没有 ReLU：与键方向相反的头会压低分数",
        },
        symptom={"en": "a fluent network that selects other entries", "zh": "输出通顺，但选中的条目不同"},
        apply=no_relu,
    ),
    Fault(
        name="05.common_bound",
        kind={"en": "causality", "zh": "因果性"},
        change={
            "en": "all rows of one call may read as far as its last row",
            "zh": "同一次调用的所有行都能读到最后一行可见的条目",
        },
        symptom={
            "en": "one token at a time is right; a prompt, or drafts under verification, can read its own future",
            "zh": "逐 token 解码正确；而 prompt 或正在验证的草稿能读到自己的未来",
        },
        report="ROCm/ATOM #2101, V4, mended 2026",
        apply=common_bound,
    ),
)
