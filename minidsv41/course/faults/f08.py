"""Lesson 08: four slips in what an n-gram is. Each leaves a table that answers, only about other words."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.course.sabotage import Fault
from minidsv41.model import Model, transformer
from minidsv41.model.attention import Context
from minidsv41.model.engram import DEAD
from minidsv41.model.keys import SequenceKeys
from minidsv41.ops import Batch
from minidsv41.replaced import replaced


@cache
def example() -> tuple[Model, Batch, Batch]:
    """An untrained toy in float64, two requests in one call, and one request with an image."""
    model = Model(ModelConfig.preset("toy")).initialise(torch.Generator().manual_seed(0)).cast(torch.float64)
    ids = torch.randint(5, model.config.vocab_size, (24,), generator=torch.Generator().manual_seed(1))
    image = torch.zeros(24, dtype=torch.bool)
    image[[5, 6, 15]] = True
    return model, Batch.equal(ids.view(2, 12)), Batch.equal(ids[None], image_mask=image)


def looked_up(batch: Batch) -> Tensor:
    """The table rows of one call."""
    model, found = example()[0], {}
    with torch.no_grad():
        model(batch, SequenceKeys(model.config, batch), record=lambda name, value: found.setdefault(name, value))
    return found["L1.engram.rows"]


def across_requests():
    """All rows of a call count as one text."""

    def lookback(original: Callable) -> Callable:
        def joined(ids: Tensor, history: Tensor, batch: Batch, n: int) -> Tensor:
            return original(ids, history, Batch(batch.tokens, batch.starts[:1], (len(ids),)), n)

        return joined

    return replaced(transformer, "lookback", lookback)


def raw_ids():
    """Token ids are hashed as they are, with all their spellings."""

    def grams(original: Callable) -> Callable:
        def uncompressed(self: Model, ctx: Context) -> Tensor:
            kept, self.token_map = self.token_map, torch.arange(len(self.token_map))
            found = original(self, ctx)
            self.token_map = kept
            return found

        return uncompressed

    return replaced(Model, "grams", grams)


def oldest_first():
    return replaced(transformer, "lookback", lambda original: lambda *inputs: original(*inputs).flip(1))


def through_image():
    """A dead place is filled, and the words before it are read all the same."""

    def lookback(original: Callable) -> Callable:
        def filled(ids: Tensor, history: Tensor, batch: Batch, n: int) -> Tensor:
            alive = torch.where(ids == DEAD, 0, ids)
            return original(alive, history, batch, n).masked_fill(original(ids, history, batch, 1) == DEAD, DEAD)

        return filled

    return replaced(transformer, "lookback", lookback)


def fault(name: str, apply: Callable[[], Any], probe: Callable[[], Tensor] | None = None, **texts: Any) -> Fault:
    return Fault(name=f"08.{name}", apply=apply, probe=probe, **texts)


FAULTS = (
    fault(
        "across_requests",
        across_requests,
        lambda: looked_up(example()[1]),
        kind={"en": "isolation", "zh": "隔离"},
        change={
            "en": "the n-grams of a request begin with the last words of the request before it in the batch",
            "zh": "一个请求开头的 n-gram 接上了批内前一个请求的最后几个词",
        },
        symptom={
            "en": "alone every request is right; in a batch its first three tokens look up a neighbour's words",
            "zh": "单独运行都正确；成批运行时，开头三个 token 查到的是邻居的词",
        },
    ),
    fault(
        "raw_ids",
        raw_ids,
        kind={"en": "vocabulary", "zh": "词表"},
        change={"en": "token ids are hashed uncompressed", "zh": "直接用未压缩的 token id 做哈希"},
        symptom={
            "en": "every row is somebody else's; the text stays fluent and knows less",
            "zh": "每一行都是别人的；文字依旧通顺，知识变少",
        },
    ),
    fault(
        "oldest_first",
        oldest_first,
        kind={"en": "order", "zh": "顺序"},
        change={"en": "the first multiplier meets the oldest id", "zh": "第一个乘数对应了最早的 id"},
        symptom={
            "en": "row numbers are in range, tables are read, and nothing is found in them",
            "zh": "行号都在范围内，表也读了，但查到的都不对",
        },
    ),
    fault(
        "through_image",
        through_image,
        lambda: looked_up(example()[2]),
        kind={"en": "boundary", "zh": "边界"},
        change={
            "en": "words before an image are joined with words behind it",
            "zh": "图像之前的词与之后的词被连成词组",
        },
        symptom={
            "en": "text alone is right; the three tokens behind each image look up phrases that nobody wrote",
            "zh": "纯文本正确；每张图像之后的三个 token 查到并不存在的词组",
        },
    ),
)
