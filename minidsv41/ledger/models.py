"""Ancestors as plain records: their published shapes, and their books by their own rules."""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import kv_bytes_per_token
from minidsv41.ledger.flops import CONTEXTS, FP8, flop, label
from minidsv41.ledger.line import Books, Line, by_name, fields, least
from minidsv41.ledger.v4_flash import V4Flash


@dataclass(frozen=True, kw_only=True)
class V32:
    """DeepSeek-V3.2: one latent for each token and layer, and a sparse index over all of them."""

    name: str = "V3.2"
    d: int = 7168
    vocab: int = 129280
    layers: int = 61
    dense_layers: int = 3
    heads: int = 128
    nope: int = 128
    rope: int = 64
    v_dim: int = 128
    q_lora: int = 1536
    kv_lora: int = 512
    dense_inter: int = 18432
    inter: int = 2048
    experts: int = 256
    topk_e: int = 8
    idx_heads: int = 64
    idx_dim: int = 128
    idx_topk: int = 2048

    def books(self) -> Books:
        books = self.bytes() | self.params()
        for context in CONTEXTS:
            books |= self.decode_flops(books["flop_weights"], context)
        return books

    def bytes(self) -> Books:
        layers, latent, rope, key = fields(self, "layers kv_lora rope idx_dim")
        record = (latent + latent / 128 * 4 + rope * 2).named("kv_record_bytes", "B")
        index = (key + 4).named("index_entry_bytes", "B")
        return by_name(
            record,
            index,
            (layers * (record + index)).named("kv_bytes_per_token", "B/token, FP8 latent + FP8 index"),
        )

    def params(self) -> Books:
        d, vocab, layers, dense, heads = fields(self, "d vocab layers dense_layers heads")
        nope, rope, v_dim, rank, latent = fields(self, "nope rope v_dim q_lora kv_lora")
        wide, inter, experts, chosen, i_heads, key = fields(self, "dense_inter inter experts topk_e idx_heads idx_dim")
        attn = d * rank + rank * heads * (nope + rope) + d * (latent + rope)
        attn = (attn + latent * heads * (nope + v_dim) + heads * v_dim * d).named("attn_matrices", "parameters")
        index = (rank * i_heads * key + d * key + d * i_heads).named("indexer_matrices", "parameters")
        expert = (3 * d * inter).named("expert_params", "parameters")
        both = layers * (attn + index) + dense * 3 * d * wide
        full = both + (layers - dense) * ((experts + 1) * expert + experts * d) + 2 * vocab * d
        active = both + (layers - dense) * ((chosen + 1) * expert + experts * d) + vocab * d
        active = active.named("active_decode_matrices", "parameters")
        plain = (vocab * d + (layers - dense) * experts * d + layers * d * i_heads).named("bf16_matrices", "parameters")
        return by_name(
            attn,
            index,
            expert,
            full.named("params_matrices", "parameters"),
            active,
            plain,
            flop("flop_weights", 2 * FP8 * (active - plain) + 2 * plain),
        )

    def decode_flops(self, weights: Line, context: int) -> Books:
        layers, heads, latent, rope, topk = fields(self, "layers heads kv_lora rope idx_topk")
        i_heads, key = fields(self, "idx_heads idx_dim")
        tokens = Line("context", context, "tokens")
        core = layers * heads * 2 * (2 * latent + rope) * least(tokens, topk)
        core = flop(f"flop_attention_core_{label(context)}", core)
        index = flop(f"flop_indexer_{label(context)}", layers * 2 * i_heads * key * FP8 * tokens)
        return by_name(core, index, flop(f"flop_decode_{label(context)}", weights + core + index))


@dataclass(frozen=True, kw_only=True)
class V1:
    """The first DeepSeek 67B: grouped-query attention over everything, in BF16."""

    name: str = "V1-67B"
    d: int = 8192
    vocab: int = 102400
    layers: int = 95
    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 128
    inter: int = 22016

    def books(self) -> Books:
        d, vocab, layers, heads, kv_heads, width, inter = fields(self, "d vocab layers heads kv_heads head_dim inter")
        layer = 2 * d * heads * width + 2 * d * kv_heads * width + 3 * d * inter + 2 * d
        params = (2 * vocab * d + layers * layer + d).named("params", "parameters")
        lines = [(layers * 2 * kv_heads * width * 2).named("kv_bytes_per_token", "B/token, BF16"), params]
        for context in CONTEXTS:
            attention = 4 * heads * width * Line("context", context, "tokens") * layers
            lines.append(flop(f"flop_decode_{label(context)}", 2 * (params - vocab * d) + attention))
        return by_name(*lines)


V4_FLASH, V3_2, V1_67B = V4Flash(), V32(), V1()
ANCESTORS = (V4_FLASH, V3_2, V1_67B)


def ratio_vs(c: ModelConfig, ancestor: V4Flash | V32 | V1) -> Line:
    """How many times fewer bytes per token this model keeps, both in their deployed layouts."""
    label = ancestor.name.replace("-", "_").replace(".", "_")
    before = ancestor.books()["kv_bytes_per_token"]
    before = before.named(f"kv_bytes_per_token_of_{label}", before.unit)
    return (before / kv_bytes_per_token(c)).named(f"ratio_vs_{label}", "times")
