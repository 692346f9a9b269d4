"""Every tensor of the released layout: name, shape and storage. All counts are sums over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minidsv41.config import ModelConfig
from minidsv41.ledger.line import Line, fields, lift
from minidsv41.ledger.storage import BF16, FP4, FP8, FP32, ONE, ROWS, Storage, Tensor


def attention(c: ModelConfig) -> list[Tensor]:
    d, heads, width, rank = fields(c, "hidden_size num_attention_heads head_dim q_lora_rank")
    groups, o_rank = fields(c, "o_groups o_lora_rank")
    return [
        Tensor("attn.wq_a.weight", (rank, d), FP8),
        Tensor("attn.wq_b.weight", (heads * width, rank), FP8),
        Tensor("attn.wkv.weight", (width, d), FP8),
        Tensor("attn.wo_a.weight", (groups * o_rank, heads * width / groups), FP8),
        Tensor("attn.wo_b.weight", (d, groups * o_rank), FP8),
        Tensor("attn.q_norm.weight", (rank,), BF16),
        Tensor("attn.kv_norm.weight", (width,), BF16),
        Tensor("attn.attn_sink", (heads,), FP32),
    ]


def compressor(c: ModelConfig, owner: int) -> list[Tensor]:
    d, width = fields(c, "hidden_size head_dim")
    gate = [Tensor("attn.compressor.wgate.weight", (width, d), BF16)] if c.ratio(owner) > 1 else []
    return [
        Tensor("attn.compressor.wkv.weight", (width, d), BF16),
        *gate,
        Tensor("attn.compressor.norm.weight", (width,), BF16),
    ]


def indexer(c: ModelConfig, source: int) -> list[Tensor]:
    d, width, rank = fields(c, "hidden_size head_dim q_lora_rank")
    heads, key = fields(c, "index_n_heads index_head_dim")
    query = [
        Tensor("attn.indexer.wq_b.weight", (heads * key, rank), FP8),
        Tensor("attn.indexer.weights_proj.weight", (heads, d), BF16),
    ]
    if source not in c.kv_source_layer_ids:
        return query
    return [
        *query,
        Tensor("attn.indexer.wk.weight", (key, width), BF16),
        Tensor("attn.indexer.k_norm.weight", (key,), BF16),
    ]


def norms(c: ModelConfig) -> list[Tensor]:
    (d,) = fields(c, "hidden_size")
    return [Tensor("attn_norm.weight", (d,), BF16), Tensor("ffn_norm.weight", (d,), BF16)]


def hyper(c: ModelConfig, sublayer: str) -> list[Tensor]:
    n, d = fields(c, "hc_mult hidden_size")
    return [
        Tensor(f"hc_{sublayer}_fn", (n * (n + 2), n * d), FP32),
        Tensor(f"hc_{sublayer}_base", (n * (n + 2),), FP32),
        Tensor(f"hc_{sublayer}_scale", (lift(3),), FP32),
    ]


def expert(c: ModelConfig, name: str, storage: Storage, copies: Line = ONE) -> list[Tensor]:
    d, inner = fields(c, "hidden_size moe_intermediate_size")
    shapes = {"w1": (inner, d), "w2": (d, inner), "w3": (inner, d)}
    return [Tensor(f"ffn.{name}.{w}.weight", shape, storage, copies) for w, shape in shapes.items()]


def gate(c: ModelConfig, experts: Line) -> list[Tensor]:
    (d,) = fields(c, "hidden_size")
    return [
        Tensor("ffn.gate.weight", (experts, d), BF16),
        Tensor("ffn.gate.bias", (experts,), FP32),
        Tensor("ffn.gate.bias_vl", (experts,), FP32),
    ]


def block(c: ModelConfig, experts: Line) -> list[Tensor]:
    """What every block has, the DSpark blocks too."""
    return [
        *attention(c),
        *norms(c),
        *hyper(c, "attn"),
        *hyper(c, "ffn"),
        *gate(c, experts),
        *expert(c, "experts.{e}", FP4, experts),
        *expert(c, "shared_experts", FP8),
    ]


def engram(c: ModelConfig, layer: int) -> list[Tensor]:
    n, d, width, heads, largest = fields(c, "hc_mult hidden_size engram_head_dim engram_n_heads engram_max_ngram_size")
    rows = Line(f"engram_rows_{layer}", c.engram_num_embeddings[c.engram_layer_ids.index(layer)], "rows")
    return [
        Tensor("engram.embed.weight", (rows, width), ROWS),
        Tensor("engram.wkv.weight", ((n + 1) * d, (largest - 1) * heads * width), FP8),
        Tensor("engram.q_weight", (n, d), BF16),
        Tensor("engram.k_weight", (n, d), BF16),
    ]


def draft_entry(c: ModelConfig) -> list[Tensor]:
    """What the first DSpark block adds: the projection of the target's features."""
    (d,) = fields(c, "hidden_size")
    targets = Line("dspark_targets", len(c.dspark_target_layer_ids), "layers")
    return [Tensor("main_proj.weight", (d, targets * d), FP8), Tensor("main_norm.weight", (d,), BF16)]


def draft_exit(c: ModelConfig) -> list[Tensor]:
    """What the last DSpark block adds: norm, Markov head, confidence head."""
    d, vocab, rank = fields(c, "hidden_size vocab_size dspark_markov_rank")
    return [
        Tensor("norm.weight", (d,), BF16),
        Tensor("markov_head.embed.weight", (vocab, rank), BF16),
        Tensor("markov_head.head.weight", (vocab, rank), BF16),
        Tensor("confidence_head.proj.weight", (lift(1), d + rank), BF16),
    ]


def outer(c: ModelConfig) -> list[Tensor]:
    d, vocab = fields(c, "hidden_size vocab_size")
    return [
        Tensor("embed.weight", (vocab, d), BF16),
        Tensor("head.weight", (vocab, d), BF16),
        Tensor("norm.weight", (d,), BF16),
    ]


def tensors(c: ModelConfig) -> Iterator[Tensor]:
    """All tensors of a text checkpoint, by released name."""
    experts, draft_experts = fields(c, "n_routed_experts dspark_n_routed_experts")
    yield from outer(c)
    for layer in range(c.num_hidden_layers):
        inside = block(c, experts)
        inside += compressor(c, layer) if layer in c.kv_source_layer_ids else []
        inside += indexer(c, layer) if layer in c.index_source_layer_ids else []
        inside += engram(c, layer) if layer in c.engram_layer_ids else []
        yield from (replace(t, name=f"layers.{layer}.{t.name}") for t in inside)
    last = c.num_nextn_predict_layers - 1
    for i in range(c.num_nextn_predict_layers):
        inside = block(c, draft_experts)
        inside += draft_entry(c) if i == 0 else []
        inside += draft_exit(c) if i == last else []
        yield from (replace(t, name=f"mtp.{i}.{t.name}") for t in inside)
