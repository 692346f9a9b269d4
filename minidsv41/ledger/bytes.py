"""Bytes that one sequence keeps: per token by cache and owner, and in all at a given length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from minidsv41.config import ModelConfig
from minidsv41.ledger.line import Line, ceiling, fields, least, total

Rule = Callable[[Line, Line], Line]  # (width, its rotary part) -> bytes of one row

ENGRAM_ID_BYTES = 8  # compressed ids are int64
PAIR_BYTES = 4  # open groups are kept in FP32


@dataclass(frozen=True)
class Layout:
    """How an entry, an index key and a window row are stored; `suffix` marks the quantities of that layout."""

    name: str
    suffix: str
    main: Rule
    index: Rule
    window: Rule


def fp8_row(width: Line, rope: Line) -> Line:
    return width + width / 32


def fp4_key(width: Line, rope: Line) -> Line:
    return width / 2 + width / 32


def bf16_row(width: Line, rope: Line) -> Line:
    return 2 * width


def v4_record(width: Line, rope: Line) -> Line:
    """V4's row: FP8 with a scale per 64, the rotary part in BF16, one byte of padding."""
    return (width - rope) + 2 * rope + ceiling((width - rope) / 64) + 1


PACKED = Layout("FP4 main + FP4 index", "", lambda width, rope: width / 2 + width / 16, fp4_key, fp8_row)
FP8 = Layout("FP8 main + FP8 index", "_fp8", fp8_row, lambda width, rope: width + 4, fp8_row)
BF16 = Layout("BF16 main + BF16 index", "_bf16", bf16_row, bf16_row, bf16_row)
V4_RECORD = Layout("V4 record main + FP4 index", "_v4_record", v4_record, fp4_key, v4_record)
LAYOUTS = (PACKED, FP8, BF16, V4_RECORD)


def main_entry_bytes(c: ModelConfig, layout: Layout = PACKED) -> Line:
    return layout.main(*fields(c, "head_dim qk_rope_head_dim")).named(f"main_entry_bytes{layout.suffix}", "B")


def index_entry_bytes(c: ModelConfig, layout: Layout = PACKED) -> Line:
    return layout.index(*fields(c, "index_head_dim qk_rope_head_dim")).named(f"index_entry_bytes{layout.suffix}", "B")


def window_row_bytes(c: ModelConfig, layout: Layout = PACKED) -> Line:
    return layout.window(*fields(c, "head_dim qk_rope_head_dim")).named(f"swa_entry_bytes{layout.suffix}", "B")


def entries(c: ModelConfig, layers: Iterable[int]) -> Line:
    """Entries that these layers add for one token, if each keeps its own."""
    ratios = Counter(c.ratio(layer) for layer in layers if c.ratio(layer))
    return total(Line("", n, formula=str(n)) / ratio for ratio, n in ratios.items())


def entries_per_token(c: ModelConfig) -> Line:
    return entries(c, c.kv_source_layer_ids).named("entries_per_token", "entries/token")


def main_bytes_per_token(c: ModelConfig, layout: Layout = PACKED) -> Line:
    product = entries_per_token(c) * main_entry_bytes(c, layout)
    return product.named(f"main_bytes_per_token{layout.suffix}", f"B/token, {layout.name.split(' + ')[0]}")


def index_bytes_per_token(c: ModelConfig, layout: Layout = PACKED) -> Line:
    product = entries_per_token(c) * index_entry_bytes(c, layout)
    return product.named(f"index_bytes_per_token{layout.suffix}", f"B/token, {layout.name.split(' + ')[1]}")


def kv_bytes_per_token(c: ModelConfig, layout: Layout = PACKED) -> Line:
    """What one more token adds for good: entries and index keys of all owners."""
    both = main_bytes_per_token(c, layout) + index_bytes_per_token(c, layout)
    return both.named(f"kv_bytes_per_token{layout.suffix}", f"B/token, {layout.name}")


def kv_bytes_per_token_no_sharing(c: ModelConfig, layout: Layout = PACKED) -> Line:
    """The same if every layer with entries kept its own."""
    alone = entries(c, range(c.num_hidden_layers)) * (main_entry_bytes(c, layout) + index_entry_bytes(c, layout))
    return alone.named(f"kv_bytes_per_token_no_sharing{layout.suffix}", f"B/token, {layout.name}")


def owner_bytes_per_token(c: ModelConfig, layout: Layout = PACKED) -> list[Line]:
    """`kv_bytes_per_token` taken apart: two lines for each owner layer."""
    main, index = layout.name.split(" + ")
    lines = []
    for owner in c.kv_source_layer_ids:
        for name, size, kind in (
            ("main", main_entry_bytes(c, layout), main),
            ("index", index_entry_bytes(c, layout), index),
        ):
            line = size / c.ratio(owner)
            lines.append(line.named(f"layer_{owner}_{name}_bytes_per_token{layout.suffix}", f"B/token, {kind}"))
    return lines


def swa_bytes_per_sequence(c: ModelConfig) -> Line:
    """Full windows of the backbone layers, whatever the length."""
    layers, window = fields(c, "num_hidden_layers sliding_window")
    return (layers * window * window_row_bytes(c)).named("swa_bytes_per_sequence", "B, FP8 window")


def swa_bytes_per_sequence_with_draft(c: ModelConfig) -> Line:
    layers, stages, window = fields(c, "num_hidden_layers num_nextn_predict_layers sliding_window")
    rings = (layers + stages) * window * window_row_bytes(c)
    return rings.named("swa_bytes_per_sequence_with_draft", "B, FP8 window")


def group_rows(c: ModelConfig, name: str, missing: int) -> Line:
    """Rows of one group, less `missing`, over all owners that pool m > 1 tokens."""
    rows = [c.ratio(owner) - missing for owner in c.kv_source_layer_ids if c.ratio(owner) > 1]
    return Line(name, sum(rows), "rows", " + ".join(map(str, rows)) or "0")


def compressor_state_bytes_per_sequence(c: ModelConfig) -> Line:
    """Value and score of whole groups, as the reference keeps them."""
    (width,) = fields(c, "head_dim")
    rows = group_rows(c, "group_rows", 0)
    return (rows * 2 * width * PAIR_BYTES).named("compressor_state_bytes_per_sequence", "B, FP32")


def open_pair_bytes(c: ModelConfig) -> Line:
    """Value and score of the m - 1 rows that wait for the last row of their group; it needs no keeping."""
    (width,) = fields(c, "head_dim")
    rows = group_rows(c, "waiting_rows", 1)
    return (rows * 2 * width * PAIR_BYTES).named("open_pair_bytes", "B, FP32")


def engram_history_bytes(c: ModelConfig) -> Line:
    """The compressed ids that the next n-grams reach back to."""
    (order,) = fields(c, "engram_max_ngram_size")
    return ((order - 1) * ENGRAM_ID_BYTES).named("engram_history_bytes", "B, int64")


def stored_lines(c: ModelConfig, tokens: Line) -> list[Line]:
    """What `tokens` tokens leave for good: complete entries and their index keys, two lines for each owner."""
    lines = []
    for owner in c.kv_source_layer_ids:
        stored = (tokens // c.ratio(owner)).named(f"layer_{owner}_entries", "entries")
        lines += [
            (stored * main_entry_bytes(c)).named(f"layer_{owner}_main_bytes", "B, FP4 main"),
            (stored * index_entry_bytes(c)).named(f"layer_{owner}_index_bytes", "B, FP4 index"),
        ]
    return lines


def state_lines(c: ModelConfig, length: int) -> list[Line]:
    """All that is kept of one sequence of `length` tokens, in the packed layout; pages are not rounded up."""
    if length < 0:
        raise ValueError(f"length = {length}: a number of tokens, 0 or more")
    layers, stages, window = fields(c, "num_hidden_layers num_nextn_predict_layers sliding_window")
    tokens = Line("length", length, "tokens")
    rows = least(length, window).named("window_rows", "rows")
    lines = [
        (layers * rows * window_row_bytes(c)).named("window_bytes", "B, FP8 window"),
        (stages * rows * window_row_bytes(c)).named("draft_window_bytes", "B, FP8 window"),
    ]
    return [*lines, *stored_lines(c, tokens), open_pair_bytes(c), engram_history_bytes(c)]


def allocated_lines(c: ModelConfig, length: int, *, page: int = 64) -> list[Line]:
    """What `state_lines` counts, in whole pages of `page` tokens: a page of windows goes when its last row has left
    the window."""
    layers, stages, window = fields(c, "num_hidden_layers num_nextn_predict_layers sliding_window")
    size, tokens = Line("page", page, "tokens"), Line("length", length, "tokens")
    pages = ceiling(tokens / size).named("entry_pages", "pages")
    left = Line("tokens_out_of_the_window", max(0, length - window.value), "tokens")
    rows = ((pages - left // size) * size).named("window_rows", "rows")
    lines = [
        (layers * rows * window_row_bytes(c)).named("window_bytes", "B, FP8 window"),
        (stages * rows * window_row_bytes(c)).named("draft_window_bytes", "B, FP8 window"),
    ]
    whole = (pages * size).named("paged_tokens", "tokens")
    return [*lines, *stored_lines(c, whole), open_pair_bytes(c), engram_history_bytes(c)]


def state_bytes(c: ModelConfig, length: int) -> Line:
    """Live bytes of one sequence of `length` tokens: the sum of `state_lines`."""
    return total(state_lines(c, length)).named("state_bytes", f"B, {PACKED.name} + FP8 window")


def kv_bytes_at(c: ModelConfig, length: int) -> Line:
    """The part that grows, at the average rate: for an odd length, half a pair more than is stored."""
    tokens = Line("length", length, "tokens")
    return (tokens * kv_bytes_per_token(c)).named("kv_bytes", f"B, {PACKED.name}")
