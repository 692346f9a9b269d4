"""The same weights in V4's clothes: an HCA layer without position bias and query norm is a Full layer of V4.1."""

from __future__ import annotations

import torch

from minidsv41.families import HCA
from minidsv41.model import Model

NAMES = {
    "wq_a": "q_a_proj",
    "q_norm": "q_a_norm",
    "wq_b": "q_b_proj",
    "wkv": "kv_proj",
    "wo_a": "o_a_proj",
    "wo_b": "o_b_proj",
    "attn_sink": "sinks",
    "compressor.wkv": "compressor.kv_proj",
    "compressor.wgate": "compressor.gate_proj",
    "compressor.norm": "compressor.kv_norm",
}


def as_hca(model: Model, layer: int, *, query_norm: bool = False) -> HCA:
    """HCA with the weights of a Full layer, at its compression ratio; `query_norm` keeps what V4 has and V4.1 not.

    It reads every entry, so it is the same layer while all visible entries are selected.
    """
    c, attn = model.config, model.layers[layer].attn
    if attn.mode != "full":
        raise ValueError(f"layer = {layer}: must be a Full layer, one of {c.kv_source_layer_ids}")
    out = HCA(
        hidden=c.hidden_size,
        heads=c.num_attention_heads,
        head_dim=c.head_dim,
        rope=c.qk_rope_head_dim,
        q_lora=c.q_lora_rank,
        o_groups=c.o_groups,
        o_lora=c.o_lora_rank,
        window=c.sliding_window,
        rate=c.ratio(layer),
        theta=c.compress_rope_theta,
        scaling=c.rope_scaling,
        eps=c.rms_norm_eps,
    ).to(model.dtype)
    weights = {"compressor.position_bias": torch.zeros_like(out.compressor.position_bias)}
    for name, value in attn.state_dict().items():
        owner, _, last = name.rpartition(".")
        if "indexer" not in name:
            weights[f"{NAMES.get(owner, owner)}.{last}" if owner else NAMES[name]] = value
    if c.ratio(layer) == 1:  # a softmax over one token is 1, whatever its gate
        weights["compressor.gate_proj.weight"] = torch.ones_like(out.compressor.gate_proj.weight)
    out.load_state_dict(weights)
    if not query_norm:
        out.query_norm = lambda q: q
    return out.requires_grad_(False)
