"""Lesson 01b: slips of those who keep a state instead of rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from minidsv41.course.sabotage import Fault
from minidsv41.families import GatedDeltaNet, State, delta
from minidsv41.replaced import replaced


def misplaced_decay() -> AbstractContextManager[None]:
    def printed(original: Callable) -> Callable:
        def recurrent(q, k, v, g, beta, S) -> tuple[Tensor, Tensor]:
            out, decay = [], delta.channels(g).exp()
            for t in range(len(q)):
                error = v[t] - torch.einsum("hk,hkv->hv", k[t], S)
                S = S * decay[t, :, :, None] + torch.einsum("hk,hv->hkv", k[t], beta[t, :, None] * error)
                out.append(torch.einsum("hk,hkv->hv", q[t], S))
            return torch.stack(out), S

        return recurrent

    return replaced(delta, "recurrent", printed)


def from_nothing() -> AbstractContextManager[None]:
    def fresh(original: Callable) -> Callable:
        return lambda q, k, v, g, beta, S, **size: original(q, k, v, g, beta, torch.zeros_like(S), **size)

    return replaced(delta, "chunked", fresh)


def matrix_alone() -> AbstractContextManager[None]:
    def partial(original: Callable) -> Callable:
        def copy(self: State) -> State:
            found = original(self)
            found.fixed.pop("conv", None)
            return found

        return copy

    return replaced(State, "copy", partial)


def no_fading() -> AbstractContextManager[None]:
    def kept(original: Callable) -> Callable:
        return lambda q, k, v, g, beta, S: original(q, k, v, torch.zeros_like(g), beta, S)

    return replaced(delta, "recurrent", kept)


def layer() -> tuple[GatedDeltaNet, Tensor]:
    """A small layer that forgets and stores unevenly, and 24 tokens."""
    dice = torch.Generator().manual_seed(0)
    net = GatedDeltaNet(hidden=16, key_heads=2, heads=4, key_dim=8, value_dim=8).double().requires_grad_(False)
    for p in net.parameters():
        if p.dim() > 1:
            p.copy_(torch.randn(p.shape, generator=dice, dtype=torch.float64) * p[0].numel() ** -0.5)
    return net, torch.randn(24, 16, generator=dice, dtype=torch.float64)


def served() -> Tensor:
    """A prompt of 16 in two pieces, a snapshot, and 8 tokens of decode behind it: what the layer gives [24, 16]."""
    net, x = layer()
    state = net.new()
    out = [net(x[:10], state), net(x[10:16], state)]
    state = state.copy()
    return torch.cat([*out, *(net(token, state) for token in x[16:].split(1))])


FAULTS = (
    Fault(
        name="01b.misplaced_decay",
        kind={"en": "wrong order", "zh": "次序错误"},
        change={
            "en": "decode predicts from the state before it fades",
            "zh": "decode 用衰减之前的状态做预测",
        },
        symptom={
            "en": "the prompt is right, decode drifts: each step takes away more than the faded memory holds",
            "zh": "prompt 部分正确，decode 逐步漂移：每一步减掉的都比衰减后的记忆里实有的多",
        },
        apply=misplaced_decay,
        probe=served,
    ),
    Fault(
        name="01b.from_nothing",
        kind={"en": "lost state", "zh": "状态丢失"},
        change={
            "en": "each piece of a prompt starts from an empty matrix",
            "zh": "prompt 的每一段都从空矩阵开始",
        },
        symptom={
            "en": "short prompts are right; one long enough to be cut in pieces has forgotten all but its last piece",
            "zh": "短 prompt 正常；长到需要分段时，只记得最后一段",
        },
        apply=from_nothing,
        probe=served,
    ),
    Fault(
        name="01b.matrix_alone",
        kind={"en": "half a snapshot", "zh": "快照不全"},
        change={
            "en": "a snapshot keeps the matrix and drops the last inputs of the convolution",
            "zh": "快照只存矩阵，漏掉卷积最近的几个输入",
        },
        symptom={
            "en": "a hit is wrong in the first three tokens behind it, and what they stored stays wrong",
            "zh": "命中之后的前三个 token 出错，它们写进去的内容也一直是错的",
        },
        apply=matrix_alone,
        probe=served,
    ),
    Fault(
        name="01b.no_fading",
        kind={"en": "dropped term", "zh": "漏掉一项"},
        change={"en": "decode does not let the state fade", "zh": "decode 时状态不衰减"},
        symptom={
            "en": "nothing breaks at once; old content outweighs new content the longer an answer gets",
            "zh": "一时看不出问题；回答越长，旧内容越压过新内容",
        },
        apply=no_fading,
        probe=served,
    ),
)
