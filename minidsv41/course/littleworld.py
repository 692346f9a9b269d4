"""A language of three words in which a schedule can be judged quickly: on its speed, and on the text that comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 3
TARGET = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], dtype=torch.float64)
DRAFT = torch.tensor([[0.45, 0.35, 0.2], [0.75, 0.15, 0.1], [0.2, 0.05, 0.75]], dtype=torch.float64)
OVERLAP = torch.minimum(TARGET, DRAFT).sum(1)  # chance that a draft behind each word is kept

Speed = Callable[[int], float]
Lengths = Callable[[list[list[float]]], list[int]]  # chances [S][BLOCK] -> drafts to verify of each request


def night(rows: int) -> float:
    """Steps a second: the first draft is dear, the next ones are cheaper."""
    return 1 / (1.0, 1.5, 1.65, 1.8)[min(rows, 4) - 1]


def noon(rows: int) -> float:
    """Steps a second: twelve rows are as quick as one, and beyond them each costs its share."""
    return 1 / max(1.0, rows / 12)


def padded(rows: int) -> float:
    """Steps a second: rows are padded to multiples of twelve."""
    return 1 / (1 + 0.35 * (-(-rows // 12) - 1))


@dataclass(frozen=True)
class Score:
    """Tokens a second, and the p-value of a chi-square test: how likely an honest sampler is to be so far off."""

    tokens_per_second: float
    p_value: float

    @property
    def lossless(self) -> bool:
        return self.p_value > 0.001

    def __str__(self) -> str:
        text = "text unchanged" if self.lossless else "TEXT CHANGED"
        return f"{self.tokens_per_second:.2f} tokens/s, {text} (p = {self.p_value:.2g})"

    __repr__ = __str__


def drawn(p: Tensor, generator: torch.Generator) -> Tensor:
    """p [..., V] -> words [...]."""
    return torch.multinomial(p.reshape(-1, p.shape[-1]), 1, replacement=True, generator=generator).view(p.shape[:-1])


def drafts(anchors: Tensor, generator: torch.Generator) -> Tensor:
    """anchors [N, S] -> the anchor and BLOCK drafts behind it [N, S, 1 + BLOCK]."""
    words = [anchors]
    for _ in range(BLOCK):
        words.append(drawn(DRAFT[words[-1]], generator))
    return torch.stack(words, -1)


def kept(words: Tensor, lengths: Tensor, chance: Tensor) -> Tensor:
    """How many drafts are accepted [N, S] of the first lengths [N, S]; chance [N, S, BLOCK] uniform."""
    before, word = words[..., :-1], words[..., 1:]
    good = chance * DRAFT[before, word] < TARGET[before, word]
    return (good & (torch.arange(BLOCK) < lengths[..., None])).long().cumprod(-1).sum(-1)


def outcome(words: Tensor, lengths: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Verify -> accepted drafts [N, S], and the first two words of the text [N, S, 2], the second drawn later if the
    step gave but one."""
    chance = torch.rand(words[..., 1:].shape, generator=generator, dtype=torch.float64)
    count = kept(words, lengths, chance)
    last = words.gather(-1, count[..., None])[..., 0]
    rejected = (count < lengths)[..., None]
    left = (TARGET - DRAFT).clamp(min=0)[last]
    final = drawn(torch.where(rejected, left, TARGET[last]), generator)
    text = torch.cat([words[..., 1:], final[..., None]], -1).scatter(-1, count[..., None], final[..., None])
    second = torch.where(count == 0, drawn(TARGET[final], generator), text[..., 1])
    return count, torch.stack([text[..., 0], second], -1)


def p_value(anchors: Tensor, text: Tensor) -> float:
    """Chi-square test of the pairs text [..., 2] behind each anchor [...] against the target's own."""
    vocab = len(TARGET)
    seen = torch.bincount(((anchors * vocab + text[..., 0]) * vocab + text[..., 1]).flatten(), minlength=vocab**3)
    seen = seen.view(vocab, -1).double()
    expected = seen.sum(1, keepdim=True) * (TARGET[:, :, None] * TARGET[None]).view(vocab, -1)
    freedom = torch.tensor(vocab * (vocab**2 - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, ((seen - expected).square() / expected).sum() / 2))


def judge(plan: Lengths, steps_per_second: Speed, *, requests: int, samples: int = 3600, seed: int = 0) -> Score:
    """Run steps of `requests` at once until `samples` texts have begun. Raises ValueError for lengths out of range."""
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.randint(len(TARGET), (samples // requests, requests), generator=generator)
    words = drafts(anchors, generator)
    lengths = [checked(plan(chances), requests) for chances in OVERLAP[words[..., :-1]].tolist()]
    count, text = outcome(words, torch.tensor(lengths), generator)
    seconds = sum(1 / steps_per_second(requests + sum(chosen)) for chosen in lengths)
    return Score(float((count + 1).sum()) / seconds, p_value(anchors, text))


def checked(lengths: Any, requests: int) -> list[int]:
    lengths = [int(n) for n in lengths]
    if len(lengths) != requests or not all(0 <= n <= BLOCK for n in lengths):
        raise ValueError(f"lengths {lengths}: due are {requests} numbers from 0 to {BLOCK}")
    return lengths


def usual(seed: int = 1) -> list[float]:
    """Reach by position, averaged over other drafts than those that are judged: what a server saw yesterday."""
    generator = torch.Generator().manual_seed(seed)
    words = drafts(torch.randint(len(TARGET), (20_000, 1), generator=generator), generator)
    return OVERLAP[words[:, 0, :-1]].cumprod(-1).mean(0).tolist()
