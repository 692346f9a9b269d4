"""Text as training and validation tokens: documents, streams, batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from minidsv41 import paths
from minidsv41.tokens import load_tokenizer

KINDS = ("plays", "poems", "python")
HELD_OUT = (5, 12)  # document i of its kind, in file order, is for validation when i % 12 == 5
BOS, EOS, PAD = 0, 1, 2


@dataclass(frozen=True)
class Document:
    """One play, poem or module."""

    kind: str
    text: str


def documents(folder: Path) -> list[Document]:
    """All documents under `folder` in file order, which is fixed. Raises DataNotFound if a kind is missing."""
    found = []
    for kind in KINDS:
        files = sorted((folder / kind).glob("*.txt"), key=lambda path: path.name)
        if not files:
            raise paths.DataNotFound(f"{folder / kind}: no *.txt files; text of the kinds {', '.join(KINDS)} is needed")
        for path in files:
            text = path.read_bytes().decode("utf-8")
            parts = text.removesuffix("%\n").split("%\n") if kind == "poems" else [text]
            found += [Document(kind, part) for part in parts]
    return found


def split(found: list[Document]) -> tuple[list[Document], list[Document]]:
    """Training and validation documents: whole documents, of every kind."""
    train, validation = [], []
    for kind in KINDS:
        for i, document in enumerate(d for d in found if d.kind == kind):
            (validation if i % HELD_OUT[1] == HELD_OUT[0] else train).append(document)
    return train, validation


@dataclass(frozen=True)
class Stream:
    """Documents as one token sequence: bos, text, eos, bos, text, eos, …

    `tokens` int64 [N]; `text_bytes` UTF-8 bytes of the text in it.
    """

    tokens: np.ndarray
    text_bytes: int

    @property
    def scored(self) -> np.ndarray:
        """bool [N]: every text token and every eos is predicted and scored once; bos is given."""
        return self.tokens != BOS


def stream(chosen: list[Document], tokenizer: Tokenizer) -> Stream:
    texts = [d.text for d in chosen]
    pieces = [[BOS, *encoding.ids, EOS] for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    return Stream(np.concatenate(pieces).astype(np.int64), sum(len(t.encode("utf-8")) for t in texts))


@dataclass(frozen=True)
class Corpus:
    """The training stream, and one validation stream of each kind of text."""

    train: Stream
    validation: dict[str, Stream]


def bits_per_byte(nats: dict[str, float], streams: dict[str, Stream]) -> dict[str, float]:
    """`total`, and each kind: sum of -ln p over all scored tokens / ln 2 / UTF-8 bytes of the text.

    eos is scored but adds no bytes: a model also pays for saying where a text ends.
    """
    bits = {kind: nats[kind] / math.log(2) for kind in streams}
    total = sum(bits.values()) / sum(s.text_bytes for s in streams.values())
    return {"total": total, **{kind: bits[kind] / s.text_bytes for kind, s in streams.items()}}


@lru_cache
def corpus(folder: Path | None = None, tokenizer_file: Path | None = None) -> Corpus:
    """The shipped text (or another folder of the same layout), tokenised: well under a second."""
    tokenizer = load_tokenizer(tokenizer_file)
    train, held_out = split(documents(folder or paths.text_dir()))
    by_kind = {kind: stream([d for d in held_out if d.kind == kind], tokenizer) for kind in KINDS}
    return Corpus(stream(train, tokenizer), by_kind)


@dataclass(frozen=True)
class Batches:
    """Endless training batches. Batch `step` depends on (seed, step) alone, so a resumed run needs no saved state.

    Each epoch cuts the stream at a new random phase into windows of `length` targets and takes them in random order,
    so that an epoch sees each token at most once, and all but fewer than two windows' worth of them.
    Raises ValueError if the stream is shorter than two windows.
    """

    tokens: np.ndarray  # int64 [N]
    _: KW_ONLY
    batch_size: int
    length: int
    seed: int

    def __post_init__(self) -> None:
        if self.windows < 1:
            raise ValueError(f"length = {self.length}: a stream of {len(self.tokens)} tokens is too short for it")

    @property
    def windows(self) -> int:
        """Windows of one epoch."""
        return (len(self.tokens) - 1) // self.length - 1

    def starts(self, step: int) -> np.ndarray:
        """First position of each sequence of batch `step`: int64 [B]."""
        sequence = step * self.batch_size + np.arange(self.batch_size)
        epochs, places = np.divmod(sequence, self.windows)
        result = np.empty(self.batch_size, dtype=np.int64)
        for epoch in np.unique(epochs):
            draw = np.random.default_rng((self.seed, int(epoch)))
            phase, order = draw.integers(self.length), draw.permutation(self.windows)
            here = epochs == epoch
            result[here] = phase + order[places[here]] * self.length
        return result

    def __call__(self, step: int) -> Tensor:
        """int64 [B, T+1]: inputs are [:, :-1], targets [:, 1:]."""
        index = self.starts(step)[:, None] + np.arange(self.length + 1)
        return torch.from_numpy(self.tokens[index])


@dataclass(frozen=True)
class Window:
    """One validation batch: `tokens` int64 [B, T+1], and `scored` bool [B, T] for the targets tokens[:, 1:]."""

    tokens: Tensor
    scored: Tensor


def validation_windows(source: Stream, *, length: int, batch_size: int) -> Iterator[Window]:
    """Cover the stream with windows that start every `length // 2` tokens.

    The first window scores all its targets, each later one its second half: every scored token of the stream is
    scored exactly once, with at least `length // 2` tokens of context unless the stream begins later.
    """
    if length < 2:
        raise ValueError(f"length = {length}: at least 2, since half of a window is context")
    half = length // 2
    total = len(source.tokens)
    starts = np.arange(0, max(total - 1 - half, 1), half)
    padded = np.concatenate([source.tokens, np.full(length + 1, PAD)])
    wanted = np.concatenate([source.scored, np.zeros(length + 1, dtype=bool)])
    for first in range(0, len(starts), batch_size):
        index = starts[first : first + batch_size, None] + np.arange(length + 1)  # [B, T+1]
        fresh = (index[:, 1:] > index[:, :1] + length - half) | (index[:, :1] == 0)
        scored = wanted[index[:, 1:]] & fresh
        yield Window(torch.from_numpy(padded[index]), torch.from_numpy(scored))
