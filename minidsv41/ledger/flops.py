"""FLOPs of decoding one token, weighted as in the report's Figure 2: BF16 x1, FP8 x1/2, FP4 x1/4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from minidsv41.config import ModelConfig
from minidsv41.ledger import params, tensors
from minidsv41.ledger.bytes import entries_per_token
from minidsv41.ledger.line import Line, fields, least, total

FP8 = Line("fp8_weight", Fraction(1, 2), "", "weight of one FP8 FLOP")
FP4 = Line("fp4_weight", Fraction(1, 4), "", "weight of one FP4 FLOP")
CONTEXTS = (4 * 1024, 128 * 1024, 1024 * 1024)


def label(context: int) -> str:
    """4096 -> 4K, 1048576 -> 1M, 1000 -> 1000."""
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if context % size == 0 and context:
            return f"{context // size}{unit}"
    return str(context)


def pooled_name(pool: bool) -> str:
    return "" if pool else "_without_pool"


def contexts(c: ModelConfig) -> Sequence[int]:
    """The report's contexts that the model reaches, or its longest one."""
    return [n for n in CONTEXTS if n <= c.max_position_embeddings] or [c.max_position_embeddings]


def flop(name: str, line: Line) -> Line:
    return line.named(name, "FLOP/token")


def output_a(c: ModelConfig) -> Line:
    """The grouped output projection: stored in FP8, multiplied in BF16."""
    return params.count("wo_a_params", (t for t in tensors.attention(c) if "wo_a" in t.name))


def compressor_flops(c: ModelConfig) -> Line:
    matrices = params.count("compressor_matrices", params.matrices(params.compressor_tensors(c)))
    return flop("flop_compressor", 2 * matrices)


def indexer_flops(c: ModelConfig) -> Line:
    """Queries and head weights at every index source, keys once for each entry."""
    d, rank, heads, key, width = fields(c, "hidden_size q_lora_rank index_n_heads index_head_dim head_dim")
    sources = Line("index_sources", len(c.index_source_layer_ids), "layers")
    queries = sources * 2 * rank * heads * key * FP8 + sources * 2 * heads * d
    return flop("flop_indexer_linears", queries + 2 * key * width * entries_per_token(c))


def weight_lines(c: ModelConfig) -> list[Line]:
    """Everything that does not depend on the context. FP4 experts are multiplied with FP8 activations."""
    d, layers, vocab, chosen = fields(c, "hidden_size num_hidden_layers vocab_size num_experts_per_tok")
    linears = params.attn_matrices(c) - output_a(c)
    return [
        flop("flop_attn_linears", layers * 2 * linears * FP8),
        flop("flop_wo_a", layers * 2 * output_a(c)),
        flop("flop_experts", layers * 2 * (chosen + 1) * params.expert_params(c) * FP8),
        flop("flop_router", layers * 2 * params.router_matrix(c)),
        flop("flop_mhc", 2 * layers * 2 * params.mhc_matrix(c)),
        flop("flop_head", 2 * vocab * d),
        compressor_flops(c),
        indexer_flops(c),
        flop("flop_engram", 2 * params.engram_wkv_params(c) * FP8),
    ]


def flop_weights(c: ModelConfig) -> Line:
    return flop("flop_weights", total(weight_lines(c)))


def flop_attention_core(c: ModelConfig, context: int) -> Line:
    """Scores and values over the window and the selected entries, in BF16."""
    heads, width, window, topk = fields(c, "num_attention_heads head_dim sliding_window index_topk")
    tokens = Line("context", context, "tokens")
    near = least(window, tokens)
    ratios = Counter(c.ratio(layer) for layer in range(c.num_hidden_layers))
    keys = total(n * (near + least(topk, tokens // ratio) if ratio else near) for ratio, n in ratios.items())
    return flop(f"flop_attention_core_{label(context)}", 4 * heads * width * keys.named("attended_keys", "keys"))


def cand_positions(c: ModelConfig) -> Line:
    """The most entries that a candidate pool can hold."""
    count, size = fields(c, "candidate_topk_blocks candidate_block_size")
    return (count * size).named("cand_positions", "entries")


def flop_indexer(c: ModelConfig, context: int, *, pool: bool = True) -> Line:
    """Index scores in FP4: owners score every entry, Reindex layers only the pool (all, with `pool` off)."""
    heads, key = fields(c, "index_n_heads index_head_dim")
    tokens = Line("context", context, "tokens")
    sources = Counter(
        (c.ratio(layer), pool and c.mode(layer) == "reindex" and c.kv_owner(layer) == c.candidate_source_layer_id)
        for layer in c.index_source_layer_ids
    )
    scored = total(
        n * (least(tokens // ratio, cand_positions(c)) if pooled else tokens // ratio)
        for (ratio, pooled), n in sources.items()
    )
    scores = 2 * heads * key * FP4 * scored.named("scored_entries", "entries")
    return flop(f"flop_indexer_{label(context)}{pooled_name(pool)}", scores)


def flop_decode(c: ModelConfig, context: int, *, pool: bool = True) -> Line:
    """One decoded token whose sequence is `context` tokens long, itself included; DSpark not counted."""
    parts = flop_weights(c) + flop_attention_core(c, context) + flop_indexer(c, context, pool=pool)
    return flop(f"flop_decode_{label(context)}{pooled_name(pool)}", parts)
