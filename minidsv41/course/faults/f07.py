"""Lesson 07: slips of the residual streams. A network with any of them still talks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.course.mixing import EPS, drawn
from minidsv41.course.sabotage import Fault
from minidsv41.model import Model
from minidsv41.model.block import Block
from minidsv41.model.hyper import Streams
from minidsv41.ops import Next
from minidsv41.replaced import replaced

seam = importlib.import_module("minidsv41.ops.seam")


def block_delay() -> AbstractContextManager[None]:
    """Both sublayers of a block take the mix that came into the block."""

    def make(_: Callable) -> Callable:
        def forward(self: Block, streams: Streams, ctx: Any, note: Callable = lambda *_: None) -> Streams:
            half = self.sublayer("attn", streams, lambda x: self.attn(x, ctx, note), note)
            return self.experts(replace(half, pre=streams.pre), ctx.batch.image_mask, note)

        return forward

    return replaced(Block, "forward", make)


def forgotten_mix() -> AbstractContextManager[None]:
    """The second half of the network receives the streams and not the mix."""

    def make(decode: Callable) -> Callable:
        def start_again(self: Model, streams: Streams, *args: Any, **rest: Any) -> Any:
            one_hot = torch.zeros_like(streams.pre)
            one_hot[:, 0] = 1
            return decode(self, replace(streams, pre=one_hot), *args, **rest)

        return start_again

    return replaced(Model, "decode", make)


def other_side() -> AbstractContextManager[None]:
    def make(sinkhorn: Callable) -> Callable:
        return lambda logits, iters, eps: sinkhorn(logits.mT, iters, eps).mT

    return replaced(seam, "sinkhorn", make)


def library_defaults() -> AbstractContextManager[None]:
    """Ten rounds, and post between 0 and 1."""

    def make(coefficients: Callable) -> Callable:
        def halved(m: Tensor, into: Next) -> tuple[Tensor, Tensor, Tensor]:
            pre, post, comb = coefficients(m, into._replace(iters=10))
            return pre, post / 2, comb

        return halved

    return replaced(seam, "coefficients", make)


def norm_per_stream() -> AbstractContextManager[None]:
    """Each stream is divided by its own root mean square before the product."""

    def make(products: Callable) -> Callable:
        return lambda X, into: products(ops.rms_norm(X, None, into.eps), into)

    return replaced(seam, "products", make)


FAULTS = (
    Fault(
        name="07.block_delay",
        kind={"en": "off by one", "zh": "差一"},
        change={
            "en": "both sublayers of a block use the mix that came into it",
            "zh": "一个块的两个子层都使用进入该块时的混合系数：错位一个块",
        },
        symptom={
            "en": "attention of layer 0 is right, all behind it is not; the loss moves by a hundredth of a nat on "
            "the toy's text",
            "zh": "第 0 层注意力正确，之后全错；但在 toy 的文本上损失只变动约百分之一 nat",
        },
        apply=block_delay,
    ),
    Fault(
        name="07.forgotten_mix",
        kind={"en": "hand-over", "zh": "交接"},
        change={
            "en": "the decoder receives the streams without their mix and starts one-hot",
            "zh": "解码器只收到残差流、没有收到混合系数，从 one-hot 重新开始",
        },
        symptom={
            "en": "right on one machine; another network as soon as the layers are split into pipeline stages",
            "zh": "单机正确；一旦按流水线切分各层，就成了另一个网络",
        },
        apply=forgotten_mix,
    ),
    Fault(
        name="07.other_side",
        kind={"en": "order", "zh": "顺序"},
        change={
            "en": "Sinkhorn begins, and so ends, with the other side",
            "zh": "Sinkhorn 从另一侧开始，于是最后精确的是另一侧",
        },
        symptom={
            "en": "sums off by a few hundredths where they should be one; no test of quality will see it",
            "zh": "本应为 1 的和差百分之几；任何质量测试都看不出来",
        },
        apply=other_side,
        probe=lambda: seam.sinkhorn(drawn(3, 0), 20, EPS),
    ),
    Fault(
        name="07.library_defaults",
        kind={"en": "defaults", "zh": "默认值"},
        change={
            "en": "ten rounds of Sinkhorn, post at most 1 instead of 2",
            "zh": "Sinkhorn 只做十轮，子层输出的权重上限为 1 而不是 2",
        },
        symptom={
            "en": "every sublayer adds half of what it was trained to add",
            "zh": "每个子层只加入训练时一半的输出",
        },
        report="defaults of TileKernels; the released models set others",
        apply=library_defaults,
    ),
    Fault(
        name="07.norm_per_stream",
        kind={"en": "scope", "zh": "范围"},
        change={
            "en": "the predictor norms each stream by itself, not all as one vector",
            "zh": "系数预测器让每条残差流除以各自的均方根，而不是全部除以同一个",
        },
        symptom={
            "en": "right at layer 0, where the streams are copies; then coefficients drift with the streams' sizes",
            "zh": "第 0 层正确（各条残差流相同）；之后系数随各流大小而漂移",
        },
        apply=norm_per_stream,
    ),
)
