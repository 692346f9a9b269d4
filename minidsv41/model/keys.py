"""Where a layer's keys live: the interface, and its simplest form, whole sequences in one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.formats import INDEX, MAIN, WINDOW, Format
from minidsv41.model.norm import RMSNorm
from minidsv41.model.rope import Rotation, rotate
from minidsv41.ops import Batch, Rows

KINDS: dict[str, Format] = {"window": WINDOW, "entry": MAIN, "index": INDEX}


class Keys(ABC):
    """What a forward pass writes and reads. Rows pass through their number format when written.

    Kinds: "window" (one row a token, by layer), "entry" and "index" (one row a group, by owner layer).
    """

    @abstractmethod
    def write(self, kind: str, layer: int, seq: Tensor, index: Tensor, values: Tensor) -> None:
        """Store values [n, D] as rows `index` [n] of sequences `seq` [n]."""

    def write_raw(
        self, kind: str, layer: int, seq: Tensor, index: Tensor, x: Tensor, norm: RMSNorm, rotation: Rotation
    ) -> None:
        """Norm the projections x [n, D], turn them, and `write` them."""
        self.write(kind, layer, seq, index, rotate(norm(x), rotation))

    @abstractmethod
    def read(self, kind: str, layer: int) -> Rows:
        """The rows stored so far, this call's included."""

    @abstractmethod
    def open_pair(self, owner: int, pairs: Tensor) -> Tensor:
        """[S, 2, D] (content, gate) of the last token before this call.

        pairs [T, 2, D]: those of this call; each sequence's last is kept for the next.
        """

    @abstractmethod
    def history(self, advance: Callable[[Tensor], Tensor]) -> Tensor:
        """[S, n - 1] compressed ids before this call, oldest first, -1 where none.

        Keeps advance(history) [S, n - 1], the last ids after this call, for the next.
        """


class SequenceKeys(Keys):
    """B equal sequences that start at 0: every key is a tensor of this call, with its gradient."""

    def __init__(self, config: ModelConfig, batch: Batch) -> None:
        assert len(set(batch.lengths)) == 1 and not any(batch.starts), "whole sequences of equal length"
        self.config, self.batch = config, batch
        self.rows: dict[tuple[str, int], Rows] = {}

    def write(self, kind: str, layer: int, seq: Tensor, index: Tensor, values: Tensor) -> None:
        if self.config.qat:
            values = KINDS[kind].fake_quant(values)
        count = len(self.batch.lengths)
        table = torch.arange(count, device=values.device)[:, None]
        self.rows[kind, layer] = Rows(values, table, page=max(1, len(values) // count))

    def read(self, kind: str, layer: int) -> Rows:
        return self.rows[kind, layer]

    def open_pair(self, owner: int, pairs: Tensor) -> Tensor:
        return pairs.new_zeros(len(self.batch.lengths), *pairs.shape[1:])

    def history(self, advance: Callable[[Tensor], Tensor]) -> Tensor:
        shape = len(self.batch.lengths), self.config.engram_max_ngram_size - 1
        return torch.full(shape, -1, device=self.batch.device)
