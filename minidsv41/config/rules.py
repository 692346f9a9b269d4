"""What a config may be: the type of every field, then the rules that tie fields together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minidsv41.config.shape import ModelConfig

Need = Callable[..., None]


class ConfigError(ValueError):
    """A field, its value, and the rule that it breaks."""


def needing(thing: object, *, prefix: str = "") -> Need:
    """need(ok, field, rule, at=None): raise ConfigError about that field (or its element) unless ok."""

    def need(ok: bool, name: str, rule: str, at: int | None = None) -> None:
        if not ok:
            value, place = getattr(thing, name), "" if at is None else f"[{at}]"
            raise ConfigError(f"{prefix}{name}{place} = {value if at is None else value[at]!r}: {rule}")

    return need


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("an integer", is_integer),
    "float": ("a finite number", lambda v: is_integer(v) or isinstance(v, float) and math.isfinite(v)),
    "str": ("text", lambda v: isinstance(v, str)),
    "bool": ("true or false", lambda v: isinstance(v, bool)),
    "tuple[int, ...]": ("a list of integers", lambda v: isinstance(v, tuple) and all(map(is_integer, v))),
    "RopeScaling": ("the settings of YaRN", is_dataclass),
}


def check_types(thing: Any, need: Need) -> None:
    """Every field holds what its annotation says."""
    for f in fields(thing):
        rule, fits = TYPES[f.type]
        need(fits(getattr(thing, f.name)), f.name, rule)


POSITIVE = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads head_dim qk_rope_head_dim q_lora_rank "
    "o_lora_rank o_groups max_position_embeddings sliding_window index_n_heads index_head_dim index_topk "
    "candidate_topk_blocks candidate_block_size moe_intermediate_size n_routed_experts num_experts_per_tok "
    "hc_mult hc_sinkhorn_iters engram_vocab_size engram_n_heads engram_head_dim engram_compressed_vocab_size "
    "num_nextn_predict_layers dspark_block_size dspark_markov_rank dspark_n_routed_experts dspark_num_experts_per_tok"
).split()


def check(c: ModelConfig) -> None:
    """Refuse every impossible combination: raise ConfigError with field, value, rule."""
    need = needing(c)
    check_types(c, need)
    for name in POSITIVE:
        need(getattr(c, name) > 0, name, "a positive integer")
    for name in ("rms_norm_eps", "hc_eps", "routed_scaling_factor", "swiglu_limit"):
        need(getattr(c, name) > 0, name, "must be positive")
    for name in ("rope_theta", "compress_rope_theta"):
        need(getattr(c, name) > 1, name, "must be above 1")
    need(c.initializer_range >= 0, "initializer_range", "must not be negative")
    check_widths(c, need)
    check_owners(c, need)
    check_engram(c, need)
    check_dspark(c, need)


def check_widths(c: ModelConfig, need: Need) -> None:
    rope = c.qk_rope_head_dim
    need(rope % 2 == 0, "qk_rope_head_dim", "must be even: RoPE turns pairs")
    need(rope <= c.head_dim, "qk_rope_head_dim", f"at most head_dim = {c.head_dim}")
    need(rope <= c.index_head_dim, "qk_rope_head_dim", f"at most index_head_dim = {c.index_head_dim}")
    need(c.head_dim % 32 == 0, "head_dim", "a multiple of 32: window rows have one scale per 32")
    need(c.index_head_dim % 32 == 0, "index_head_dim", "a multiple of 32: index keys have one scale per 32")
    need(
        c.num_attention_heads % c.o_groups == 0,
        "o_groups",
        f"must divide num_attention_heads = {c.num_attention_heads}",
    )
    for name in ("hidden_size", "moe_intermediate_size", "engram_head_dim"):
        need(getattr(c, name) % 32 == 0, name, "a multiple of 32: stored rows have one scale per 32")
    need(
        c.num_experts_per_tok <= c.n_routed_experts,
        "num_experts_per_tok",
        f"at most n_routed_experts = {c.n_routed_experts}",
    )
    for name in ("image_token_id", "bos_token_id", "eos_token_id", "pad_token_id"):
        need(0 <= getattr(c, name) < c.vocab_size, name, f"a token id below vocab_size = {c.vocab_size}")


def check_owners(c: ModelConfig, need: Need) -> None:
    layers = c.num_hidden_layers
    need(layers % 2 == 0, "num_hidden_layers", "must be even: half encoder, half decoder")
    total = layers + c.num_nextn_predict_layers
    need(len(c.compress_ratios) == total, "compress_ratios", f"one for each of {total} layers and DSpark blocks")
    for i, r in enumerate(c.compress_ratios):
        need(r in (0, 1, 2), "compress_ratios", "allowed are 0, 1, 2", i)
        need(i < layers or r == 0, "compress_ratios", "DSpark blocks have window only (0)", i)
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        ids = getattr(c, name)
        need(list(ids) == sorted(set(ids)), name, "must ascend without repetition")
        for i, s in enumerate(ids):
            need(0 <= s < layers, name, f"a layer below {layers}", i)
            need(c.ratio(s) > 0, name, f"layer {s} has compress_ratio 0 and so no entries", i)
    for i, s in enumerate(c.kv_source_layer_ids):
        need(
            s in c.index_source_layer_ids,
            "kv_source_layer_ids",
            "an owner of entries must also be in index_source_layer_ids",
            i,
        )
    for layer in range(layers):
        if c.ratio(layer) == 0:
            continue
        owners = [s for s in c.kv_source_layer_ids if s <= layer]
        need(bool(owners), "kv_source_layer_ids", f"layer {layer} reads entries, but no source stands at or before it")
        need(
            c.ratio(owners[-1]) == c.ratio(layer),
            "compress_ratios",
            f"its owner, layer {owners[-1]}, has {c.ratio(owners[-1])}: owner and reader must agree",
            layer,
        )
    source = c.candidate_source_layer_id
    need(
        source in c.kv_source_layer_ids,
        "candidate_source_layer_id",
        f"must be one of kv_source_layer_ids = {c.kv_source_layer_ids}",
    )
    for layer in range(source + 1, layers):
        if c.mode(layer) == "reindex":
            need(
                c.kv_owner(layer) == source,
                "candidate_source_layer_id",
                f"Reindex layer {layer} reads owner {c.kv_owner(layer)}, whose pool this source does not build",
            )
    need(
        (c.candidate_topk_blocks - 1) * c.candidate_block_size + 1 >= c.index_topk,
        "candidate_topk_blocks",
        f"(blocks - 1) * {c.candidate_block_size} + 1 must reach index_topk = {c.index_topk}, or a Reindex layer "
        "could not fill its selection",
    )


def check_engram(c: ModelConfig, need: Need) -> None:
    ids = c.engram_layer_ids
    need(list(ids) == sorted(set(ids)), "engram_layer_ids", "must ascend without repetition")
    for i, layer in enumerate(ids):
        need(0 <= layer < c.num_hidden_layers, "engram_layer_ids", f"a layer below {c.num_hidden_layers}", i)
    need(c.engram_max_ngram_size >= 2, "engram_max_ngram_size", "at least 2")
    need(
        c.engram_compressed_vocab_size <= c.vocab_size,
        "engram_compressed_vocab_size",
        f"at most vocab_size = {c.vocab_size}",
    )
    need(0 <= c.engram_pad_token_id < c.vocab_size, "engram_pad_token_id", "a token id below vocab_size")
    if c.engram_num_embeddings:
        rows = tuple(sum(sum(o) for o in layer) for layer in c.engram_primes)
        need(
            c.engram_num_embeddings == rows,
            "engram_num_embeddings",
            f"the primes from engram_vocab_size = {c.engram_vocab_size} sum to {rows}",
        )


def check_dspark(c: ModelConfig, need: Need) -> None:
    need(
        0 <= c.dspark_noise_token_id < c.vocab_size,
        "dspark_noise_token_id",
        f"a token id below vocab_size = {c.vocab_size}",
    )
    targets = c.dspark_target_layer_ids
    need(len(targets) >= 1, "dspark_target_layer_ids", "at least one layer")
    need(list(targets) == sorted(set(targets)), "dspark_target_layer_ids", "must ascend without repetition")
    for i, layer in enumerate(targets):
        need(0 <= layer < c.num_hidden_layers, "dspark_target_layer_ids", f"a layer below {c.num_hidden_layers}", i)
    need(
        c.dspark_num_experts_per_tok <= c.dspark_n_routed_experts,
        "dspark_num_experts_per_tok",
        f"at most dspark_n_routed_experts = {c.dspark_n_routed_experts}",
    )
