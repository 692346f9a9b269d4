"""Bytes that one sequence needs while a block of drafts is verified."""

from __future__ import annotations

from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import PAIR_BYTES, index_entry_bytes, main_entry_bytes, window_row_bytes
from minidsv41.ledger.line import Line, ceiling, fields, total


def scratch_rows(c: ModelConfig) -> Line:
    """The anchor and its drafts."""
    (block,) = fields(c, "dspark_block_size")
    return (block + 1).named("scratch_rows", "rows")


def scratch_lines(c: ModelConfig) -> list[Line]:
    """Window rows of every layer and draft block, groups that may close, and the pair of every row."""
    layers, stages, width = fields(c, "num_hidden_layers num_nextn_predict_layers head_dim")
    rows = scratch_rows(c)
    group = main_entry_bytes(c) + index_entry_bytes(c)
    groups = total(ceiling(rows / c.ratio(owner)) if c.ratio(owner) > 1 else rows for owner in c.kv_source_layer_ids)
    pairs = sum(c.ratio(owner) > 1 for owner in c.kv_source_layer_ids)
    return [
        ((layers + stages) * rows * window_row_bytes(c)).named("scratch_window_bytes", "B, FP8 window"),
        (groups.named("scratch_groups", "entries") * group).named("scratch_entry_bytes", "B, FP4 main + FP4 index"),
        (pairs * rows * 2 * width * PAIR_BYTES).named("scratch_pair_bytes", "B, FP32"),
    ]


def scratch_bytes(c: ModelConfig) -> Line:
    return total(scratch_lines(c)).named("scratch_bytes", "B, FP4 main + FP4 index + FP8 window")
