"""Parameters by part, and how many of them one token meets: sums over the tensor list."""

from __future__ import annotations

from collections.abc import Iterable

from minidsv41.config import ModelConfig
from minidsv41.ledger import tensors as table
from minidsv41.ledger.line import Line, fields, lift, total
from minidsv41.ledger.storage import FP8, Tensor

# The released vision tower, which is not built here: its blocks and aligner, and three vectors of width 5120.
VISION_PARAMS = Line("vision_params", 485_253_120, "parameters", "given by the release")
VISION = (VISION_PARAMS + 3 * lift(5120)).named("vision_tower_params", "parameters")


def count(name: str, tensors: Iterable[Tensor]) -> Line:
    return total(t.count for t in tensors).named(name, "parameters")


def matrices(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [t for t in tensors if len(t.shape) == 2]


def blocks(c: ModelConfig) -> Line:
    return fields(c, "num_hidden_layers")[0]


def expert_params(c: ModelConfig) -> Line:
    return count("expert_params", table.expert(c, "shared_experts", FP8))


def attn_matrices(c: ModelConfig) -> Line:
    return count("attn_matrices", matrices(table.attention(c)))


def attn_params(c: ModelConfig) -> Line:
    vectors = total(t.count for t in table.attention(c) if len(t.shape) == 1)
    return (attn_matrices(c) + vectors).named("attn_params", "parameters")


def mhc_params_per_sublayer(c: ModelConfig) -> Line:
    return count("mhc_params_per_sublayer", table.hyper(c, "attn"))


def mhc_matrix(c: ModelConfig) -> Line:
    return count("mhc_matrix", matrices(table.hyper(c, "attn")))


def router_matrix(c: ModelConfig) -> Line:
    return count("router_matrix", matrices(table.gate(c, fields(c, "n_routed_experts")[0])))


def gate_params(c: ModelConfig) -> Line:
    return count("gate_params", table.gate(c, fields(c, "n_routed_experts")[0]))


def draft_gate_params(c: ModelConfig) -> Line:
    return count("draft_gate_params", table.gate(c, fields(c, "dspark_n_routed_experts")[0]))


def block_with(c: ModelConfig, experts: Line, gate: Line) -> Line:
    norms = total(t.count for t in table.norms(c))
    return attn_params(c) + norms + (experts + 1) * expert_params(c) + gate + 2 * mhc_params_per_sublayer(c)


def block_params(c: ModelConfig) -> Line:
    (experts,) = fields(c, "n_routed_experts")
    return block_with(c, experts, gate_params(c)).named("block_params", "parameters")


def draft_block_params(c: ModelConfig) -> Line:
    (experts,) = fields(c, "dspark_n_routed_experts")
    return block_with(c, experts, draft_gate_params(c)).named("draft_block_params", "parameters")


def compressor_tensors(c: ModelConfig) -> list[Tensor]:
    return [t for owner in c.kv_source_layer_ids for t in table.compressor(c, owner)]


def indexer_tensors(c: ModelConfig) -> list[Tensor]:
    return [t for source in c.index_source_layer_ids for t in table.indexer(c, source)]


def compressor_params(c: ModelConfig) -> Line:
    return count("compressor_params", compressor_tensors(c))


def indexer_params(c: ModelConfig) -> Line:
    return count("indexer_params", indexer_tensors(c))


def embed_head_params(c: ModelConfig) -> Line:
    return count("embed_head_params", matrices(table.outer(c)))


def backbone_params(c: ModelConfig) -> Line:
    """Everything but the Engram modules and DSpark (and the vision tower)."""
    owned = compressor_params(c) + indexer_params(c) + embed_head_params(c)
    final_norm = fields(c, "hidden_size")[0]
    return (blocks(c) * block_params(c) + owned + final_norm).named("backbone_params", "parameters")


def backbone_params_matrices(c: ModelConfig) -> Line:
    """The backbone without norms, sinks, biases and the mHC base and scale."""
    (experts,) = fields(c, "n_routed_experts")
    layer = attn_matrices(c) + (experts + 1) * expert_params(c) + router_matrix(c) + 2 * mhc_matrix(c)
    owned = count("compressor_matrices", matrices(compressor_tensors(c)))
    owned += count("indexer_matrices", matrices(indexer_tensors(c)))
    return (blocks(c) * layer + owned + embed_head_params(c)).named("backbone_params_matrices", "parameters")


def engram_part(c: ModelConfig, name: str, suffix: str) -> Line:
    tensors = [t for layer in c.engram_layer_ids for t in table.engram(c, layer)]
    return count(name, (t for t in tensors if t.name.endswith(suffix)))


def engram_table_params(c: ModelConfig) -> Line:
    return engram_part(c, "engram_table_params", "embed.weight")


def engram_wkv_params(c: ModelConfig) -> Line:
    return engram_part(c, "engram_wkv_params", "wkv.weight")


def engram_params(c: ModelConfig) -> Line:
    gains = engram_part(c, "engram_gain_params", "q_weight") + engram_part(c, "engram_key_gain_params", "k_weight")
    return (engram_table_params(c) + engram_wkv_params(c) + gains).named("engram_params", "parameters")


def draft_params(c: ModelConfig) -> Line:
    """The DSpark blocks with what the first and the last of them add; embedding and head are the target's."""
    (stages,) = fields(c, "num_nextn_predict_layers")
    ends = total(t.count for t in (*table.draft_entry(c), *table.draft_exit(c)))
    return (stages * draft_block_params(c) + ends).named("draft_params", "parameters")


def parameter_count(c: ModelConfig) -> Line:
    """The text model as built here: backbone, Engram, DSpark; gate biases count, stored scales do not."""
    return (backbone_params(c) + engram_params(c) + draft_params(c)).named("parameter_count", "parameters")


def total_params(c: ModelConfig) -> Line:
    """The text model and the released vision tower."""
    return (parameter_count(c) + VISION).named("total_params", "parameters")


def active_per_layer_matrices(c: ModelConfig) -> Line:
    """Matrix parameters that one token meets in one layer: attention, its experts, router, mHC."""
    (chosen,) = fields(c, "num_experts_per_tok")
    layer = attn_matrices(c) + (chosen + 1) * expert_params(c) + router_matrix(c) + 2 * mhc_matrix(c)
    return layer.named("active_per_layer_matrices", "parameters")


def active_prefill_encoder(c: ModelConfig) -> Line:
    """Prefill runs the encoder on every token and the decoder on the last window only."""
    encoder = Line("encoder_layers", c.decoder_start, "layers")
    return (encoder * active_per_layer_matrices(c)).named("active_prefill_encoder", "parameters")


def active_decode_with_head(c: ModelConfig) -> Line:
    d, vocab = fields(c, "hidden_size vocab_size")
    decode = blocks(c) * active_per_layer_matrices(c) + vocab * d
    return decode.named("active_decode_with_head", "parameters")


def active_decode_full(c: ModelConfig) -> Line:
    extra = compressor_params(c) + indexer_params(c) + engram_wkv_params(c)
    return (active_decode_with_head(c) + extra).named("active_decode_full", "parameters")
