"""Lesson 09: two slips that change what is said and cost no speed, two that cost speed and change no word."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.config import ModelConfig
from minidsv41.course.sabotage import Fault
from minidsv41.model import Model
from minidsv41.model.dspark import DSpark
from minidsv41.ops import Batch
from minidsv41.replaced import replaced
from minidsv41.serve import speculative
from minidsv41.serve.prefill import prefill
from minidsv41.serve.scratch import ScratchKeys
from minidsv41.serve.speculative import Proposal, Sampling, accept, steps


def uncorrected_draft() -> AbstractContextManager[None]:
    """Drafts are drawn behind the Markov correction and verified as if there were none."""

    def proposes(original: Callable) -> Callable:
        def propose(model: Model, scratch, anchors: Tensor, sampling: list[Sampling]) -> Proposal:
            made = []

            def drafts(draft: Callable) -> Callable:
                return lambda *args, **kwargs: made.append(draft(*args, **kwargs)) or made[-1]

            with replaced(DSpark, "draft", drafts):
                found = original(model, scratch, anchors, sampling)
            pairs = zip(sampling, made[-1].base_logits, strict=True)
            return found._replace(p=torch.stack([s.distribution(rows) for s, rows in pairs]))

        return propose

    return replaced(speculative, "propose", proposes)


def whole_target() -> AbstractContextManager[None]:
    return replaced(speculative, "residual", lambda original: lambda target, draft: target)


def deaf_draft() -> AbstractContextManager[None]:
    """The draft's windows get no rows for tokens that a verify pass has read."""

    def verifies(original: Callable) -> Callable:
        def verify(model: Model, scratch, rows: list[Tensor]) -> tuple[Batch, list[Tensor]]:
            with replaced(DSpark, "remember", lambda remember: lambda *args, **kwargs: None):
                return original(model, scratch, rows)

        return verify

    return replaced(speculative, "verify", verifies)


def late_features() -> AbstractContextManager[None]:
    """Features are taken where a target layer ends, not where it begins."""

    def runs(original: Callable) -> Callable:
        def run(self: Model, layers: range, streams, ctx, record, features: list[Tensor]):
            features = list(features)
            for i in layers:
                streams, _ = original(self, range(i, i + 1), streams, ctx, record, [])
                if i in self.config.dspark_target_layer_ids:
                    features.append(streams.X.mean(1))
            return streams, features

        return run

    return replaced(Model, "run", runs)


@cache
def subject() -> tuple[Model, Tensor]:
    """An untrained toy and a prompt."""
    config = replace(ModelConfig.preset("toy"), sliding_window=8, index_topk=8)
    model = Model(config).initialise(torch.Generator().manual_seed(0)).cast(torch.float64)
    with torch.no_grad():
        model.mtp[-1].markov_head.head.weight.mul_(50)  # a correction that is felt
    return model, torch.randint(5, config.vocab_size, (12,), generator=torch.Generator().manual_seed(1))


def gained(temperature: float) -> tuple[list[int], Tensor]:
    """Tokens that come out, and the confidence logits [steps, block] behind them."""
    model, ids = subject()
    found = list(steps(model, ids, max_new=9, temperature=temperature, generator=torch.Generator().manual_seed(2)))
    return torch.cat([g.tokens for g in found]).tolist(), torch.stack([g.confidence for g in found[1:]])


def proposed() -> Tensor:
    """[block, V] the distributions that a proposal says its drafts came from."""
    model, ids = subject()
    store = Cache(model.config, dtype=model.dtype)
    state = store.new()
    prefill(model, store, state, ids)
    dice = Sampling(temperature=1.0, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return speculative.propose(model, ScratchKeys(store, [state]), ids[:1], [dice]).p[0]


def spoken(draws: int = 500) -> list[int]:
    """How often each of two words goes out, where the target says (0.7, 0.3) and the draft (0.5, 0.5)."""
    target, draft = torch.tensor([[0.7, 0.3]] * 2).double(), torch.tensor([[0.5, 0.5]]).double()
    dice = Sampling(temperature=1.0, generator=torch.Generator().manual_seed(4))
    first = [int(accept(target, draft, dice.draw(draft[0])[None], dice)[0]) for _ in range(draws)]
    return torch.bincount(torch.tensor(first), minlength=2).tolist()


FAULTS = (
    Fault(
        name="09.uncorrected_draft",
        kind={"en": "honesty", "zh": "无损性"},
        change={
            "en": "drafts are verified against the draft's distribution before the Markov correction",
            "zh": "验证时使用马尔可夫修正之前的草稿分布",
        },
        symptom={
            "en": "about as fast as before, and every greedy test passes; sampled text says too often what the "
            "correction likes",
            "zh": "速度几乎不变，所有贪心测试都通过；采样文本里，修正项偏爱的词出现得过多",
        },
        apply=uncorrected_draft,
        probe=proposed,
    ),
    Fault(
        name="09.whole_target",
        kind={"en": "honesty", "zh": "无损性"},
        change={
            "en": "a rejected draft is replaced from the whole target, not from the residual",
            "zh": "草稿被拒绝后从整个目标分布重新采样，而不是从剩余分布",
        },
        symptom={
            "en": "every draft is treated rightly; words that the draft likes come out too often",
            "zh": "每个草稿的取舍都正确；但草稿偏爱的词出现得过多",
        },
        apply=whole_target,
        probe=spoken,
    ),
    Fault(
        name="09.deaf_draft",
        kind={"en": "state", "zh": "状态"},
        change={
            "en": "the draft's windows are filled by the prompt and never by what was verified since",
            "zh": "草稿的滑窗只由提示词填充，之后验证过的 token 不再写入",
        },
        symptom={
            "en": "the text is right; the speed falls off behind the prompt, and nobody is told",
            "zh": "文本正确；离开提示词后速度逐渐下降，没有任何报错",
        },
        apply=deaf_draft,
        probe=lambda: gained(0.0),
    ),
    Fault(
        name="09.late_features",
        kind={"en": "off by one", "zh": "差一"},
        change={
            "en": "the draft gets the outputs of its target layers, not their inputs",
            "zh": "草稿读到的是目标层的输出，而不是输入",
        },
        symptom={
            "en": "the text is right; with released weights fewer drafts are kept than the authors report",
            "zh": "文本正确；用发布的权重时，被接受的草稿比作者报告的少",
        },
        apply=late_features,
    ),
)
