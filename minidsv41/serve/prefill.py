"""A prompt on its way into a sequence: chunk by chunk, the decoder on its tail only."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from minidsv41.cache import Cache, CacheKeys, State
from minidsv41.config import ModelConfig
from minidsv41.model import Model
from minidsv41.model.attention import Context
from minidsv41.model.boundary import Boundary
from minidsv41.model.engram import DEAD
from minidsv41.ops import Batch

CHUNK = 512
Cut = Literal["late", "report"]


class RequestError(ValueError):
    """A prompt or a setting that cannot be served."""


def check_cut(config: ModelConfig, cut: Cut | None) -> None:
    """Raise RequestError for a cut that there is not, or that would lose entries."""
    if cut is None:
        return
    if cut not in get_args(Cut):
        raise RequestError(f"cut = {cut!r}: allowed are {', '.join(get_args(Cut))}, or None")
    if late := [s for s in config.kv_source_layer_ids if s > config.decoder_start]:
        raise RequestError(f"cut = {cut!r}: layer {late[0]} owns entries, so it must run on every row (allowed: None)")


class Prefill:
    """Feed a prompt ids [T] to a sequence that may hold its first H = state.length tokens: a hit.

    Encoder replay: without window rows, a hit's last W tokens run again together with the rest, from `start` on. No
    row reads a window row before `start`, and entries and index keys of the hit are not written again.
    Decoder replay: the decoder runs on the last W rows only, and they read no window row before them; the hidden
    rows of the others do not exist. The first decoder layer still publishes every row. cut `report`: all decoder
    layers run so; `late`: those after the first, which the W rows pass with their whole windows, as if it had run on
    every row; None: no decoder replay. At most W rows in all are not cut.
    The draft's rows are those of the tokens that ran through all layers. How the prompt is divided into chunks
    changes nothing. Raises RequestError for a cut that is not possible, and where there is nothing to run.
    """

    def __init__(self, model: Model, cache: Cache, state: State, ids: Tensor, *, cut: Cut | None = "late") -> None:
        check_cut(model.config, cut)
        window, hit = model.config.sliding_window, state.length
        lost = hit > 0 and not state.windows
        self.model, self.cache, self.state, self.ids, self.cut = model, cache, state, ids, cut
        self.start = self.at = max(0, hit - window) if lost else hit
        if self.start >= len(ids):
            raise RequestError(f"prompt of {len(ids)} tokens: the sequence holds {hit} already, nothing is left to run")
        self.floor = self.start if lost else 0
        state.replayed |= self.floor > 0
        self.trimmed = cut is not None and len(ids) - self.start > window
        self.reach = 2 * window - 1 if cut == "late" else window  # last rows that the decoder starts from
        self.lookback = model.config.engram_max_ngram_size - 1
        self.compressed = torch.cat([ids.new_full((self.lookback,), DEAD), model.token_map[ids]])
        self.boundary: Boundary | None = None
        self.hidden: list[Tensor] = []

    @property
    def left(self) -> int:
        """Rows still to be fed, replayed ones included."""
        return len(self.ids) - self.at

    @torch.no_grad()
    def run(self, rows: int) -> Tensor | None:
        """Feed the next `rows` rows. -> None, or after the last one hidden [n, C] before the final norm.

        n: the prompt's last W rows where it is cut, else all from `start` on.
        """
        end = min(self.at + rows, len(self.ids))
        batch, keys = self.inputs(self.at, end, floor=self.floor, kept=self.state.length)
        if self.trimmed:
            self.encode(batch, keys)
            if end == len(self.ids):
                self.hidden.append(self.tail())
        else:
            out = self.model(batch, keys)
            self.model.mtp.remember(out.features, batch, keys)
            self.hidden.append(out.hidden)
        keys.commit(behind=self.reach if end < len(self.ids) else None)
        self.at, self.state.history = end, self.before(end)
        return torch.cat(self.hidden) if end == len(self.ids) else None

    def finish(self, chunk: int = CHUNK) -> Tensor:
        """Run to the end -> hidden [n, C] as `run`."""
        while (hidden := self.run(chunk)) is None:
            pass
        return hidden

    def before(self, position: int) -> Tensor:
        """[n - 1] compressed ids before a position."""
        return self.compressed[position : position + self.lookback].clone()

    def inputs(self, start: int, end: int, *, floor: int, kept: int) -> tuple[Batch, CacheKeys]:
        """Rows start..end - 1, and their keys."""
        self.state.history = self.before(start)
        ids = self.ids[start:end]
        batch = Batch.ragged([ids], [start], floor=torch.full_like(ids, floor))
        return batch, self.cache.keys([self.state], batch, kept=[kept])

    def encode(self, batch: Batch, keys: CacheKeys) -> None:
        """Everything that must run on every row; keep the last rows for the layers after it."""
        model = self.model
        ctx = Context(model.config, batch, keys, model.dtype)
        streams, features = model.encode(ctx)
        model.publish(streams, ctx)
        rows = Boundary(streams, features, ctx.selected, ctx.pools)
        rows = self.boundary.then(rows) if self.boundary else rows
        self.boundary = rows.last(self.reach)

    def tail(self) -> Tensor:
        """Run the decoder on the rows kept. Before the last chunk is committed, which frees window pages."""
        config, end = self.model.config, len(self.ids)
        first, rows = config.decoder_start, self.boundary
        if self.cut == "late":
            n = len(rows.streams.X)
            ctx = self.context(rows, floor=self.floor if n < self.reach else end - n)
            streams, features = self.model.run(range(first, first + 1), rows.streams, ctx, None, rows.features)
            first, rows = first + 1, Boundary(streams, features, ctx.selected, ctx.pools).last(config.sliding_window)
        ctx = self.context(rows, floor=end - config.sliding_window)
        out = self.model.decode(rows.streams, ctx, features=rows.features, first=first)
        self.model.mtp.remember(out.features, ctx.batch, ctx.keys)
        return out.hidden

    def context(self, rows: Boundary, *, floor: int) -> Context:
        """For the prompt's last rows; entries exist already."""
        end = len(self.ids)
        batch, keys = self.inputs(end - len(rows.streams.X), end, floor=floor, kept=end)
        return Context(self.model.config, batch, keys, self.model.dtype, rows.selected, rows.pools)


def prefill(
    model: Model, cache: Cache, state: State, ids: Tensor, *, cut: Cut | None = "late", chunk: int = CHUNK
) -> Tensor:
    """Feed a prompt ids [T], of which the sequence may hold the first tokens -> logits [V] after its last token."""
    return model.logits(Prefill(model, cache, state, ids, cut=cut).finish(chunk)[-1:])[0]


def replay(
    model: Model, cache: Cache, state: State, ids: Tensor, hit: int, *, cut: Cut | None = "late", chunk: int = CHUNK
) -> Tensor:
    """Reuse the entries of the first `hit` tokens alone, any number from 0 to state.length, for a prompt ids [T]
    that begins with them -> logits [V] after its last token."""
    cache.truncate(state, hit)
    return prefill(model, cache, state, ids, cut=cut, chunk=chunk)
