"""Text with things to look up earlier in it: facts and copied spans, at distances far beyond the windows.

No n-gram of the text tells what was planted, only the earlier place does. The words are few and each is one token: a
row of 64 numbers has to hold what it is found by and what it says, and in four bits each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
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
NAMES = (
    " Caesar Brutus Romeo Capulet Hamlet Cassius Antony Macbeth Gloster Juliet Antonio Tybalt Lear Edmund Bassanio Kent"
    " Horatio Paris Banquo Laertes Polonius Toby Montague Edgar Malvolio Cordelia Portia Regan Ophelia Guildenstern"
    " Goneril Casca Macduff Lawrence Titinius Launcelot Lucius England France Venice Rome Python king queen prince duke"
    " lord lady maid boy child son daughter mother father brother sister friend enemy servant slave knave fool tyrant"
    " devil spirit monster villain gentleman husband wife judge nurse people"
)
FIRST = (
    " dark black red sweet soft cold hot cruel gentle bold brave deep high heavy holy wild strange poor rich great "
    "noble false true honest sad merry dead young fair foul wise secret"
)
SECOND = (
    " gold lead blood fire water earth air wood flesh bones tears thunder poison paper music sleep death love grief"
    " sorrow honour mercy justice night day sun moon sea heaven hell dream crown"
)
HAN_NAMES, HAN_FIRST, HAN_SECOND = (
    "王李杜陵商公君客子女军舟马楼台门城宫汉州",
    "白青黄明空清寒深远孤独新旧老高古",
    "山月风云水花雨雪草树石玉金沙叶梦",
)
PLANTED = 0.8  # share of a sequence; the rest is text
SPAN = range(8, 25)  # tokens of a copied span
NEAREST = 0.05  # share of a sequence; how far apart the two places are drawn, evenly in its logarithm, from here to 1
CUE = 2  # of them that tell which span comes back
SHORT = 64  # targets of a sequence of repeats
PHASES = 0.1, 0.4  # shares of the training after which repeats end, and sequences of half the length
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
    """Token ids of what facts are made of, by list: those that are one token; `all` together make the spans."""
    english = {"names": NAMES, "first": FIRST, "second": SECOND}
    words = {kind: [f" {word}" for word in text.split()] for kind, text in english.items()}
    words |= {"han_names": HAN_NAMES, "han_first": HAN_FIRST, "han_second": HAN_SECOND}
    ids = {kind: [pieces(word) for word in chosen] for kind, chosen in words.items()}
    single = {kind: np.array([i[0] for i in found if len(i) == 1]) for kind, found in ids.items()}
    return single | {"all": np.concatenate(list(single.values()))}


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
        """`vocabulary`, with the names of this side only."""
        v = vocabulary()
        side = {k: v[k][(np.arange(len(v[k])) % HELD_OUT == 0) == self.held_out] for k in ("names", "han_names")}
        return v | side

    def item(self, form: str, draw: np.random.Generator) -> Item:
        """One fact, or one span of random words."""
        words = self.words
        if form == "span":
            tokens = draw.choice(words["all"], draw.integers(SPAN.start, SPAN.stop)).tolist()
            return Item(tokens, [i >= CUE for i in range(len(tokens))])
        han = "han_" if form == "chinese" else ""
        name, a, b = (int(draw.choice(words[han + kind])) for kind in ("names", "first", "second"))
        before, middle, between, end = {
            "english": (f"\nThe {NOUNS[draw.integers(len(NOUNS))]} of", " is", "", ".\n"),
            "python": ("\nif", ": return", ",", "\n"),
            "chinese": ("\n", "之家在", "", "。\n"),
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
        first = draw.random(len(items))
        again = first + np.exp(draw.uniform(np.log(NEAREST), 0, len(items)))
        order = np.argsort(np.concatenate([first, again])) % len(items)
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

    def repeats(self, count: int, step: int) -> Sequences:
        """`count` sequences of SHORT targets, each one span of random words again and again."""
        draw = np.random.default_rng((self.seed, step, SHORT))
        sizes = draw.integers(SPAN.start, SPAN.stop, (count, 1))
        at, spans = np.arange(SHORT + 1), draw.choice(self.words["all"], (count, SPAN.stop))
        tokens, distance = np.take_along_axis(spans, at % sizes, 1), np.where(at >= sizes + CUE, sizes, 0)
        return Sequences(torch.from_numpy(tokens), torch.from_numpy(distance))


@dataclass(frozen=True)
class Mixed:
    """Batches of `text` in which the last `share` sequences are `lookups`: there only answers count, `weight`.

    What the network is to learn grows over `steps` (0: nothing grows), with as many tokens a step: short
    repeats, without text; then sequences of half the length; then of all of it. See PHASES.
    """

    text: Batches
    lookups: Lookups
    _: KW_ONLY
    share: int
    weight: float
    steps: int = 0

    def __call__(self, step: int, device: str = "cpu") -> tuple[Tensor, Tensor | None]:
        """tokens [B, T + 1] and the weight [B, T] of each target; None if all weigh the same."""
        tokens, length = self.text(step), self.lookups.length
        if not self.share:
            return tokens.to(device), None
        tokens, done = tokens[: -self.share], step / self.steps if self.steps else 1.0
        if done < PHASES[0]:
            asked = self.lookups.repeats(len(self.text.starts(step)) * length // SHORT, step)
            return asked.tokens.to(device), asked.answers.float().to(device)
        parts = 2 if done < PHASES[1] else 1
        tokens = tokens.unfold(1, length // parts + 1, length // parts).flatten(0, 1)
        asked = replace(self.lookups, length=length // parts)(self.share * parts, step)
        weight = torch.cat([torch.ones(tokens[:, 1:].shape), self.weight * asked.answers])
        return torch.cat([tokens, asked.tokens]).to(device), weight.to(device)


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
