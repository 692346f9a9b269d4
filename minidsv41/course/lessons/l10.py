"""Lesson 10: how much of a conversation a store finds, a hit of odd length, and whose windows to give up."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from minidsv41.cache.store import Identity, Store
from minidsv41.config import ModelConfig
from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.lessons.victim10 import VICTIM
from minidsv41.model.compressor import Compressor
from minidsv41.model.keys import SequenceKeys
from minidsv41.ops import Batch

PAGE = 64
TOY = ModelConfig.preset("toy")
OWNER = next(owner for owner in TOY.kv_source_layer_ids if TOY.ratio(owner) == 2)


def found(stored: int, shared: int) -> int:
    """Tokens that a real store gives of a prompt that shares `shared` tokens with one of `stored` tokens."""
    old, new = list(range(stored)), [*range(shared), *range(10**6, 10**6 + PAGE)]
    with TemporaryDirectory() as folder, Store(folder, Identity("m", "l", PAGE, 8), max_bytes=1 << 20) as store:
        store.put(old, lambda page: bytes(8))
        return PAGE * len(store.match(new))


def hit(stored: int, shared: int) -> int:
    return min(stored, shared) // 64 * 64


HIT = Exercise(
    name="10.hit",
    inputs=lambda: [
        dict(stored=s, shared=n)
        for s, n in [(0, 0), (63, 63), (64, 64), (130, 65), (200, 127), (200, 128), (200, 199), (1000, 641)]
    ],
    reference=found,
    solution=hit,
    why={
        "en": "A page is found whole or not at all: its key hashes all tokens up to its end. So a hit ends at the last "
        "page boundary before the first token that differs, and up to 63 equal tokens are lost with it.",
        "zh": "一页要么整页命中，要么不命中：它的键是到页尾为止所有 token 的哈希。"
        "所以命中止于第一个不同 token 之前的最后一个页边界，最多有 63 个相同的 token 一起丢失。",
    },
    hints=(
        {"en": "What is the unit in which a store finds anything?", "zh": "存储以什么为单位来查找？"},
        {
            "en": "The page that holds the first different token is another page.",
            "zh": "含有第一个不同 token 的那一页，已是另一页。",
        },
        {"en": "min(stored, shared) // 64 * 64", "zh": "min(stored, shared) // 64 * 64"},
    ),
    mistakes=(
        Mistake(
            name="token by token",
            answer=lambda stored, shared: min(stored, shared),
            thought={
                "en": "You count every equal token. The last page of them is not complete, or not equal to its end.",
                "zh": "你把每个相同的 token 都算上了。最后一页并不完整，或者并非整页相同。",
            },
        ),
        Mistake(
            name="pairs",
            answer=lambda stored, shared: min(stored, shared) // 2 * 2,
            thought={
                "en": "You round down to pairs, the unit of compression. The store's unit is a page of 64 tokens.",
                "zh": "你按压缩的单位（一对 token）取整。存储的单位是 64 个 token 的页。",
            },
        ),
        Mistake(
            name="pages",
            answer=lambda stored, shared: min(stored, shared) // 64,
            thought={
                "en": "You count pages. Asked are the tokens in them.",
                "zh": "你数的是页。问的是这些页里的 token 数。",
            },
        ),
        Mistake(
            name="the page begun",
            answer=lambda stored, shared: -(-min(stored, shared) // 64) * 64,
            thought={
                "en": "You count the page that was begun. It holds tokens that differ, or was never stored.",
                "zh": "你把只开了头的页也算上了。它含有不同的 token，或者从未存下。",
            },
        ),
    ),
)


@cache
def owner() -> Compressor:
    """The toy's first owner of pairs, with random weights."""
    compressor = Compressor(TOY, OWNER).to(torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in compressor.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return compressor


@torch.no_grad()
def pool(x: Tensor) -> Tensor:
    """x [n, C] -> entries [n // 2, D] of its rows, two by two; a last single row waits."""
    batch = Batch.ragged([torch.zeros(len(x), dtype=torch.int64)], [0])
    return owner()(x, batch, SequenceKeys(TOY, batch))[2]


def conversations(hit: int, length: int) -> tuple[Tensor, Tensor]:
    """Rows of an old conversation and of a new one [length, C], whose first `hit` tokens are the same."""
    generator = torch.Generator().manual_seed(1000 * hit + length)
    old, new = torch.randn(2, length, TOY.hidden_size, generator=generator, dtype=torch.float64)
    new[:hit] = old[:hit]
    return old, new


def outcome(answer: Callable[..., Any], *, hit: int, length: int) -> tuple[int, tuple[int, ...]]:
    """Tokens that an answer runs, and the entries in which it is wrong."""
    old, new = conversations(hit, length)
    ran = []

    def run(first: int, end: int) -> Tensor:
        ran.append(end - first)
        return new[first:end].clone()

    entries, truth = answer(pool(old), hit, run, pool, length), pool(new)
    if not isinstance(entries, Tensor):
        return entries
    if entries.shape != truth.shape:
        raise ValueError(f"{len(entries)} entries for {length} tokens: due are {len(truth)}")
    wrong = ~((entries - truth).abs().amax(-1) <= 1e-9)  # a NaN is wrong too
    return sum(ran), tuple(wrong.nonzero().flatten().tolist())


def resume(stored: Tensor, hit: int, run: Callable, pool: Callable, length: int) -> Tensor:
    whole = hit // 2
    return torch.cat([stored[:whole], pool(run(2 * whole, length))])


def forgotten(stored: Tensor, hit: int, run: Callable, pool: Callable, length: int) -> Tensor:
    new = run(hit, length)
    nobody = new.new_zeros(hit % 2, new.shape[1])
    return torch.cat([stored[: hit // 2], pool(torch.cat([nobody, new]))])


def shifted(stored: Tensor, hit: int, run: Callable, pool: Callable, length: int) -> Tensor:
    own = torch.cat([stored[: hit // 2], pool(run(hit, length))])
    return torch.cat([own, stored[len(own) :]])[: length // 2]


def leaking(stored: Tensor, hit: int, run: Callable, pool: Callable, length: int) -> Tensor:
    whole = (hit + 1) // 2
    return torch.cat([stored[:whole], pool(run(2 * whole, length))])


def cold(stored: Tensor, hit: int, run: Callable, pool: Callable, length: int) -> Tensor:
    return pool(run(0, length))


def paged(stored: Tensor, hit: int, run: Callable, pool: Callable, length: int) -> Tensor:
    whole = hit // 64 * 32
    return torch.cat([stored[:whole], pool(run(2 * whole, length))])


RESUME = Exercise(
    name="10.resume",
    inputs=lambda: [dict(hit=h, length=n) for h, n in [(6, 10), (7, 10), (1, 6), (9, 13), (66, 70), (67, 73), (0, 4)]],
    reference=lambda hit, length: (length - hit // TOY.ratio(OWNER) * TOY.ratio(OWNER), ()),
    use=outcome,
    versus={
        "en": "you get {value}, the package {right} (tokens run, entries that are wrong)",
        "zh": "你得到 {value}，代码库得到 {right}（运行的 token 数，错误的条目）",
    },
    solution=resume,
    why={
        "en": "Entries of whole pairs are kept. At odd H the pair of token H - 1 was still open: of it nothing is "
        "stored, or something that has the old token H in it. So token H - 1 runs once more, or its half must have "
        "been saved beside the pages.",
        "zh": "完整压缩组的条目可以保留。H 为奇数时，token H-1 所在的压缩组尚未完成：要么什么都没存，"
        "要么存下的条目混有旧的 token H。所以 token H-1 要再运行一次，或者它那一半必须与页一起保存。",
    },
    hints=(
        {"en": "Which entries have only shared tokens in them?", "zh": "哪些条目只含共享的 token？"},
        {
            "en": "At odd H, who is the partner of token H, and where are its content and gate?",
            "zh": "H 为奇数时，token H 的同伴是谁？它的内容和门控在哪里？",
        },
        {
            "en": "Keep H // 2 entries and run from token 2 · (H // 2) on.",
            "zh": "保留 H // 2 条，从 token 2·(H // 2) 开始运行。",
        },
    ),
    mistakes=(
        Mistake(
            name="the forgotten open pair",
            answer=forgotten,
            thought={
                "en": "The forgotten open pair: at odd H the first new token completes a pair whose other half you do "
                "not have. One entry is wrong, and no later step ever mends it.",
                "zh": "被遗忘的未完成压缩组：H 为奇数时，第一个新 token 要补全一个压缩组，而你没有它的另一半。"
                "一条条目错了，此后没有任何一步会修正它。",
            },
        ),
        Mistake(
            name="pairs that begin at the hit",
            answer=shifted,
            thought={
                "en": "Your pairs begin at token H. Pairs are counted from token 0: at odd H all of yours are shifted.",
                "zh": "你从 token H 开始配对。压缩组从 token 0 数起：H 为奇数时，你的每一组都错开了一位。",
            },
        ),
        Mistake(
            name="an entry with the old token in it",
            answer=leaking,
            thought={
                "en": "You keep the entry that lies across the hit. The old token H is half of it: something that this "
                "user may never have written.",
                "zh": "你保留了跨越命中点的条目。它的一半是旧的 token H：可能是这位用户从未写过的内容。",
            },
        ),
        Mistake(
            name="everything again",
            answer=cold,
            thought={
                "en": "Right entries, but you run the whole prompt: nothing of the hit is used.",
                "zh": "条目正确，但你重跑了整个提示词：命中毫无用处。",
            },
        ),
        Mistake(
            name="back to the page",
            answer=paged,
            thought={
                "en": "Right entries, but you go back to the last page of 64. Here every whole pair can be kept.",
                "zh": "条目正确，但你退回到了 64 个 token 的页边界。这里每个完整的压缩组都可以保留。",
            },
        ),
    ),
)

EXERCISES = (HIT, RESUME, VICTIM)
