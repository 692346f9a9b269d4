"""Lesson 12: slips of kernels. Each is right on the first thing that one tries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.course.crossing import example
from minidsv41.course.sabotage import Fault
from minidsv41.formats import MAIN, Format
from minidsv41.ops import Next, Rows, Span
from minidsv41.replaced import replaced

seam = importlib.import_module("minidsv41.ops.seam")
select = importlib.import_module("minidsv41.ops.select")

STEP = 16  # channels or groups that a program takes at once


def bf16_sum() -> AbstractContextManager[None]:
    """The predictor's products are added up in bfloat16, a block of channels at a time."""

    def make(_: Callable) -> Callable:
        def products(X: Tensor, into: Next) -> Tensor:
            flat = X.flatten(1).to(into.fn.dtype)
            total = flat.new_zeros(len(flat), len(into.fn))
            for x, w in zip(flat.split(STEP, 1), into.fn.split(STEP, 1), strict=True):
                total = (total + x @ w.T).bfloat16().to(flat.dtype)
            return total * (flat.square().mean(-1, keepdim=True) + into.eps).rsqrt()

        return products

    return replaced(seam, "products", make)


def beyond() -> AbstractContextManager[None]:
    """Rows before the beginning are read from memory that nobody has written, and masked afterwards."""

    def make(gather: Callable) -> Callable:
        def unclamped(self: Rows, seq: Tensor, index: Tensor) -> Tensor:
            return gather(self, seq, index).masked_fill((index < 0)[..., None], torch.nan)

        return unclamped

    return replaced(Rows, "gather", make)


def late_ties() -> AbstractContextManager[None]:
    """Two programs select from a half each; when their lists are merged, the second one wins a tie."""

    def make(original: Callable) -> Callable:
        def merged(scores: Tensor, k: int) -> Tensor:
            half = scores.shape[-1] // 2
            turned = torch.cat([scores[:, half:], scores[:, :half]], 1)
            place = original(turned, k)
            n = scores.shape[-1]
            found = torch.where(place < 0, n, (place + half) % max(n, 1)).sort(-1).values
            return found.masked_fill(found == n, -1)

        return merged

    return replaced(select, "lowest_topk", make)


def scale_of_byte() -> AbstractContextManager[None]:
    """A scale is found by the place of the byte, 16 bytes a group, where 16 numbers are meant: 8 bytes."""

    def make(decode: Callable) -> Callable:
        def wrong(self: Format, codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
            group = torch.arange(scales.shape[-1], device=scales.device) * self.values.bits // 8
            return decode(self, codes, scales[..., group], dtype)

        return wrong

    return replaced(Format, "decode", make)


def attended() -> Tensor:
    """Three tokens of one sequence with windows of four rows, the first ones before its beginning."""
    x = example().X[:, 0, :8]
    rows = Rows(x, torch.zeros(1, 1, dtype=torch.int64), 4)
    at = torch.arange(3)
    span = Span(torch.zeros_like(at), (at - 3).clamp(min=0), at, 4)
    return ops.sparse_attention(x[:, None], rows, None, None, torch.zeros(1, dtype=x.dtype), span)


def selected() -> Tensor:
    return select.lowest_topk(torch.tensor([[2.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 3.0]]), 4)


def decoded() -> Any:
    x = example().F * torch.tensor([0.1, 1.0, 10.0, 100.0]).repeat_interleave(16)
    return MAIN.decode(*MAIN.encode(x))


FAULTS = (
    Fault(
        name="12.bf16_sum",
        kind={"en": "precision", "zh": "精度"},
        change={
            "en": "the predictor's products are added up in bfloat16",
            "zh": "系数预测器的乘积用 bfloat16 累加",
        },
        symptom={
            "en": "streams and input of this seam are right; its coefficients are off in the third digit, and more so "
            "the more blocks are added",
            "zh": "本次接缝的残差流和输入都对；系数从第三位起有误，累加的块越多误差越大",
        },
        apply=bf16_sum,
        probe=lambda: ops.seam(*example())[2],
    ),
    Fault(
        name="12.beyond",
        kind={"en": "out of bounds", "zh": "越界"},
        change={
            "en": "rows before the beginning are read from unwritten memory and masked afterwards",
            "zh": "起始之前的行从未写过的内存读取，之后才屏蔽",
        },
        symptom={
            "en": "right as long as the memory holds numbers; where it holds NaN, a weight of 0 makes NaN of it",
            "zh": "内存里是普通数时正确；若是 NaN，权重 0 乘 NaN 仍是 NaN",
        },
        apply=beyond,
        probe=attended,
    ),
    Fault(
        name="12.late_ties",
        kind={"en": "order", "zh": "顺序"},
        change={
            "en": "two halves select for themselves, and the second wins ties when lists are merged",
            "zh": "两半各自选择，合并时同分由后一半获胜",
        },
        symptom={
            "en": "equal as long as no scores are; four-bit keys make many equal scores, and then the text depends on "
            "the number of splits",
            "zh": "没有同分时结果相同；四位键会产生大量同分，于是输出随切分数而变",
        },
        apply=late_ties,
        probe=selected,
    ),
    Fault(
        name="12.scale_of_byte",
        kind={"en": "layout", "zh": "布局"},
        change={
            "en": "a group's scale is found by 16 bytes of codes instead of 16 numbers",
            "zh": "按 16 字节（而非 16 个数）查找组的尺度",
        },
        symptom={
            "en": "the first group of a row is right, later ones are as loud as those before them; rows of even "
            "loudness hide it",
            "zh": "每行第一组正确，后面的组用了前面组的尺度；各组大小相近的行会掩盖它",
        },
        apply=scale_of_byte,
        probe=decoded,
    ),
)
