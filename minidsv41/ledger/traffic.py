"""Memory traffic of one token in BF16: residual streams and Engram rows."""

from __future__ import annotations

from collections.abc import Callable

from minidsv41.config import ModelConfig
from minidsv41.ledger.line import Line, fields

# Rows of width d read and written at one sublayer seam with n streams; coefficients are left out.
FORMS: dict[str, Callable[[Line], Line]] = {
    "multi_kernel": lambda n: (3 * n + 2) + (n + 2),  # update, predictor, mix and pre-norm each read and write
    "two_pass": lambda n: (2 * n + 1) + (n + 1),  # update and predict, then mix and norm
    "single_pass": lambda n: (n + 1) + (n + 1),  # the delayed mix lets one visit do all
}


def mhc_rows_per_sublayer(c: ModelConfig, form: str) -> Line:
    """Rows of width hidden_size moved; `form` is multi_kernel, two_pass or single_pass."""
    (n,) = fields(c, "hc_mult")
    return FORMS[form](n).named(f"mhc_rows_{form}", "rows of hidden_size")


def mhc_bytes_per_token(c: ModelConfig, form: str) -> Line:
    layers, d = fields(c, "num_hidden_layers hidden_size")
    moved = 2 * layers * mhc_rows_per_sublayer(c, form) * d * 2
    return moved.named(f"mhc_bytes_per_token_{form}", "B/token, BF16 streams")


def engram_bytes_per_token(c: ModelConfig) -> Line:
    """Table rows read: one for each order and head, with their scales."""
    width, heads, order = fields(c, "engram_head_dim engram_n_heads engram_max_ngram_size")
    tables = Line("engram_layers", len(c.engram_layer_ids), "layers")
    rows = tables * (order - 1) * heads
    return (rows * (width + width / 32)).named("engram_bytes_per_token", "B/token, FP8 rows")
