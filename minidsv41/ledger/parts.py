"""What a group of equal attention layers keeps and reads: one record for each way of keeping it.

Every part answers the same questions. `per_token` and `per_request` are bytes that grow with the sequence and bytes
that do not; `reads(context)` are bytes of cache and state that one decode step of one request moves (weights apart).
`split` says over how many tensor-parallel ranks the bytes can be divided, `prefix` where a prefix can be cut for reuse.
Rows are given in bytes, so that the layout is always a choice that is written down.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import (
    index_entry_bytes,
    kv_bytes_per_token,
    main_entry_bytes,
    open_pair_bytes,
    swa_bytes_per_sequence,
)
from minidsv41.ledger.flops import cand_positions
from minidsv41.ledger.line import Line, fields, least, lift

NO_SPLIT = "not by head"  # every rank holds all of it, or ranks divide requests or tokens
ANYWHERE = "at any token"


class Part(Protocol):
    layers: int

    @property
    def per_token(self) -> Line: ...
    @property
    def per_request(self) -> Line: ...
    def reads(self, context: Line) -> Line: ...
    @property
    def split(self) -> str: ...
    @property
    def prefix(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class HeadRows:
    """MHA, GQA, MQA: a key and a value for each KV head."""

    layers: int
    kv_heads: int
    head_dim: int
    bytes: int = 2

    prefix = ANYWHERE
    per_request = lift(0)

    @property
    def per_token(self) -> Line:
        layers, heads, width, size = fields(self, "layers kv_heads head_dim bytes")
        return layers * 2 * heads * width * size

    def reads(self, context: Line) -> Line:
        return context * self.per_token

    @property
    def split(self) -> str:
        return f"by KV head, {self.kv_heads} ways" if self.kv_heads > 1 else NO_SPLIT


@dataclass(frozen=True, kw_only=True)
class LatentRows:
    """MLA: one row of `row` bytes a token and layer; with `key` > 0 and `topk`, DSA's index over them.

    pool: tokens that share one index key; topk counts tokens.
    """

    layers: int
    row: int
    key: int = 0
    topk: int = 0
    pool: int = 1

    split = NO_SPLIT
    per_request = lift(0)

    @property
    def prefix(self) -> str:
        return f"every {self.pool} tokens" if self.pool > 1 else ANYWHERE

    @property
    def per_token(self) -> Line:
        layers, row, key, pool = fields(self, "layers row key pool")
        return layers * (row + key / pool if self.key else row)

    def reads(self, context: Line) -> Line:
        layers, row, key, topk, pool = fields(self, "layers row key topk pool")
        if not self.key:
            return context * layers * row
        return layers * (context / pool * key + least(context, topk) * row)


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """CSA and HCA: an entry of `row` bytes for `rate` tokens; CSA has index keys and reads `topk` entries, HCA all.

    Until its group is whole, and in CSA until the next one is, a token waits in `open_row` bytes.
    """

    layers: int
    rate: int
    row: int
    key: int = 0
    topk: int = 0
    open_row: int = 0

    split = NO_SPLIT
    per_request = lift(0)

    @property
    def open_groups(self) -> Line:
        """Bytes of waiting tokens, at most."""
        layers, rate, row = fields(self, "layers rate open_row")
        return layers * ((2 * rate if self.key else rate) - 1) * row

    @property
    def prefix(self) -> str:
        return f"every {self.rate} tokens"

    @property
    def per_token(self) -> Line:
        layers, rate, row, key = fields(self, "layers rate row key")
        return layers / rate * (row + key if self.key else row)

    def reads(self, context: Line) -> Line:
        layers, rate, row, key, topk = fields(self, "layers rate row key topk")
        entries = context // rate
        return layers * (entries * key + least(entries, topk) * row) if self.key else layers * entries * row


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Sliding windows of `window` rows of `row` bytes."""

    layers: int
    window: int
    row: int

    split = NO_SPLIT
    prefix = "with its windows kept or replayed"
    per_token = lift(0)

    @property
    def per_request(self) -> Line:
        layers, window, row = fields(self, "layers window row")
        return layers * window * row

    def reads(self, context: Line) -> Line:
        layers, window, row = fields(self, "layers window row")
        return layers * least(context, window) * row


@dataclass(frozen=True, kw_only=True)
class DeltaState:
    """Gated DeltaNet and KDA: a matrix a head, in `bytes` a number, and the last inputs of the convolution in BF16."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    channels: int
    bytes: int = 4
    taps: int = 3

    prefix = "where a state was saved"
    per_token = lift(0)

    @property
    def matrices(self) -> Line:
        layers, heads, key, value, size = fields(self, "layers heads key_dim value_dim bytes")
        return layers * heads * key * value * size

    @property
    def per_request(self) -> Line:
        layers, channels, taps = fields(self, "layers channels taps")
        return self.matrices + layers * channels * taps * 2

    def reads(self, context: Line) -> Line:
        """Every matrix is read and written, whatever the context."""
        return 2 * self.matrices

    @property
    def split(self) -> str:
        return f"by head, {self.heads} ways"


@dataclass(frozen=True, kw_only=True)
class SharedEntries:
    """CSA2: a few layers own entries and index keys, the others read theirs."""

    config: ModelConfig

    split = NO_SPLIT
    prefix = "at even tokens"
    per_request = lift(0)

    @property
    def open_groups(self) -> Line:
        return open_pair_bytes(self.config)

    @property
    def layers(self) -> int:
        c = self.config
        return sum(c.kv_owner(layer) is not None for layer in range(c.num_hidden_layers))

    @property
    def per_token(self) -> Line:
        return kv_bytes_per_token(self.config)

    def reads(self, context: Line) -> Line:
        """Full layers scan all keys of theirs, Reindex layers the pool; every reading layer gathers its selection."""
        c = self.config
        key, row = index_entry_bytes(c), main_entry_bytes(c)
        scanned = lift(0)
        for layer in c.index_source_layer_ids:
            owner = c.kv_owner(layer)
            entries = context // Line("ratio", c.ratio(owner), "tokens")
            scanned = scanned + (entries if owner == layer else least(entries, cand_positions(c)))
        (topk,) = fields(c, "index_topk")
        gathered = lift(0)
        for ratio, layers in sorted(Counter(map(c.ratio, range(c.num_hidden_layers))).items()):
            if ratio:
                entries = context // Line("ratio", ratio, "tokens")
                gathered = gathered + Line("reading_layers", layers, "layers") * least(entries, topk)
        return scanned * key + gathered * row


def windows_of(c: ModelConfig) -> Windows:
    """The windows of a V4.1 model, in its packed layout."""
    rows = int(swa_bytes_per_sequence(c)) // (c.num_hidden_layers * c.sliding_window)
    return Windows(layers=c.num_hidden_layers, window=c.sliding_window, row=rows)
