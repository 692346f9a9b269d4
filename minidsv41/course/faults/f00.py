"""Lesson 00: four slips, each of which leaves a model that still talks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from minidsv41.cache import CacheKeys
from minidsv41.course.sabotage import Fault, replaced
from minidsv41.model import attention, indexer, keys
from minidsv41.ops import Batch


@contextmanager
def stale_index_key() -> Iterator[None]:
    """Index keys come from whichever layer wrote some last, not from the owner that was asked for."""
    last: dict[int, int] = {}

    def write(original: Callable) -> Callable:
        def publish(self: CacheKeys, kind: str, layer: int, seq: Tensor, index: Tensor, values: Tensor) -> None:
            if kind == "index" and len(index):
                last[id(self.cache)] = layer
            original(self, kind, layer, seq, index, values)

        return publish

    def read(original: Callable) -> Callable:
        def latest(self: CacheKeys, kind: str, layer: int) -> Any:
            return original(self, kind, last.get(id(self.cache), layer) if kind == "index" else layer)

        return latest

    with replaced(CacheKeys, "write", write), replaced(CacheKeys, "read", read):
        yield


def wide_window():
    return replaced(Batch, "span", lambda original: lambda self, window, **k: original(self, window + 1, **k))


def early_entry():
    def visible(self: Batch, ratio: int) -> Tensor:
        return (self.positions + ratio) // ratio

    return replaced(Batch, "visible", lambda original: visible)


@contextmanager
def rope_halves() -> Iterator[None]:
    """Pair dimension j with j + R/2, as other models do, instead of with its neighbour."""

    def halves(original: Callable) -> Callable:
        def rotate(x: Tensor, rotation: Any, *, inverse: bool = False) -> Tensor:
            dims = 2 * rotation.cos.shape[-1]
            still, tail = x.split([x.shape[-1] - dims, dims], -1)
            paired = tail.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
            turned = original(torch.cat([still, paired], -1), rotation, inverse=inverse)
            tail = turned[..., -dims:].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
            return torch.cat([still, tail], -1)

        return rotate

    with ExitStack() as stack:
        for module in (attention, indexer, keys):
            stack.enter_context(replaced(module, "rotate", halves))
        yield


FAULTS = (
    Fault(
        name="00.stale_index_key",
        kind={"en": "addressing", "zh": "寻址"},
        change={
            "en": "the index keys of the layer that wrote last, not of the owner",
            "zh": "读取最后写入者的索引键，而不是源层的",
        },
        symptom={
            "en": "prompts are read correctly; generated text drifts, at every other token, and no test of a whole "
            "prompt can see it",
            "zh": "读提示词时一切正确；逐 token 生成时每隔一步就偏离，任何整段提示词的测试都看不出来",
        },
        report="official inference code, revision dba1be0a, 2026-09-10",
        apply=stale_index_key,
    ),
    Fault(
        name="00.wide_window",
        kind={"en": "off by one", "zh": "差一"},
        change={"en": "a query reads W + 1 window rows", "zh": "query 读取 W + 1 行滑窗"},
        symptom={
            "en": "nothing for prompts of up to W tokens, then a small shift everywhere",
            "zh": "不超过 W 个 token 的提示词毫无异常，之后处处有微小偏移",
        },
        apply=wide_window,
    ),
    Fault(
        name="00.early_entry",
        kind={"en": "causality", "zh": "因果性"},
        change={
            "en": "an entry counts as visible from the first token of its pair",
            "zh": "压缩组的第一个 token 就能看到整条条目",
        },
        symptom={
            "en": "a better loss than is possible: half of the tokens see their successor; decode cannot repeat it",
            "zh": "损失低得不真实：一半的 token 看到了后一个 token；解码时无法重现",
        },
        apply=early_entry,
    ),
    Fault(
        name="00.rope_halves",
        kind={"en": "layout", "zh": "布局"},
        change={
            "en": "RoPE turns dimensions j and j + R/2 together, not neighbours",
            "zh": "RoPE 把第 j 维和第 j + R/2 维配对，而不是相邻两维",
        },
        symptom={
            "en": "position 0 is right; released weights then lose their sense of distance",
            "zh": "位置 0 正确；之后已发布的权重失去距离感",
        },
        apply=rope_halves,
    ),
)
