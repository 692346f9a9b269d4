"""Lesson 02: two slips of the cut prompt, two of the router."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.config import ModelConfig
from minidsv41.course.sabotage import Fault
from minidsv41.model import Model
from minidsv41.model.attention import Context, silent
from minidsv41.model.block import Block
from minidsv41.model.hyper import Streams
from minidsv41.model.moe import Gate
from minidsv41.ops import Batch
from minidsv41.replaced import replaced
from minidsv41.serve import prefill


def tail_keys():
    """Of a prompt in one piece, only the rows on which the decoder runs get a decoder entry."""

    def publish(original):
        def tail(self: Model, streams: Streams, ctx: Context) -> None:
            batch, rows = ctx.batch, slice(-self.config.sliding_window, None)
            last = Batch.ragged([batch.tokens[rows]], [int(batch.positions[rows][0])])
            original(self, streams.take(rows), replace(ctx, batch=last, _rotations={}))

        return tail

    return replaced(Model, "publish", publish)


def bare_projection():
    """The projection of a cut prompt reads the collapsed streams without the layer's norm."""

    def publish(original):
        def bare(self: Block, streams: Streams, ctx: Context) -> None:
            self.attn.publish(streams.collapsed(), ctx, silent)

        return bare

    return replaced(Block, "publish", publish)


def weighing(weigh):
    """Router weights [T, K] from weigh(scores [T, E], bias [E], ids [T, K]), before the scaling factor."""

    def forward(original):
        def routed(self: Gate, x: Tensor, image_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
            ids, _, scores = original(self, x, image_mask)
            return ids, weigh(scores, self.bias, ids) * self.scale, scores

        return routed

    return replaced(Gate, "forward", forward)


def biased(scores: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
    chosen = (scores + bias).gather(1, ids)
    return chosen / chosen.sum(-1, keepdim=True)


def over_all(scores: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
    return scores.gather(1, ids) / scores.sum(-1, keepdim=True)


@cache
def small() -> tuple[Model, Tensor]:
    """An untrained toy with a small window, whose gains and biases are no longer ones and zeros, and a prompt."""
    g = torch.Generator().manual_seed(0)
    config = replace(ModelConfig.preset("toy"), sliding_window=8, index_topk=8)
    model = Model(config).initialise(g)
    for p in model.parameters():
        if p.dim() == 1:
            p.data += 0.2 * torch.randn(p.shape, generator=g)
    return model.cast(torch.float64).eval(), torch.randint(5, config.vocab_size, (24,), generator=g)


def logits_of_a_cut_prompt() -> Tensor:
    model, ids = small()
    store = Cache(model.config, dtype=model.dtype)
    return prefill(model, store, store.new(), ids, cut="report")


FAULTS = (
    Fault(
        name="02.tail_keys",
        kind={"en": "skipped too much", "zh": "省过了头"},
        change={
            "en": "decoder entries only where the decoder runs",
            "zh": "只有解码器运行过的 token 才有解码器条目",
        },
        symptom={
            "en": "prompts of up to one window are right; in longer ones the decoder has forgotten all but the last "
            "window, and the text still reads well",
            "zh": "不超过一个窗口的提示词一切正确；更长时，解码器只记得最后一个窗口，而生成的文字读起来仍然通顺",
        },
        apply=tail_keys,
        probe=logits_of_a_cut_prompt,
    ),
    Fault(
        name="02.bare_projection",
        kind={"en": "two paths", "zh": "两条路径"},
        change={
            "en": "only the projection of a cut prompt skips attn_norm",
            "zh": "只有被截断的提示词在投影时漏掉 attn_norm",
        },
        symptom={
            "en": "training, short prompts and decode are right; entries of long prompts lack the norm's gain",
            "zh": "训练、短提示词和解码都正确；长提示词的条目少了归一化的增益",
        },
        apply=bare_projection,
        probe=logits_of_a_cut_prompt,
    ),
    Fault(
        name="02.biased_weights",
        kind={"en": "one number, two roles", "zh": "一数两用"},
        change={
            "en": "the router's bias counts in the weights too",
            "zh": "路由偏置不仅影响选择，还进入权重",
        },
        symptom={
            "en": "experts are weighed by how rarely they were used; the loss rises, the load looks perfect",
            "zh": "专家的权重取决于它们被用得多少；损失上升，负载却看起来完美",
        },
        apply=lambda: weighing(biased),
        probe=logits_of_a_cut_prompt,
    ),
    Fault(
        name="02.norm_over_all",
        kind={"en": "order of steps", "zh": "步骤顺序"},
        change={
            "en": "weights divided by the sum over all experts",
            "zh": "权重除以所有专家之和",
        },
        symptom={
            "en": "every routed expert counts for too little; the shared one keeps the text fluent",
            "zh": "每个被选专家的分量都太小；共享专家让文字保持通顺",
        },
        apply=lambda: weighing(over_all),
    ),
)
