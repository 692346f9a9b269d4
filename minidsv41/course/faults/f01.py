"""Lesson 01: slips of those who carry one attention over to the next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.course.sabotage import Fault
from minidsv41.families import MLA
from minidsv41.model.attention import Attention
from minidsv41.model.rope import Rotation
from minidsv41.replaced import replaced


def value_stays_turned() -> AbstractContextManager[None]:
    def turned(original: Callable) -> Callable:
        def core(self: Attention, q, window, entries, topk, span, rotation: Rotation) -> Tensor:
            return ops.sparse_attention(q, window, entries, topk, self.attn_sink, span)

        return core

    return replaced(Attention, "core", turned)


def query_norm() -> AbstractContextManager[None]:
    def normed(original: Callable) -> Callable:
        def query(self: Attention, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
            qr, q = original(self, x, rotation)
            return qr, ops.rms_norm(q, None, self.config.rms_norm_eps)

        return query

    return replaced(Attention, "query", normed)


def no_sink() -> AbstractContextManager[None]:
    def plain(original: Callable) -> Callable:
        def sparse_attention(q, window, entries, topk, sink, span) -> Tensor:
            return original(q, window, entries, topk, torch.full_like(sink, -torch.inf), span)

        return sparse_attention

    return replaced(ops, "sparse_attention", plain)


def scale_of_row() -> AbstractContextManager[None]:
    def scaled(original: Callable) -> Callable:
        def read_absorbed(self: MLA, q: Tensor, latent: Tensor, key: Tensor, visible: Tensor) -> Tensor:
            shrunk = ((self.kv_lora + self.rope) ** -0.5) / self.scale
            return original(self, q * shrunk, latent, key, visible)

        return read_absorbed

    return replaced(MLA, "read_absorbed", scaled)


def absorbed_output() -> Tensor:
    """What a small MLA layer gives for eight tokens."""
    generator = torch.Generator().manual_seed(0)
    layer = MLA(hidden=16, heads=2, q_lora=8, kv_lora=24, nope=8, rope=4, v=6)
    for p in layer.parameters():
        p.data = torch.randn(p.shape, generator=generator)
    return layer(torch.randn(8, 16, generator=generator), layer.new()).detach()


FAULTS = (
    Fault(
        name="01.value_stays_turned",
        kind={"en": "forgotten inverse", "zh": "漏掉逆变换"},
        change={
            "en": "what a head has read is not turned back by the query's position",
            "zh": "每个头读到的结果没有按 query 的位置转回去",
        },
        symptom={
            "en": "the text stays readable and gets worse: from the second token on each one sees its past through an "
            "angle that depends on where it stands",
            "zh": "文本仍然可读，但变差：从第二个 token 起，每个 token 读到的内容都随其绝对位置偏转",
        },
        apply=value_stays_turned,
    ),
    Fault(
        name="01.query_norm",
        kind={"en": "carried over", "zh": "沿用旧版"},
        change={
            "en": "each query head is normalised, as V4 does and V4.1 does not",
            "zh": "对每个 query 头做归一化：V4 有这一步，V4.1 没有",
        },
        symptom={
            "en": "loads without complaint, since this norm has no weight that could be missing; all heads attend "
            "with one and the same sharpness",
            "zh": "加载时毫无提示，因为这个归一化没有权重可缺；所有头的注意力锐度被拉成一样",
        },
        report="ikawrakow/ik_llama.cpp issue 2455",
        apply=query_norm,
    ),
    Fault(
        name="01.no_sink",
        kind={"en": "dropped term", "zh": "漏掉一项"},
        change={
            "en": "the softmax runs over keys alone, without the sink of each head",
            "zh": "softmax 只对键求和，漏掉了每个头的 sink",
        },
        symptom={
            "en": "a head that wants to read nothing has to read something",
            "zh": "本来什么都不想读的头，被迫读进一些东西",
        },
        apply=no_sink,
    ),
    Fault(
        name="01.scale_of_row",
        kind={"en": "wrong width", "zh": "宽度用错"},
        change={
            "en": "absorbed scores are scaled by the width of the stored row, not of the head's own key",
            "zh": "吸收后的分数按缓存行的宽度缩放，而不是按每个头自己的键宽",
        },
        symptom={
            "en": "absorbed decode disagrees with expanded prefill: attention is flatter, more so the wider the row",
            "zh": "吸收形式的 decode 与展开形式的 prefill 不一致：注意力变平，行越宽越明显",
        },
        apply=scale_of_row,
        probe=absorbed_output,
    ),
)
