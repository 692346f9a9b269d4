"""What a layer is given: the queries of this call (`Batch`) and stored keys (`Rows`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from minidsv41.formats import Format


@dataclass(frozen=True)
class Rows:
    """Keys of many sequences: plain values, or codes with scales in a number format.

    data [R, D] values, or uint8 codes; scales uint8 or None; table [S, P] the physical page of each
    logical page of a sequence; page, the rows a page holds. Row `index` of sequence `s` lies at
    table[s, index // page] * page + index % page. A whole training sequence is one page.
    Row 0 is read in place of a row that does not exist; no query may use it, but its values must be finite.
    """

    data: Tensor
    table: Tensor
    page: int
    scales: Tensor | None = None
    format: Format | None = None
    dtype: torch.dtype | None = None

    def locate(self, seq: Tensor, index: Tensor) -> Tensor:
        """Physical rows of `index` (any shape, entries >= 0) in the sequences `seq` (broadcast)."""
        return self.table[seq, index // self.page] * self.page + index % self.page

    def gather(self, seq: Tensor, index: Tensor) -> Tensor:
        """[..., D] values of rows `index` of sequences `seq`; an index of -1 gives row 0 (mask it)."""
        if not len(self.data):  # nothing stored yet: every index is -1
            return self.data.new_zeros(*index.shape, self.data.shape[1])
        at = self.locate(seq, index.clamp(min=0)).clamp(min=0).masked_fill(index < 0, 0)
        if self.format is None:
            return F.embedding(at, self.data)
        return self.format.decode(self.data[at], self.scales[at], self.dtype)


@dataclass(frozen=True)
class Batch:
    """The tokens of one call: ragged, flat, sequence after sequence.

    tokens [T]; starts, lengths: first position and number of rows of each of S sequences;
    image_mask [T] bool or None; floor [T] or None: a query may read no window row before it
    (bounded replay); decoder_floor [T] or None: the same for the layers after the first decoder layer.
    What follows from the Python numbers is put on the device once, and kept.
    """

    tokens: Tensor
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    image_mask: Tensor | None = None
    floor: Tensor | None = None
    decoder_floor: Tensor | None = None

    def __post_init__(self) -> None:
        assert len(self.starts) == len(self.lengths) and sum(self.lengths) == self.tokens.numel()

    @classmethod
    def equal(cls, tokens: Tensor, **kwargs) -> Batch:
        """B whole sequences of equal length: tokens [B, T]."""
        b, t = tokens.shape
        return cls(tokens.reshape(-1), (0,) * b, (t,) * b, **kwargs)

    @classmethod
    def ragged(cls, tokens: list[Tensor], starts: list[int], **kwargs) -> Batch:
        """One tensor of tokens and one first position a sequence."""
        return cls(torch.cat(tokens), tuple(starts), tuple(len(t) for t in tokens), **kwargs)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @cached_property
    def counts(self) -> Tensor:
        """[S] number of rows of each sequence."""
        return torch.tensor(self.lengths, device=self.device)

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """[S + 1] row at which each sequence begins."""
        return torch.tensor((0, *self.lengths), device=self.device).cumsum(0)

    @cached_property
    def seq(self) -> Tensor:
        """[T] sequence of each row."""
        sequences = torch.arange(len(self.lengths), device=self.device)
        return sequences.repeat_interleave(self.counts, output_size=len(self.tokens))

    @cached_property
    def offset(self) -> Tensor:
        """[T] place of each row within its sequence's part of this call."""
        return torch.arange(len(self.tokens), device=self.device) - self.cu_seqlens[self.seq]

    @cached_property
    def positions(self) -> Tensor:
        """[T] absolute position of each row."""
        return torch.tensor(self.starts, device=self.device)[self.seq] + self.offset

    @cached_property
    def odd(self) -> Tensor:
        """[n] the rows at odd positions: each closes a group of two."""
        begins = accumulate(self.lengths, initial=0)
        parts = zip(begins, self.starts, self.lengths, strict=False)
        return torch.cat([at + torch.arange(length)[1 - start % 2 :: 2] for at, start, length in parts]).to(self.device)

    def visible(self, ratio: int) -> Tensor:
        """[T] complete entries that a query may read: the group of its own token if it closes it."""
        return (self.positions + 1) // ratio

    def longest(self, ratio: int) -> int:
        """Entries of the longest sequence after this call."""
        return max(s + n for s, n in zip(self.starts, self.lengths, strict=True)) // ratio

    def span(self, window: int, *, decoder: bool = False) -> Span:
        floor = self.floor
        if decoder and self.decoder_floor is not None:
            floor = self.decoder_floor if floor is None else torch.maximum(floor, self.decoder_floor)
        first = (self.positions - window + 1).clamp(min=0)
        return Span(self.seq, first if floor is None else torch.maximum(first, floor), self.positions, window)


@dataclass(frozen=True)
class Span:
    """Window rows that each query reads: first..last (inclusive) of its sequence, at most `width`."""

    seq: Tensor
    first: Tensor
    last: Tensor
    width: int

    def rows(self) -> Tensor:
        """[T, width] row indices, -1 where there is none."""
        at = self.last[:, None] - torch.arange(self.width - 1, -1, -1, device=self.last.device)
        return at.masked_fill(at < self.first[:, None], -1)

    def take(self, rows: slice) -> Span:
        return Span(self.seq[rows], self.first[rows], self.last[rows], self.width)
