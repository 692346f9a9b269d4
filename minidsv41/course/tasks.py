"""Six prompts for the sparsity laboratory: five whose answer is known, and a page of a play."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minidsv41 import paths
from minidsv41.tokens import load_tokenizer
from minidsv41.train.recall import CUE, pieces, vocabulary

LENGTH = 256
TOLD, QUESTION, OTHER = (
    "\nThe ring of Juliet is dark gold.\n",
    "\nThe ring of Juliet is",
    "\nThe ring of Juliet is holy water.\n",
)


@dataclass(frozen=True)
class Task:
    """A prompt ids [T].

    asked: the queries to score, where the five have something to look up. told: for the last query, the tokens that
    tell its answer, by place in the prompt. answers: what may follow the last token; none where nothing is known.
    """

    ids: Tensor
    asked: range
    told: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()

    @property
    def said(self) -> str:
        """The known answers as text."""
        return " or ".join(load_tokenizer().decode([i]).strip() for i in self.answers)


def page(length: int) -> list[int]:
    """The first `length` tokens of Hamlet's speech."""
    text = (paths.text_dir() / "plays" / "hamlet.txt").read_text(encoding="utf-8")
    return pieces(text[text.index("To be, or not to be") :][: 5 * length])[:length]


def asked(*parts: list[int] | str) -> Task:
    """Text with TOLD and perhaps OTHER in it, cut so that QUESTION ends it."""
    ids, told, question = [], {}, pieces(QUESTION)
    for part in parts:
        if isinstance(part, str):
            told[len(ids) + len(question)] = pieces(part)[len(question)]
            part = pieces(part)
        ids += part
    ids = ids[: LENGTH - len(question)] + question
    return Task(torch.tensor(ids), range(LENGTH - 1, LENGTH), tuple(told), tuple(told.values()))


def again(span: list[int], before: list[int], between: list[int], tail: int) -> Task:
    """A span, text, and the span's first `tail` tokens once more."""
    ids = before + span + between
    ids = ids[: LENGTH - tail] + span[:tail]
    told = len(before) + tail
    return Task(torch.tensor(ids), range(LENGTH - tail + CUE, LENGTH), (told,), (span[tail],))


def periodic(span: list[int]) -> Task:
    """A span repeated to the end; each earlier round tells what comes."""
    ids = (span * LENGTH)[:LENGTH]
    told = range(LENGTH % len(span), LENGTH, len(span))
    return Task(torch.tensor(ids), range(LENGTH // 2, LENGTH), tuple(told), (ids[told[0]],))


def tasks(*, seed: int = 0) -> dict[str, Task]:
    """needle: told once, mid-text. copy: a span of random words, later again. sink: told by the first tokens of all.
    periodic: a span again and again. tie: told twice, differently. text: a page, nothing planted."""
    text, draw = page(LENGTH), np.random.default_rng(seed)
    words = draw.permutation(vocabulary()["all"]).tolist()
    return {
        "needle": asked(text[:40], TOLD, text[40:]),
        "copy": again(words[:24], text[:20], text[20:], 20),
        "sink": asked(TOLD, text),
        "periodic": periodic(words[24:36]),
        "tie": asked(text[:40], TOLD, text[40:110], OTHER, text[110:]),
        "text": Task(torch.tensor(text), range(LENGTH // 2, LENGTH)),
    }
