"""Lesson 03: four slips of a replay. None shows in a cold prompt, and one makes a quiet test look better."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from minidsv41 import paths
from minidsv41.cache import CacheKeys
from minidsv41.checkpoint import load
from minidsv41.course.hit import replayed
from minidsv41.course.sabotage import Fault
from minidsv41.model import Model
from minidsv41.model.engram import DEAD
from minidsv41.ops import Batch
from minidsv41.replaced import replaced
from minidsv41.serve import Prefill

HIT, CHUNK = 90, 40


@cache
def example() -> tuple[Model, Tensor]:
    """The trained toy in float64, and tokens that mean nothing."""
    model = load(paths.checkpoint_dir("toy"), dtype=torch.float64)
    return model, torch.randint(5, model.config.vocab_size, (HIT + 20,), generator=torch.Generator().manual_seed(0))


def after_hit() -> Tensor:
    """Log-probabilities after a hit of HIT tokens, fed in chunks."""
    model, ids = example()
    return replayed(model, ids, HIT, chunk=CHUNK)


def no_floor():
    """Replayed rows read whole windows, whatever lies in the page before the first of them."""

    def span(original: Callable) -> Callable:
        def whole(self: Batch, window: int, **kwargs: Any) -> Any:
            return original(Batch(self.tokens, self.starts, self.lengths), window, **kwargs)

        return whole

    return replaced(Batch, "span", span)


def overwritten():
    """A replay writes the entries of the hit again, from states that are not exact."""

    def write(original: Callable) -> Callable:
        def everything(self: CacheKeys, *args: Any) -> None:
            kept, self.kept = self.kept, list(self.batch.starts)
            original(self, *args)
            self.kept = kept

        return everything

    return replaced(CacheKeys, "write", write)


def forgotten_words():
    """The first replayed token has no predecessors for Engram."""

    def before(original: Callable) -> Callable:
        def nothing(self: Prefill, position: int) -> Tensor:
            ids = original(self, position)
            return torch.full_like(ids, DEAD) if position == self.start else ids

        return nothing

    return replaced(Prefill, "before", before)


def floor_of_chunk():
    """Each chunk of the prompt takes its own first row for the floor."""

    def inputs(original: Callable) -> Callable:
        return lambda self, start, end, *, floor, kept: original(self, start, end, floor=start, kept=kept)

    return replaced(Prefill, "inputs", inputs)


fault = partial(Fault, probe=after_hit)

FAULTS = (
    fault(
        name="03.no_floor",
        kind={"en": "isolation", "zh": "隔离"},
        change={
            "en": "replayed rows read whole windows, before the first replayed row as well",
            "zh": "重放的行读取完整滑窗，连第一条重放行之前的行也读",
        },
        symptom={
            "en": "alone on the machine answers come closer to exact; in traffic they depend on whose rows lay in the "
            "page before",
            "zh": "单独运行时结果反而更接近精确值；有并发时，结果取决于这一页之前存过谁的行",
        },
        apply=no_floor,
    ),
    fault(
        name="03.overwritten",
        kind={"en": "ownership", "zh": "归属"},
        change={
            "en": "the replay writes the entries of the hit again, from truncated windows",
            "zh": "重放时用截断滑窗得到的状态重写命中部分的条目",
        },
        symptom={
            "en": "the error of one replay stays in the cache for as long as the conversation lives, and each hit adds "
            "to it",
            "zh": "一次重放的误差留在缓存里，伴随整个对话；每次命中再叠加一次",
        },
        apply=overwritten,
    ),
    fault(
        name="03.forgotten_words",
        kind={"en": "history", "zh": "历史"},
        change={
            "en": "the first replayed token has no predecessors for Engram's n-grams",
            "zh": "第一个重放 token 的 Engram n-gram 没有前文",
        },
        symptom={
            "en": "the first rows of each replay remember the wrong words; a cold prompt is right",
            "zh": "每次重放的头几行查到错误的词组；冷启动的提示词正常",
        },
        apply=forgotten_words,
    ),
    fault(
        name="03.floor_of_chunk",
        kind={"en": "scope", "zh": "范围"},
        change={
            "en": "every chunk of a prompt begins with empty windows, as if it were replayed",
            "zh": "提示词的每个分块都从空滑窗开始，仿佛都在重放",
        },
        symptom={
            "en": "short prompts are right; long ones change with the chunk size of the server",
            "zh": "短提示词正常；长提示词的结果随服务端的分块大小而变",
        },
        apply=floor_of_chunk,
    ),
)
