"""DeepSeek-V4-Flash as a plain record, with its books."""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.ledger.bytes import fp4_key, v4_record
from minidsv41.ledger.flops import CONTEXTS, FP4, FP8, flop, label
from minidsv41.ledger.line import Books, Line, by_name, fields, least, total


@dataclass(frozen=True, kw_only=True)
class V4Flash:
    """DeepSeek-V4-Flash: CSA and HCA layers that all own their caches."""

    name: str = "V4-Flash"
    d: int = 4096
    vocab: int = 129280
    layers: int = 43
    heads: int = 64
    head_dim: int = 512
    rope: int = 64
    q_lora: int = 1024
    o_groups: int = 8
    o_lora: int = 1024
    experts: int = 256
    topk_e: int = 6
    inter: int = 2048
    hc: int = 4
    idx_heads: int = 64
    idx_dim: int = 128
    idx_topk: int = 512
    window: int = 128
    csa_layers: int = 21
    hca_layers: int = 20
    swa_layers: int = 2

    def books(self) -> Books:
        books = self.bytes() | self.params()
        books |= self.weight_flops(books)
        for context in CONTEXTS:
            books |= self.decode_flops(books["flop_weights"], context)
        return books

    def bytes(self) -> Books:
        csa, hca, layers, window = fields(self, "csa_layers hca_layers layers window")
        width, rope, key = fields(self, "head_dim rope idx_dim")
        record = v4_record(width, rope).named("kv_record_bytes", "B")
        index = fp4_key(key, rope).named("index_entry_bytes", "B")
        far = hca / 128 * record
        return by_name(
            record,
            index,
            (csa / 4 * (record + index) + far).named("kv_bytes_per_token", "B/token, V4 record + FP4 index"),
            (csa / 4 * (record + (key + 4)) + far).named(
                "kv_bytes_per_token_fp8_index", "B/token, V4 record + FP8 index"
            ),
            (layers * window * record).named("swa_bytes_per_sequence", "B, V4 record"),
        )

    def params(self) -> Books:
        d, vocab, layers, heads, width, rank = fields(self, "d vocab layers heads head_dim q_lora")
        groups, o_rank, experts, chosen, inter, n = fields(self, "o_groups o_lora experts topk_e inter hc")
        csa, hca, i_heads, key = fields(self, "csa_layers hca_layers idx_heads idx_dim")
        expert = (3 * d * inter).named("expert_params", "parameters")
        wo_a = (heads * width * o_rank).named("wo_a_params", "parameters")
        attn = d * rank + rank * heads * width + d * width + wo_a + groups * o_rank * d
        attn = attn.named("attn_matrices", "parameters")
        pooled = csa * 2 * d * 2 * width + hca * 2 * d * width + csa * 2 * d * 2 * key
        pooled = pooled.named("compressor_matrices", "parameters")
        index = (csa * (rank * i_heads * key + d * i_heads)).named("indexer_matrices", "parameters")
        fixed = experts * d + 2 * (n * (n + 2) * n * d)
        full = layers * (attn + (experts + 1) * expert + fixed) + pooled + index + 2 * vocab * d
        active = layers * (attn + (chosen + 1) * expert + fixed) + pooled + index + vocab * d
        return by_name(
            expert,
            wo_a,
            attn,
            pooled,
            index,
            full.named("backbone_params_matrices", "parameters"),
            active.named("active_decode_matrices", "parameters"),
        )

    def weight_flops(self, books: Books) -> Books:
        d, vocab, layers, rank, experts = fields(self, "d vocab layers q_lora experts")
        chosen, n, csa, i_heads, key = fields(self, "topk_e hc csa_layers idx_heads idx_dim")
        wo_a = books["wo_a_params"]
        lines = [
            flop("flop_attn_linears", layers * 2 * (books["attn_matrices"] - wo_a) * FP8),
            flop("flop_wo_a", layers * 2 * wo_a),
            flop("flop_experts", layers * 2 * (chosen + 1) * books["expert_params"] * FP8),
            flop("flop_router", layers * 2 * experts * d),
            flop("flop_mhc", 2 * layers * 2 * (n * (n + 2) * n * d)),
            flop("flop_head", 2 * vocab * d),
            flop("flop_compressor", 2 * books["compressor_matrices"]),
            flop("flop_indexer_linears", csa * 2 * rank * i_heads * key * FP8 + csa * 2 * d * i_heads),
        ]
        return by_name(*lines, flop("flop_weights", total(lines)))

    def decode_flops(self, weights: Line, context: int) -> Books:
        heads, width, window, topk = fields(self, "heads head_dim window idx_topk")
        csa, hca, swa, i_heads, key = fields(self, "csa_layers hca_layers swa_layers idx_heads idx_dim")
        tokens = Line("context", context, "tokens")
        keys = csa * (least(topk, tokens // 4) + window) + hca * (tokens // 128 + window) + swa * window
        core = flop(f"flop_attention_core_{label(context)}", 4 * heads * width * keys)
        index = flop(f"flop_indexer_{label(context)}", 2 * i_heads * key * FP4 * csa * (tokens // 4))
        return by_name(core, index, flop(f"flop_decode_{label(context)}", weights + core + index))
