"""The fewest bytes and the products of each operation that has a kernel: what a floor of its time is made of.

Every input is read once and every output written once, activations in BF16, coefficients left out; the stored rows
have the formats of the caches. FLOPs are those of matrix products, twice the multiply-adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import index_entry_bytes, main_entry_bytes, window_row_bytes
from minidsv41.ledger.line import Line, fields
from minidsv41.ledger.traffic import mhc_rows_per_sublayer

SLOT = 8  # bytes of an index of a selected entry
CHUNK = 64  # tokens that the gated delta rule takes at once


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one call moves and computes: `once` bytes whatever the tokens, `each` bytes and `flops` for every token."""

    name: str
    once: Line
    each: Line
    flops: Line

    def bytes(self, tokens: int) -> int:
        return int(self.once.value + tokens * self.each.value)

    def products(self, tokens: int) -> int:
        """FLOP of the call."""
        return int(tokens * self.flops.value)


def work(name: str, once: Line | int, each: Line, flops: Line | int) -> Work:
    once, flops = (x if isinstance(x, Line) else Line("", x, formula=str(x)) for x in (once, flops))
    names = once.named("once", "B"), each.named("each", "B/token"), flops.named("flops", "FLOP/token")
    return Work(name=name, once=names[0], each=names[1], flops=names[2])


def seam(c: ModelConfig) -> Work:
    """Streams and the sublayer's output in, streams and the next input out; the predictor in FP32 once."""
    n, d = fields(c, "hc_mult hidden_size")
    predictor = n * (n + 2) * n * d
    return work("seam", 4 * predictor, 2 * mhc_rows_per_sublayer(c, "single_pass") * d, 2 * predictor)


def kv_write(c: ModelConfig) -> Work:
    """Latent in, cos and sin in FP32, packed main row out."""
    width, rope = fields(c, "head_dim qk_rope_head_dim")
    return work("kv_write", 0, 2 * width + 4 * rope + main_entry_bytes(c), 0)


def index_select(c: ModelConfig, context: int, *, prompt: bool = False) -> Work:
    """Scores of all `context` keys and the choice. Decoding, every token has a sequence and so keys of its own."""
    heads, key, k = fields(c, "index_n_heads index_head_dim index_topk")
    keys = Line("context", context, "entries") * index_entry_bytes(c)
    own = 2 * heads * key + 2 * heads + SLOT * k
    flops = 2 * heads * key * Line("context", context, "entries")
    return work("index, prompt", keys, own, flops) if prompt else work("index, decode", 0, own + keys, flops)


def attention(c: ModelConfig, context: int, *, prompt: bool = False) -> Work:
    """Window and selected entries. The tokens of a prompt share all rows, and are many enough to need each."""
    heads, width, window, k = fields(c, "num_attention_heads head_dim sliding_window index_topk")
    main, row = main_entry_bytes(c), window_row_bytes(c)
    ends, flops = 2 * heads * width * 2 + SLOT * k, 4 * heads * width * (window + k)
    if prompt:
        shared = Line("context", context, "entries") * main + window * row
        return work("sparse attention, prompt", shared, ends + row, flops)
    return work("sparse attention, decode", 0, ends + k * main + window * row, flops)


def window_attention(c: ModelConfig) -> Work:
    """A prompt in a layer that has a window only."""
    heads, width, window = fields(c, "num_attention_heads head_dim sliding_window")
    row = window_row_bytes(c)
    return work("window attention, prompt", window * row, 2 * heads * width * 2 + row, 4 * heads * width * window)


def engram_read(c: ModelConfig) -> Work:
    """Table rows in FP8 with their scales in, BF16 out."""
    width, heads, order = fields(c, "engram_head_dim engram_n_heads engram_max_ngram_size")
    return work("Engram read", 0, (order - 1) * heads * (width + width / 32 + 2 * width), 0)


def gated_delta(*, keys: int = 16, values: int = 32, width: int = 128) -> Work:
    """The chunked gated delta rule of another family: q, k, v and output, decays, and the state in and out."""
    k, v, d = Line("key_heads", keys), Line("value_heads", values), Line("width", width)
    each = 2 * (2 * k * d + 2 * v * d) + 2 * 4 * v
    return work("gated delta", 2 * 4 * v * d * d, each, 2 * v * (4 * CHUNK * d + 3 * d * d))


def operations(c: ModelConfig, *, decode: int = 131_072, prompt: int = 32_768) -> dict[str, Work]:
    """All by name. decode, prompt: entries that a decoding token and the tokens of a prompt choose from."""
    found = (
        seam(c),
        kv_write(c),
        index_select(c, decode),
        index_select(c, prompt, prompt=True),
        attention(c, decode),
        attention(c, prompt, prompt=True),
        window_attention(c),
        engram_read(c),
        gated_delta(),
    )
    return {w.name: w for w in found}
