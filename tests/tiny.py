"""A model small enough for property tests, with every mechanism active."""

from __future__ import annotations

from dataclasses import replace

import torch

from minidsv41.config import ModelConfig, RopeScaling
from minidsv41.model import Model

TINY = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=8,
    num_attention_heads=2,
    head_dim=32,
    qk_rope_head_dim=8,
    q_lora_rank=32,
    o_lora_rank=16,
    o_groups=2,
    max_position_embeddings=512,
    rope_scaling=RopeScaling(original_max_position_embeddings=64),
    sliding_window=6,
    compress_ratios=(0, 2, 2, 2, 1, 1, 1, 1, 0, 0),
    kv_source_layer_ids=(1, 3, 4),
    index_source_layer_ids=(1, 3, 4, 6),
    index_n_heads=2,
    index_head_dim=32,
    index_topk=5,
    candidate_source_layer_id=4,
    candidate_topk_blocks=3,
    candidate_block_size=3,
    moe_intermediate_size=32,
    n_routed_experts=5,
    num_experts_per_tok=2,
    swiglu_limit=1.0,
    engram_layer_ids=(1, 5),
    engram_num_embeddings=(),
    engram_vocab_size=31,
    engram_n_heads=2,
    engram_head_dim=32,
    engram_compressed_vocab_size=50,
    num_nextn_predict_layers=2,
    dspark_block_size=3,
    dspark_noise_token_id=4,
    dspark_target_layer_ids=(5, 7),
    dspark_markov_rank=8,
    dspark_n_routed_experts=3,
    dspark_num_experts_per_tok=1,
    initializer_range=0.3,
    image_token_id=3,
).with_engram_rows()


def tiny(*, dtype: torch.dtype = torch.float64, seed: int = 0, **changes) -> Model:
    """A random tiny model; norms and biases are random too, so that a forgotten one shows."""
    generator = torch.Generator().manual_seed(seed)
    model = Model(replace(TINY, **changes)).initialise(generator)
    for p in model.parameters():
        if p.dim() == 1:
            p.data += 0.2 * torch.randn(p.shape, generator=generator)
    return model.cast(dtype).eval()


def prompt(length: int, seed: int = 0, vocab: int = 64) -> torch.Tensor:
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed))
