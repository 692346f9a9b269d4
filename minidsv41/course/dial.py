"""The forgetting dial: one prompt asked with fewer and fewer entries, and what its last token still reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from minidsv41.course.reads import readings
from minidsv41.course.sparsity import selecting
from minidsv41.course.tasks import QUESTION, TOLD, page
from minidsv41.model import Model
from minidsv41.tokens import load_tokenizer
from minidsv41.train.recall import pieces

tokenizer = cache(load_tokenizer)


def word(token: int) -> str:
    return tokenizer().decode([token])


def often(times: int, between: int = 60) -> Tensor:
    """[T] ids: the fact told so many times, a stretch of a play, the question."""
    return torch.tensor(pieces(TOLD * times) + page(between) + pieces(QUESTION))


@dataclass(frozen=True)
class Answer:
    """With k entries a query: next [V] probabilities after the last token, and read [T], how many of the choices in
    force there hold each token. first: the first token of its window."""

    k: int
    next: Tensor
    read: Tensor
    first: int
    words: tuple[str, ...]

    def top(self, count: int) -> list[tuple[str, float]]:
        """The likeliest next tokens."""
        found = self.next.topk(count)
        return [(word(i).strip() or "↵", p) for p, i in zip(*(t.tolist() for t in found), strict=True)]

    @property
    def said(self) -> str:
        return self.top(1)[0][0]

    @property
    def forgotten(self) -> int:
        """Tokens before the window that no choice holds."""
        return int((self.read[: self.first] == 0).sum())


@torch.no_grad()
def ask(model: Model, ids: Tensor, ks: Sequence[int]) -> dict[int, Answer]:
    """One Answer for each k, which all queries of all layers are given; a k beyond the prompt is everything."""
    return {k: asked(model, ids, k) for k in ks}


def asked(model: Model, ids: Tensor, k: int) -> Answer:
    with selecting(model, k, len(ids)):
        trace = model.trace(ids)
        found = readings(model.config, trace, len(ids) - 1)
    read = torch.zeros(len(ids), dtype=torch.int64)
    for reading in found:
        if reading.chooser == reading.layer:
            read[reading.tokens()] += 1
    words = tuple(word(i).replace("\n", "↵") for i in ids.tolist())
    return Answer(k, trace["logits"][-1].softmax(-1), read, found[0].window[0], words)


def enough(answers: Mapping[int, Answer]) -> int:
    """The smallest k asked from which on every larger one gives the answer of the largest."""
    ks = sorted(answers)
    last = answers[ks[-1]].said
    for k in reversed(ks):
        if answers[k].said != last:
            break
        least = k
    return least


def told(answers: Mapping[int, Answer], k: int) -> str:
    """Two lines of HTML: what is said with k entries and with all, and what was forgotten."""
    now, dense = answers[k], answers[max(answers)]
    (said, p), (every, q) = now.top(1)[0], dense.top(1)[0]
    return (
        f"k = {min(k, len(now.words))}: {said!r} {p:.2f}; with every entry {every!r} {q:.2f}; "
        f"from k = {enough(answers)} on they agree<br>"
        f"{now.forgotten} of the {now.first} tokens before the window are read by no layer"
    )
