"""What the planner asks of a model: its weights, what a session holds, what a step reads and computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from minidsv41.config import ModelConfig
from minidsv41.ledger import checkpoint, flops, params, tensors
from minidsv41.ledger.bytes import index_entry_bytes, main_entry_bytes, state_bytes, stored_lines, window_row_bytes
from minidsv41.ledger.line import Line, fields, least, lift, total
from minidsv41.ledger.reading import Way, ways
from minidsv41.ledger.scratch import scratch_bytes
from minidsv41.ledger.storage import FP4, ROWS

PER_LAYER = ("flop_attn_linears", "flop_wo_a", "flop_experts", "flop_router", "flop_mhc")


@dataclass(frozen=True)
class Experts:
    """Routed experts of all layers: how many there are in a layer, how many a token meets, bytes of one."""

    layers: Line
    number: Line
    chosen: Line
    size: Line

    def touched(self, tokens: Line) -> Line:
        """Experts of a layer that a step of `tokens` tokens reads, on average, if each choice were as likely."""
        number, chosen, n = float(self.number.value), float(self.chosen.value), float(tokens.value)
        count = round(number * (1 - (1 - chosen / number) ** n))
        text = f"round({self.number.name} * (1 - (1 - {self.chosen.name} / {self.number.name}) ** {tokens.name}))"
        return Line("touched_experts", count, "experts of a layer", text, (self.number, self.chosen, tokens))

    def read(self, tokens: Line) -> Line:
        return (self.layers * self.touched(tokens) * self.size).named("expert_read_bytes", "B/step")


class Planned(Protocol):
    """fp8: whether the machine multiplies FP8 at twice its BF16 rate; FLOPs are then counted half."""

    name: str
    longest: int
    assumed: tuple[str, ...]

    def weights(self) -> Line: ...
    def tables(self) -> Line: ...
    def dense_read(self) -> Line: ...
    def experts(self) -> Experts | None: ...
    def session(self, context: int) -> list[Line]: ...
    def reads(self, context: int) -> list[Line]: ...
    def stored(self, context: int) -> Line: ...
    def step_flops(self, context: int, *, fp8: bool) -> Line: ...
    def prefill(self, length: int, hit: int, *, fp8: bool) -> dict[str, Work]: ...


@dataclass(frozen=True)
class Work:
    """One way to read a prompt: FLOPs, rows to run, and the share of the layers that runs on all of them."""

    flops: Line
    rows: Line
    share: Line


@dataclass(frozen=True)
class V41:
    """DeepSeek-V4.1 in any shape; decoding is counted without drafts, DSpark's weights and windows are held."""

    name: str
    config: ModelConfig
    assumed: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        return self.config.max_position_embeddings

    def weights(self) -> Line:
        tables = ("engram.embed.weight",)
        return stored(self.config, "weight_bytes", without=tables, says="all tensors but Engram's tables, as stored")

    def tables(self) -> Line:
        return tables(self.config)

    def dense_read(self) -> Line:
        """Tables and the embedding are read by row, drafts are left out, routed experts come apart."""
        apart = ("engram.embed.weight", "ffn.experts.", "mtp.", "embed.weight")
        return stored(self.config, "dense_read_bytes", without=apart, says="head and all layers but routed experts")

    def experts(self) -> Experts:
        layers, number, chosen = fields(self.config, "num_hidden_layers n_routed_experts num_experts_per_tok")
        one = sum(t.stored for t in tensors.expert(self.config, "experts.{e}", FP4))
        return Experts(layers, number, chosen, Line("expert_bytes", one, "B", checkpoint.as_stored(FP4)))

    def session(self, context: int) -> list[Line]:
        return [state_bytes(self.config, context), scratch_bytes(self.config)]

    def stored(self, context: int) -> Line:
        tokens = Line("context", context, "tokens")
        return total(stored_lines(self.config, tokens)).named("stored_bytes", "B, entries and index keys")

    def reads(self, context: int) -> list[Line]:
        """The four kinds of rows that a decode step reads; the first two only decide what to read."""
        c, n = self.config, Line("context", context, "tokens")
        key, row = index_entry_bytes(c), main_entry_bytes(c)
        layers, window, topk = fields(c, "num_hidden_layers sliding_window index_topk")
        owners = [i for i in c.index_source_layer_ids if c.kv_owner(i) == i]
        again = [i for i in c.index_source_layer_ids if c.kv_owner(i) != i]
        scanned = by_ratio(c, owners, lambda ratio: n // ratio)
        pooled = by_ratio(c, again, lambda ratio: least(n // ratio, flops.cand_positions(c)))
        chosen = by_ratio(c, readers(c), lambda ratio: least(n // ratio, topk))
        return [
            (scanned * key).named("scan_bytes", "B/step, all index keys"),
            (pooled * key).named("pool_bytes", "B/step, index keys of the pool"),
            (chosen * row).named("gather_bytes", "B/step, chosen entries"),
            (layers * least(n, window) * window_row_bytes(c)).named("window_read_bytes", "B/step, windows"),
        ]

    def layer_flops(self, *, fp8: bool) -> Line:
        """Weights of one layer, a token."""
        if not fp8:
            return (2 * params.active_per_layer_matrices(self.config)).named("layer_flops", "FLOP/token, plain")
        lines = [line for line in flops.weight_lines(self.config) if line.name in PER_LAYER]
        layers = fields(self.config, "num_hidden_layers")[0]
        return (total(lines) / layers).named("layer_flops", "FLOP/token, FP8 x1/2")

    def beside_flops(self, *, fp8: bool) -> Line:
        """Compressors, indexers and Engram of the whole model, a token; prefill is charged all of it."""
        c = self.config
        plain = params.compressor_params(c) + params.indexer_params(c) + params.engram_wkv_params(c)
        if not fp8:
            return (2 * plain).named("beside_flops", "FLOP/token, plain")
        names = ("flop_compressor", "flop_indexer_linears", "flop_engram")
        lines = [line for line in flops.weight_lines(c) if line.name in names]
        return total(lines).named("beside_flops", "FLOP/token, FP8 x1/2")

    def head_flops(self) -> Line:
        vocab, d = fields(self.config, "vocab_size hidden_size")
        return (2 * vocab * d).named("head_flops", "FLOP/token, BF16")

    def attention(self, layers: Iterable[int], context: Line, *, fp8: bool, name: str) -> Line:
        """Scores, values and index scores of these layers for a token at `context`; index scores count as FP8."""
        c, layers = self.config, list(layers)
        heads, width, window, topk, i_heads, key = fields(
            c, "num_attention_heads head_dim sliding_window index_topk index_n_heads index_head_dim"
        )
        entries = by_ratio(c, (i for i in layers if c.ratio(i)), lambda ratio: least(context // ratio, topk))
        keys = (len(layers) * least(context, window) + entries).named(f"{name}_keys", "keys/token")
        sources = [i for i in layers if i in c.index_source_layer_ids]
        whole = by_ratio(c, (i for i in sources if c.mode(i) == "full"), lambda ratio: context // ratio)
        pool = by_ratio(
            c,
            (i for i in sources if c.mode(i) == "reindex"),
            lambda ratio: least(context // ratio, flops.cand_positions(c)),
        )
        scored = (whole + pool).named(f"{name}_scored", "index keys/token")
        scores = 2 * i_heads * key * scored
        line = 4 * heads * width * keys + (scores * flops.FP8 if fp8 else scores)
        return line.named(f"{name}_attention", "FLOP/token")

    def step_flops(self, context: int, *, fp8: bool) -> Line:
        c = self.config
        layers, n = fields(c, "num_hidden_layers")[0], Line("context", context, "tokens")
        attention = self.attention(range(c.num_hidden_layers), n, fp8=fp8, name="step")
        line = layers * self.layer_flops(fp8=fp8) + self.beside_flops(fp8=fp8) + self.head_flops() + attention
        return line.named("step_flops", "FLOP/token")

    def prefill(self, length: int, hit: int, *, fp8: bool) -> dict[str, Work]:
        return {name: self.work(way, fp8=fp8) for name, way in ways(self.config, length, hit).items()}

    def work(self, way: Way, *, fp8: bool) -> Work:
        """A token is charged its attention at the mean position, the decoder's tail at the last one."""
        half, layers = self.config.decoder_start, self.config.num_hidden_layers
        before = self.attention(range(half), way.mean, fp8=fp8, name="encoder")
        where = way.last if way.tail else way.mean
        after = self.attention(range(half, layers), where, fp8=fp8, name="decoder")
        lower, upper = Line("encoder_layers", half, "layers"), Line("decoder_layers", layers - half, "layers")
        layer, beside = self.layer_flops(fp8=fp8), self.beside_flops(fp8=fp8)
        line = way.encoder * (lower * layer + beside + before) + way.decoder * (upper * layer + after)
        return Work((line + self.head_flops()).named("prefill_flops", "FLOP"), way.encoder, way.share)


def readers(c: ModelConfig) -> list[int]:
    return [i for i in range(c.num_hidden_layers) if c.ratio(i)]


def by_ratio(c: ModelConfig, layers: Iterable[int], of) -> Line:
    """The sum over layers of `of(ratio)`, written once for each ratio."""
    count = Counter(c.ratio(i) for i in layers)
    return sum((n * of(ratio) for ratio, n in sorted(count.items())), start=lift(0))


@cache
def tables(c: ModelConfig) -> Line:
    rows = [t for layer in c.engram_layer_ids for t in tensors.engram(c, layer) if t.storage is ROWS]
    return checkpoint.stored("table_bytes", rows, checkpoint.as_stored(ROWS))


@cache
def stored(c: ModelConfig, name: str, *, without: tuple[str, ...], says: str) -> Line:
    """Bytes of the checkpoint's tensors but those whose name has one of `without` (or starts with "embed")."""
    kept = [t for t in tensors.tensors(c) if not any(skips(t.name, part) for part in without)]
    return checkpoint.stored(name, kept, says)


def skips(name: str, part: str) -> bool:
    return name.startswith(part) if part in ("mtp.", "embed.weight") else part in name
