"""Text with things to look up earlier in it: facts and copied spans, at distances far beyond the windows.

What is planted is drawn from the tokenizer's words: no n-gram of the text tells it, only the earlier place does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from minidsv41.tokens import load_tokenizer
from minidsv41.train.data import Batches

FORMS = ("english", "python", "chinese", "span")
SHARES = (0.3, 0.15, 0.15, 0.4)  # of what is planted
NOUNS = ("key", "ring", "sword", "horse")
PLANTED = 0.6  # share of a sequence; the rest is text
SPAN = range(8, 25)  # tokens of a copied span
CUE = 2  # of them that tell which span comes back
HELD_OUT = 5  # every fifth name is asked only in tests
EDGES = (32, 64, 128, 256, 512)  # distances are counted up to each of these, and beyond the last


class Item(NamedTuple):
    """Tokens that occur twice, and which of them the earlier place tells."""

    tokens: list[int]
    answer: list[bool]


class Sequences(NamedTuple):
    """tokens int64 [B, T + 1]; distance int64 [B, T + 1]: from each answer back to the place that tells it, else 0."""

    tokens: Tensor
    distance: Tensor

    @property
    def answers(self) -> Tensor:
        """bool [B, T] which of the targets tokens[:, 1:] can be looked up."""
        return self.distance[:, 1:] > 0


@lru_cache
def vocabulary() -> dict[str, np.ndarray]:
    """Token ids of the words and characters that facts are made of; `any` is what spans are made of."""
    tokenizer = load_tokenizer()
    texts = {i: tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())}
    patterns = {"name": " [A-Z][a-z]{2,}", "word": " [a-z]{3,}", "han": "[\u4e00-\u9fff]", "any": "[^\ufffd]+"}
    return {k: np.array([i for i, text in texts.items() if re.fullmatch(p, text)]) for k, p in patterns.items()}


@lru_cache
def pieces(text: str) -> list[int]:
    return load_tokenizer().encode(text, add_special_tokens=False).ids


@dataclass(frozen=True)
class Lookups:
    """Endless sequences of `length` targets; those of `step` depend on (seed, step) alone.

    text int64 [N]: the stream that they are planted into; held_out: facts about names that training never asks for.
    """

    text: np.ndarray
    _: KW_ONLY
    length: int
    seed: int
    forms: tuple[str, ...] = FORMS
    held_out: bool = False

    @cached_property
    def words(self) -> dict[str, np.ndarray]:
        """`vocabulary`, with the names of this side: English, Python and Chinese ones."""
        v = vocabulary()
        names = {"english": np.concatenate([v["name"], v["word"]]), "python": v["word"], "chinese": v["han"]}
        return v | {form: ids[(ids % HELD_OUT == 0) == self.held_out] for form, ids in names.items()}

    def item(self, form: str, draw: np.random.Generator) -> Item:
        """One fact, or one span of random tokens."""
        words = self.words
        if form == "span":
            tokens = draw.choice(words["any"], draw.integers(SPAN.start, SPAN.stop)).tolist()
            return Item(tokens, [i >= CUE for i in range(len(tokens))])
        name = int(draw.choice(words[form]))
        a, b = draw.choice(words["han" if form == "chinese" else "word"], 2).tolist()
        before, middle, between, end = {
            "english": (f"\nThe {NOUNS[draw.integers(len(NOUNS))]} of", " is", "", ".\n"),
            "python": ("\nif", ": return", ",", "\n"),
            "chinese": ("\n", "之酒在", "", "。\n"),
        }[form]
        head, gap, tail = [*pieces(before), name, *pieces(middle)], pieces(between), pieces(end)
        known = [False] * len(head) + [True] + [False] * len(gap) + [True] + [False] * len(tail)
        return Item([*head, a, *gap, b, *tail], known)

    def items(self, draw: np.random.Generator) -> list[Item]:
        """What is planted into one sequence; no name is used twice."""
        shares = np.array([SHARES[FORMS.index(form)] for form in self.forms])
        found: dict[tuple, Item] = {}
        room = int(PLANTED * self.length)
        while True:
            item = self.item(draw.choice(self.forms, p=shares / shares.sum()), draw)
            room -= 2 * len(item.tokens)
            if room < 0:
                return list(found.values())
            found[tuple(item.tokens[: item.answer.index(True)])] = item

    def sequence(self, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and distances [T + 1]: a stretch of text, cut at random places, in which each item stands twice."""
        items = self.items(draw)
        order = draw.permutation(np.repeat(np.arange(len(items)), 2))
        left = self.length + 1 - 2 * sum(len(item.tokens) for item in items)
        cuts = np.sort(draw.integers(0, left + 1, len(order)))
        start = draw.integers(len(self.text) - left)
        tokens, distance, places = [], [], {}
        for i, a, b in zip([*order, None], [0, *cuts], [*cuts, left], strict=True):
            tokens += self.text[start + a : start + b].tolist()
            distance += [0] * (b - a)
            if i is None:
                return np.array(tokens), np.array(distance)
            back = len(tokens) - places.setdefault(i, len(tokens))
            tokens += items[i].tokens
            distance += [back * known for known in items[i].answer]

    def __call__(self, count: int, step: int) -> Sequences:
        """`count` sequences."""
        draw = np.random.default_rng((self.seed, step, self.length))
        tokens, distance = zip(*(self.sequence(draw) for _ in range(count)), strict=True)
        return Sequences(torch.from_numpy(np.stack(tokens)), torch.from_numpy(np.stack(distance)))


@dataclass(frozen=True)
class Mixed:
    """Batches of `text` in which the last `share` sequences are `lookups`, whose answers weigh `weight`, not 1."""

    text: Batches
    lookups: Lookups
    _: KW_ONLY
    share: int
    weight: float

    def __call__(self, step: int, device: str = "cpu") -> tuple[Tensor, Tensor | None]:
        """tokens [B, T + 1] and the weight [B, T] of each target; None if all weigh the same."""
        tokens = self.text(step)
        if not self.share:
            return tokens.to(device), None
        asked = self.lookups(self.share, step)
        weight = torch.ones(tokens[:, 1:].shape)
        weight[-self.share :][asked.answers] = self.weight
        return torch.cat([tokens[: -self.share], asked.tokens]).to(device), weight.to(device)


@torch.no_grad()
def recall(logits: Callable[[Tensor], Tensor], asked: Sequences, *, batch: int = 16) -> dict[str, float]:
    """Share of answer tokens that get the highest logit: `recall`, and by distance; `nats`, their mean -ln p.

    logits: tokens [B, T] -> [B, T, V].
    """
    right, nats = [], []
    for tokens, known in zip(asked.tokens.split(batch), asked.answers.split(batch), strict=True):
        found, target = logits(tokens[:, :-1]).cpu()[known], tokens[:, 1:][known]
        right.append(found.argmax(-1) == target)
        nats.append(F.cross_entropy(found.float(), target, reduction="none"))
    hit, distance = torch.cat(right).double(), asked.distance[:, 1:][asked.answers]
    result = {"recall": hit.mean().item(), "nats": torch.cat(nats).double().mean().item()}
    for low, high in zip((0, *EDGES), (*EDGES, None), strict=True):
        here = (distance > low) & (distance <= (high or distance.max()))
        if here.any():
            result[f"{low + 1}-{high}" if high else f"over {low}"] = hit[here].mean().item()
    return result
