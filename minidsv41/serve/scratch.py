"""Where a verify pass writes: rows of its own, which reach the cache only if their tokens are accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.cache.pool import Pool
from minidsv41.cache.state import page_table
from minidsv41.model import Keys
from minidsv41.model.engram import latest
from minidsv41.ops import Batch, Rows


@dataclass(frozen=True)
class Overlay:
    """Stored rows of which those from `first` [S] on lie in the scratch; read like `Rows`."""

    base: Rows
    scratch: Rows
    first: Tensor

    @property
    def data(self) -> Tensor:
        return self.base.data

    def gather(self, seq: Tensor, index: Tensor) -> Tensor:
        """[..., D] values of rows `index` of sequences `seq`; -1 and what is not yet stored give a row to mask."""
        seq, index = torch.broadcast_tensors(seq, index)
        place = index - self.first[seq]
        new = place >= 0
        out = self.base.gather(seq, index.masked_fill(new, -1))
        place = place[new]
        out[new] = self.scratch.gather(seq[new], place.masked_fill(place >= self.scratch.page, -1))
        return out


class ScratchKeys(Keys):
    """Keys of sequences that already hold tokens, for one pass over at most block + 1 rows of each.

    Nothing in the cache changes before `commit`. Rows are stored as the cache stores them, so committing
    copies bytes. Each pool has one page a sequence; its page 0 stays zero, as in the cache.
    """

    def __init__(self, cache: Cache, states: list[State]) -> None:
        assert all(s.length for s in states), "an empty sequence has nothing to verify against"
        self.cache, self.states, self.rows = cache, states, cache.config.dspark_block_size + 1
        self.tables = {
            "window": page_table([s.windows for s in states], cache.device),
            "entry": page_table([s.entries for s in states], cache.device),
        }
        self.lengths = torch.tensor([s.length for s in states], device=cache.device)
        self.table = torch.arange(1, len(states) + 1, device=cache.device)[:, None]
        self.pools = {(kind, layer): self._pool(kind, layer) for kind, layer in cache.pools}
        self.pairs: dict[int, Tensor] = {}

    def _ratio(self, kind: str, layer: int) -> int:
        return 1 if kind == "window" else self.cache.config.ratio(layer)

    def _pool(self, kind: str, layer: int) -> Pool:
        pool = self.cache.pools[kind, layer].like(page=-(-self.rows // self._ratio(kind, layer)))
        pool.grow(1 + len(self.states))
        return pool

    @property
    def nbytes(self) -> int:
        """Bytes of all sequences' scratch after a full pass, from the tensors themselves."""
        rows = sum(len(self.states) * pool.page * pool.row_bytes for pool in self.pools.values())
        return rows + sum(pairs.nbytes for pairs in self.pairs.values())

    def write(self, kind: str, layer: int, seq: Tensor, index: Tensor, values: Tensor) -> None:
        rows = self.read(kind, layer)
        self.pools[kind, layer].write(rows.scratch.locate(seq, index - rows.first[seq]), values)

    def read(self, kind: str, layer: int) -> Overlay:
        base = self.cache.pools[kind, layer].rows(self.tables["window" if kind == "window" else "entry"])
        return Overlay(base, self.pools[kind, layer].rows(self.table), self.lengths // self._ratio(kind, layer))

    def open_pair(self, owner: int, pairs: Tensor) -> Tensor:
        self.pairs[owner] = pairs
        return torch.stack([s.open_pairs[owner] for s in self.states])

    def history(self, advance: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.stack([s.history for s in self.states])

    def commit(self, batch: Batch, counts: list[int], token_map: Tensor) -> None:
        """Feed the cache the first counts [S] rows of each sequence of the verified `batch`; forget the others.

        token_map [V]: compressed ids, for the Engram history. Raises CacheFull before anything is written.
        """
        assert all(1 <= n <= m for n, m in zip(counts, batch.lengths, strict=True)), f"{counts} of {batch.lengths}"
        accepted = batch.offset < torch.tensor(counts, device=batch.device)[batch.seq]
        kept = Batch(batch.tokens[accepted], batch.starts, tuple(counts))
        keys = self.cache.keys(self.states, kept)
        for (kind, layer), pool in self.pools.items():
            ratio = self._ratio(kind, layer)
            closing = (kept.positions + 1) % ratio == 0
            seq, index = kept.seq[closing], kept.positions[closing] // ratio
            rows = self.read(kind, layer)
            source = rows.scratch.locate(seq, index - rows.first[seq])
            self.cache.pools[kind, layer].copy_rows(keys.read(kind, layer).locate(seq, index), pool, source)
        for owner, pairs in self.pairs.items():
            keys.open_pair(owner, pairs[accepted])
        keys.history(lambda before: latest(token_map[kept.tokens], before, kept))
        keys.commit()
