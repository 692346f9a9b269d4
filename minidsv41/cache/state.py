"""The cache of a model and the state of one sequence in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.cache.pool import PAGE, Allocator, Pool
from minidsv41.config import ConfigError, ModelConfig
from minidsv41.model import Keys
from minidsv41.model.keys import KINDS
from minidsv41.model.norm import RMSNorm, wide
from minidsv41.model.rope import Rotation
from minidsv41.ops import Batch, Rows

CacheFormat = Literal["packed", "float"]


@dataclass
class State:
    """One sequence: how many tokens it holds, its pages, its open pairs, its last compressed ids.

    windows and entries map a logical page to a physical one. open_pairs: owner -> [2, D].
    replayed: entries were computed after a bounded replay, so they are not those of a cold run.
    """

    length: int = 0
    windows: dict[int, int] = field(default_factory=dict)
    entries: dict[int, int] = field(default_factory=dict)
    open_pairs: dict[int, Tensor] = field(default_factory=dict)
    history: Tensor | None = None
    replayed: bool = False


class Cache:
    """Pools for every layer and owner, and the states that live in them.

    cache_format: "packed" stores the released records (288 B entry, 68 B index key, 528 B window row at the
    released widths) and needs `config.qat`; "float" keeps values as `dtype`, rounded alike.
    limit: pages that the cache may grow to (None: no limit).
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        cache_format: CacheFormat = "float",
        limit: int | None = None,
    ) -> None:
        if cache_format not in get_args(CacheFormat):
            raise ConfigError(f"cache_format = {cache_format!r}: allowed are {', '.join(get_args(CacheFormat))}")
        packed = cache_format == "packed"
        if packed and not config.qat:
            raise ConfigError("cache_format = 'packed': records hold rounded values, so qat must be on")
        self.config, self.dtype, self.device = config, dtype, torch.device(device)

        def pool(kind: str, width: int, page: int) -> Pool:
            fmt = KINDS[kind] if config.qat else None
            return Pool(width, page, format=fmt, packed=packed, dtype=dtype, device=self.device)

        blocks = config.num_hidden_layers + config.num_nextn_predict_layers
        self.pools = {("window", i): pool("window", config.head_dim, PAGE) for i in range(blocks)}
        windows = list(self.pools.values())
        for owner in config.kv_source_layer_ids:
            page = PAGE // config.ratio(owner)
            self.pools["entry", owner] = pool("entry", config.head_dim, page)
            self.pools["index", owner] = pool("index", config.index_head_dim, page)
        self.windows = Allocator(windows, limit=limit)
        self.entries = Allocator([p for (kind, _), p in self.pools.items() if kind != "window"], limit=limit)

    def new(self) -> State:
        """An empty sequence."""
        pair = torch.zeros(2, self.config.head_dim, dtype=wide(self.dtype), device=self.device)
        owners = [o for o in self.config.kv_source_layer_ids if self.config.ratio(o) == 2]
        history = torch.full((self.config.engram_max_ngram_size - 1,), -1, dtype=torch.int64, device=self.device)
        return State(open_pairs={o: pair.clone() for o in owners}, history=history)

    def release(self, state: State) -> None:
        """Give a sequence's pages back."""
        for allocator, pages in ((self.windows, state.windows), (self.entries, state.entries)):
            for page in pages.values():
                allocator.give(page)
            pages.clear()

    def nbytes(self, state: State, which: Literal["live", "allocated"] = "live") -> dict[str, int]:
        """Bytes of one sequence by kind, from the storage itself.

        live: min(T, W) window rows (a full ring: the next draft reads all of it, the next token all but one) and
        every complete entry and index key; allocated: whole pages.
        """
        c, out = self.config, {"window": 0, "draft window": 0, "entry": 0, "index": 0}
        for (kind, layer), pool in self.pools.items():
            if kind == "window":
                rows = min(state.length, c.sliding_window) if which == "live" else len(state.windows) * pool.page
                kind = "window" if layer < c.num_hidden_layers else "draft window"
            else:
                rows = state.length // c.ratio(layer) if which == "live" else len(state.entries) * pool.page
            out[kind] += rows * pool.row_bytes
        out["open pair"] = sum(t.nbytes for t in state.open_pairs.values())
        out["engram history"] = state.history.nbytes
        return out

    def truncate(self, state: State, length: int) -> None:
        """Keep no more than a hit of `length` tokens: their entries and index keys. Window rows must be replayed."""
        assert 0 <= length <= state.length, f"a hit of {length} tokens in a sequence of {state.length}"
        for page in state.windows.values():
            self.windows.give(page)
        state.windows.clear()
        for logical in [p for p in state.entries if p >= -(-length // PAGE)]:
            self.entries.give(state.entries.pop(logical))
        state.length = length

    def keys(self, states: list[State], batch: Batch, *, kept: list[int] | None = None) -> CacheKeys:
        """What a forward pass over `batch` reads and writes for these sequences.

        kept, for a replay: how many first tokens of each sequence have their entries and index keys; those of
        a group that ends among them are not written again. A batch that replays nothing begins where they end.
        """
        if kept is None:
            for state, start in zip(states, batch.starts, strict=True):
                assert state.length == start, f"the sequence holds {state.length} tokens, the batch starts at {start}"
        return CacheKeys(self, states, batch, kept or list(batch.starts))


def page_table(pages: list[dict[int, int]], device: torch.device) -> Tensor:
    """[S, P] physical pages, -1 where a sequence has none."""
    width = max((logical + 1 for own in pages for logical in own), default=1)
    table = torch.full((len(pages), width), -1, dtype=torch.int64)
    for row, own in enumerate(pages):
        table[row, list(own)] = torch.tensor(list(own.values()), dtype=torch.int64)
    return table.to(device)


class CacheKeys(Keys):
    """Keys of several sequences in a cache. Call `commit` after the forward pass."""

    def __init__(self, cache: Cache, states: list[State], batch: Batch, kept: list[int]) -> None:
        self.cache, self.states, self.batch, self.kept = cache, states, batch, kept
        self.ends = [s + n for s, n in zip(batch.starts, batch.lengths, strict=True)]
        self.tables = {
            "window": self._table(cache.windows, [s.windows for s in states]),
            "entry": self._table(cache.entries, [s.entries for s in states]),
        }
        self._pairs: dict[int, Tensor] = {}
        self._history: Tensor | None = None

    @property
    def replays(self) -> bool:
        return self.kept != list(self.batch.starts)

    def _table(self, allocator: Allocator, pages: list[dict[int, int]]) -> Tensor:
        """[S, P] physical pages, allocating those that this call fills."""
        for own, start, end in zip(pages, self.batch.starts, self.ends, strict=True):
            for logical in range(start // PAGE, -(-end // PAGE)):
                if logical not in own:
                    own[logical] = allocator.take()
        return page_table(pages, self.cache.device)

    def write(self, kind: str, layer: int, seq: Tensor, index: Tensor, values: Tensor) -> None:
        if kind != "window" and self.replays:
            new = self._new(layer, seq, index)
            seq, index, values = seq[new], index[new], values[new]
        rows = self.read(kind, layer)
        self.cache.pools[kind, layer].write(rows.locate(seq, index), values)

    def write_raw(
        self, kind: str, layer: int, seq: Tensor, index: Tensor, x: Tensor, norm: RMSNorm, rotation: Rotation
    ) -> None:
        if not (self.cache.pools[kind, layer].packed and ops.wanted(x)):
            return super().write_raw(kind, layer, seq, index, x, norm, rotation)
        if kind != "window" and self.replays:
            index = index.masked_fill(~self._new(layer, seq, index), -1)
        ops.kv_write(x, norm.weight, norm.eps, *rotation, self.read(kind, layer), seq, index)

    def _new(self, layer: int, seq: Tensor, index: Tensor) -> Tensor:
        """[n] which groups end behind the tokens that are kept."""
        return (index + 1) * self.cache.config.ratio(layer) > torch.tensor(self.kept, device=index.device)[seq]

    def read(self, kind: str, layer: int) -> Rows:
        return self.cache.pools[kind, layer].rows(self.tables["window" if kind == "window" else "entry"])

    def open_pair(self, owner: int, pairs: Tensor) -> Tensor:
        self._pairs[owner] = pairs[self.batch.cu_seqlens[1:] - 1]
        return torch.stack([s.open_pairs[owner] for s in self.states])

    def history(self, advance: Callable[[Tensor], Tensor]) -> Tensor:
        before = torch.stack([s.history for s in self.states])
        self._history = advance(before)
        return before

    def commit(self, *, behind: int | None = None) -> None:
        """Advance the sequences and free window pages that neither a later token nor a draft can read.

        behind: window rows that must stay, if more than W.
        """
        behind = self.cache.config.sliding_window if behind is None else behind
        for i, (state, end) in enumerate(zip(self.states, self.ends, strict=True)):
            state.length = max(state.length, end)
            for owner, latest in self._pairs.items():
                state.open_pairs[owner] = latest[i].clone()
            if self._history is not None:
                state.history = self._history[i].clone()
            first = max(0, end - behind) // PAGE
            for logical in [p for p in state.windows if p < first]:
                self.cache.windows.give(state.windows.pop(logical))
