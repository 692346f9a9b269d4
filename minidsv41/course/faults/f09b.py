"""Lesson 09b: slips of schedules and of hand-overs, none of which a trace of the model or a greedy test shows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.config import ModelConfig
from minidsv41.course import littleworld, twowords
from minidsv41.course.sabotage import Fault, replaced
from minidsv41.course.scheduling import best_of_all
from minidsv41.model import Model
from minidsv41.model.dspark import Draft, DSpark
from minidsv41.serve import handoff, schedule
from minidsv41.serve.link import pipe
from minidsv41.serve.prefill import prefill
from minidsv41.serve.scratch import ScratchKeys
from minidsv41.serve.speculative import Sampling, propose

LENGTH = 40


@cache
def model() -> Model:
    """An untrained toy in float64."""
    return Model(ModelConfig.preset("toy")).initialise(torch.Generator().manual_seed(0)).cast(torch.float64)


def fed() -> tuple[Cache, State]:
    held = Cache(model().config, dtype=torch.float64)
    state = held.new()
    ids = torch.randint(5, model().config.vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(1))
    prefill(model(), held, state, ids)
    return held, state


@torch.no_grad()
def drafted(held: Cache, state: State) -> list[float]:
    """Confidence of a block behind what was fed, rounded."""
    found = propose(model(), ScratchKeys(held, [state]), torch.tensor([7]), [Sampling()])
    return [round(float(c), 9) for c in found.confidence[0]]


def two_words() -> list[float]:
    """What comes out where the package schedules two drafts of two words."""
    return [float(p) for p in twowords.emitted(lambda *given, **most: schedule.verify_lengths(*given, **most))]


def busy() -> list[int]:
    """Verify lengths of eight sure requests at noon."""
    sure = torch.full((8, littleworld.BLOCK), 0.9, dtype=torch.float64)
    return schedule.verify_lengths(sure, littleworld.noon, most=[littleworld.BLOCK] * 8)


def confidence() -> list[float]:
    return drafted(*fed())


def after_handover() -> list[float]:
    """Confidence of the first block on the other side."""
    here, there = pipe()
    held, state = fed()
    other = Cache(model().config, dtype=torch.float64)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(handoff.send, here, held, state, model="m", token=7)
        got = handoff.receive(there, other, model="m")
        sent.result()
    return drafted(other, got.state)


def looked_everywhere():
    return replaced(schedule, "verify_lengths", lambda original: best_of_all)


def alone():
    def plan(original: Callable) -> Callable:
        def each(confidence: Tensor, sps: Callable, *, most: list[int], **more: Any) -> list[int]:
            return [original(c[None], sps, most=[m], **more)[0] for c, m in zip(confidence, most, strict=True)]

        return each

    return replaced(schedule, "verify_lengths", plan)


def late_confidence():
    def draft(original: Callable) -> Callable:
        def late(self: DSpark, *args: Any, **more: Any) -> Draft:
            found = original(self, *args, **more)
            return found._replace(confidence=self.confidence(found.hidden, found.tokens))

        return late

    return replaced(DSpark, "draft", draft)


def lost_rings():
    def sections(original: Callable) -> Callable:
        return lambda cache, state, *, draft, replay=None: original(cache, state, draft=False, replay=replay)

    return replaced(handoff, "parts", sections)


def shifted_block():
    def positions(original: Callable) -> Callable:
        def behind(self: DSpark, anchor: Tensor, seq: Tensor, last: Tensor, *args: Any, **more: Any) -> Tensor:
            return original(self, anchor, seq, last + self.config.dspark_block_size, *args, **more)

        return behind

    return replaced(DSpark, "hidden", positions)


FAULTS = (
    Fault(
        name="09b.looked_everywhere",
        kind={"en": "distribution", "zh": "分布"},
        change={
            "en": "the verify length is the best of all, not the first behind which nothing is gained",
            "zh": "验证长度取全局最优，而不是在第一个没有收益处停下",
        },
        symptom={
            "en": "a little quicker; words that promise easy successors come out too often; greedy text is the same",
            "zh": "稍快一点；后文好猜的词出现得过多；贪心输出不变",
        },
        apply=looked_everywhere,
        probe=two_words,
    ),
    Fault(
        name="09b.late_confidence",
        kind={"en": "distribution", "zh": "分布"},
        change={
            "en": "each confidence is computed with the token drawn there, not with the one before",
            "zh": "置信度用该位置抽出的 token 计算，而不是用前一个",
        },
        symptom={
            "en": "even early stop now decides about a draft by what it is",
            "zh": "连提前停止也会根据草稿是什么词来决定取舍",
        },
        apply=late_confidence,
        probe=confidence,
    ),
    Fault(
        name="09b.alone",
        kind={"en": "load", "zh": "负载"},
        change={
            "en": "each request is planned as if its rows were the batch",
            "zh": "每个请求都按独占批次来计划",
        },
        symptom={
            "en": "quick with one user; with many, slower than without drafts",
            "zh": "一个用户时很快；用户多时比不用草稿还慢",
        },
        apply=alone,
        probe=busy,
    ),
    Fault(
        name="09b.lost_rings",
        kind={"en": "hand-over", "zh": "交接"},
        change={
            "en": "DSpark's window rows stay behind, and the manifest says that they came",
            "zh": "DSpark 的滑窗行没有随行，而清单声称已送达",
        },
        symptom={
            "en": "every text is right; the first steps after a hand-over accept fewer drafts, until the rings fill",
            "zh": "输出全对；交接后的头几步接受的草稿变少，直到环形缓冲重新填满",
        },
        apply=lost_rings,
        probe=after_handover,
    ),
    Fault(
        name="09b.shifted_block",
        kind={"en": "hand-over", "zh": "交接"},
        change={
            "en": "this side counts a block of look-ahead slots into the length that it drafts behind",
            "zh": "这一侧把预留的草稿槽位也算进了长度，草稿位置整体后移",
        },
        symptom={
            "en": "every text is right; drafts stand five positions too far and are accepted less",
            "zh": "输出全对；草稿位置偏后五位，接受率下降",
        },
        apply=shifted_block,
        probe=confidence,
    ),
)
