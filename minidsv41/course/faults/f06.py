"""Lesson 06: four slips of number formats, of which a trace of the model shows one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from minidsv41.course.sabotage import Fault
from minidsv41.formats import E2M1, INDEX, MAIN, Format, SmallFloat
from minidsv41.replaced import replaced

PROBED = torch.tensor([6.0, 0.25, -0.75, 1.25, 1.75, -2.5, 3.5, 5.0] * 2, dtype=torch.float64)


def main_as(other: Format) -> AbstractContextManager[None]:
    """Rows of the main format are rounded as `other` rounds."""

    def rounds(original: Callable) -> Callable:
        return lambda self, x: original(other if self.name == MAIN.name else self, x)

    return replaced(Format, "_rounded", rounds)


def swapped_nibbles() -> AbstractContextManager[None]:
    def pack(self: SmallFloat, codes: Tensor) -> Tensor:
        return codes if self.bits == 8 else codes[..., 1::2] | (codes[..., ::2] << 4)

    return replaced(SmallFloat, "pack", lambda original: pack)


def ties_away() -> AbstractContextManager[None]:
    """E2M1 rounds halves away from zero: on its grid a hair more than the value does that."""

    def rounds(original: Callable) -> Callable:
        return lambda self, x: original(self, x * (1 + 2.0**-40) if self is E2M1 else x)

    return replaced(SmallFloat, "round", rounds)


FAULTS = (
    Fault(
        name="06.one_format",
        kind={"en": "wrong format", "zh": "格式错误"},
        change={
            "en": "main entries are rounded like index keys: 32 channels a scale, and that a power of two",
            "zh": "主 KV 条目按索引键的格式舍入：每 32 个通道一个缩放因子，且为 2 的幂",
        },
        symptom={
            "en": "text as good as before to the eye; a fifth more error in every entry, and rows two bytes shorter in "
            "64 channels than any reader of the released layout expects",
            "zh": "肉眼看不出文本变差；每条条目的误差多五分之一，而且每 64 个通道的行比发布格式少两个字节",
        },
        apply=lambda: main_as(INDEX),
    ),
    Fault(
        name="06.no_floor",
        kind={"en": "edge case", "zh": "边界情况"},
        change={"en": "the scale of a main entry has no floor", "zh": "主 KV 条目的缩放因子没有下限"},
        symptom={
            "en": "nothing for years; then one group of zeros is divided by a scale of zero, and every query that "
            "reads the entry answers NaN",
            "zh": "长期毫无异常；直到某一组全为零，除以零缩放因子，所有读到该条目的 query 都输出 NaN",
        },
        apply=lambda: main_as(replace(MAIN, floor=0.0)),
        probe=lambda: MAIN.fake_quant(torch.zeros(16, dtype=torch.float64)),
    ),
    Fault(
        name="06.swapped_nibbles",
        kind={"en": "layout", "zh": "布局"},
        change={
            "en": "rows are written with the even column in the high nibble and read from the low one",
            "zh": "写入时偶数列放在高 4 位，读取时却取低 4 位",
        },
        symptom={
            "en": "right as long as rows stay unpacked tensors; from packed pages all neighbours come back exchanged",
            "zh": "只要行还是未打包的张量就一切正确；从打包页读回时相邻两列互换",
        },
        apply=swapped_nibbles,
        probe=lambda: MAIN.decode(*MAIN.encode(PROBED)),
    ),
    Fault(
        name="06.ties_away",
        kind={"en": "rounding", "zh": "舍入"},
        change={"en": "halves are rounded away from zero", "zh": "平局向远离零的方向舍入"},
        symptom={
            "en": "one value in eighty of a bf16 row is one code larger; no single answer changes, but magnitudes "
            "drift up",
            "zh": "bf16 行中约八十分之一的值大一个码；看不出单个答案的变化，但绝对值整体偏大",
        },
        apply=ties_away,
        probe=lambda: MAIN.fake_quant(PROBED),
    ),
)
