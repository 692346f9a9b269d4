"""The model's shape: one frozen dataclass whose keys are those of the released `config.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

Mode = Literal["window", "full", "reindex", "reuse"]

# Keys of the released file with the one value that this model implements.
FIXED = {
    "hidden_act": "silu",
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
}
QUANTIZATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
TOP_LEVEL = ("image_token_id", "bos_token_id", "eos_token_id", "pad_token_id")


class ConfigError(ValueError):
    """A field, its value, and the rule that it breaks."""


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """YaRN, used by layers with compressed keys only. No magnitude factor."""

    rope_type: str = "yarn"
    factor: float = 16
    beta_fast: float = 32
    beta_slow: float = 1
    original_max_position_embeddings: int = 65536


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of one DeepSeek-V4.1 model. Defaults are the released values (`flash`).

    Layers below `decoder_start` form the causal encoder, the others the decoder. `compress_ratios`
    holds one ratio for each backbone layer and each DSpark block: 0 window only, 1 or 2 tokens an entry.
    `qat` (not a released key) switches the fake quantisation of everything that is cached.
    Raises ConfigError, which names field, value and rule.
    """

    vocab_size: int = 129280
    hidden_size: int = 5120
    num_hidden_layers: int = 40
    num_attention_heads: int = 64
    head_dim: int = 512
    qk_rope_head_dim: int = 64
    q_lora_rank: int = 1280
    o_lora_rank: int = 1024
    o_groups: int = 8
    rms_norm_eps: float = 1e-20
    max_position_embeddings: int = 1048576
    rope_theta: float = 10000
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    compress_rope_theta: float = 160000
    sliding_window: int = 128
    compress_ratios: tuple[int, ...] = (0, 0) + (2,) * 18 + (1,) * 20 + (0, 0, 0)
    kv_source_layer_ids: tuple[int, ...] = (2, 8, 14, 20)
    index_source_layer_ids: tuple[int, ...] = (2, 8, 14, 20, 24, 28, 32, 36)
    index_n_heads: int = 32
    index_head_dim: int = 128
    index_topk: int = 512
    candidate_source_layer_id: int = 20
    candidate_topk_blocks: int = 2048
    candidate_block_size: int = 8
    moe_intermediate_size: int = 2304
    n_routed_experts: int = 384
    num_experts_per_tok: int = 6
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    engram_layer_ids: tuple[int, ...] = (1, 14)
    engram_num_embeddings: tuple[int, ...] = (384006168, 384016682)
    engram_max_ngram_size: int = 4
    engram_vocab_size: int = 16000000
    engram_n_heads: int = 8
    engram_head_dim: int = 256
    engram_pad_token_id: int = 2
    engram_compressed_vocab_size: int = 99092
    num_nextn_predict_layers: int = 3
    dspark_block_size: int = 5
    dspark_noise_token_id: int = 128799
    dspark_target_layer_ids: tuple[int, ...] = (37, 38, 39)
    dspark_markov_rank: int = 256
    dspark_n_routed_experts: int = 128
    dspark_num_experts_per_tok: int = 3
    initializer_range: float = 0.02
    image_token_id: int = 129264
    bos_token_id: int = 0
    eos_token_id: int = 1
    pad_token_id: int = 2
    qat: bool = True

    def __post_init__(self) -> None:
        for f in fields(self):
            if isinstance(value := getattr(self, f.name), list):
                object.__setattr__(self, f.name, tuple(value))
        check(self)

    @property
    def decoder_start(self) -> int:
        """First decoder layer: its input is the encoder's output."""
        return self.num_hidden_layers // 2

    @property
    def engram_columns(self) -> int:
        """Table rows read for one token at one Engram layer: orders 2..n, each with its heads."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    def ratio(self, layer: int) -> int:
        return self.compress_ratios[layer]

    def kv_owner(self, layer: int) -> int | None:
        """The layer whose entries and index keys `layer` reads; None for window layers."""
        return self._owner(layer, self.kv_source_layer_ids)

    def index_owner(self, layer: int) -> int | None:
        """The layer whose selection `layer` uses; None for window layers."""
        return self._owner(layer, self.index_source_layer_ids)

    def _owner(self, layer: int, sources: tuple[int, ...]) -> int | None:
        if self.ratio(layer) == 0:
            return None
        return max(s for s in sources if s <= layer)

    def mode(self, layer: int) -> Mode:
        """Full writes and selects, Reindex only selects, Reuse does neither, window has no entries."""
        if self.ratio(layer) == 0:
            return "window"
        if layer in self.kv_source_layer_ids:
            return "full"
        return "reindex" if layer in self.index_source_layer_ids else "reuse"

    @cached_property
    def engram_primes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """[layer][order][head]: modulus of each hash head, all different (backbone spec §4.3)."""
        used: set[int] = set()
        layers = []
        for _ in self.engram_layer_ids:
            orders = []
            for _ in range(2, self.engram_max_ngram_size + 1):
                heads, p = [], self.engram_vocab_size - 1
                for _ in range(self.engram_n_heads):
                    p = next_prime(p, used)
                    used.add(p)
                    heads.append(p)
                orders.append(tuple(heads))
            layers.append(tuple(orders))
        return tuple(layers)

    def with_engram_rows(self) -> ModelConfig:
        """The same shape with `engram_num_embeddings` computed from `engram_vocab_size`."""
        probe = replace(self, engram_num_embeddings=())
        rows = tuple(sum(sum(o) for o in layer) for layer in probe.engram_primes)
        return replace(self, engram_num_embeddings=rows)

    def to_json(self) -> dict:
        """The released layout of `config.json` (plus `qat` when it is off)."""
        text = asdict(self)
        top = {name: text.pop(name) for name in TOP_LEVEL}
        if text.pop("qat") is False:
            text["qat"] = False
        return {
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": "deepseek_v41",
            **top,
            "quantization_config": QUANTIZATION,
            "text_config": {**text, **FIXED, "model_type": "deepseek_v41_text"},
        }

    @classmethod
    def from_json(cls, source: Path | str | dict) -> ModelConfig:
        """Read a released-style `config.json` (path, or its parsed content).

        Keys that describe other parts (vision, library versions) are left alone; a key that this
        model fixes must have that value.
        """
        raw = source
        if not isinstance(raw, dict):
            try:
                raw = json.loads(Path(source).read_text(encoding="utf-8"))
            except json.JSONDecodeError as error:
                raise ConfigError(f"{source}: not JSON ({error})") from None
        if not isinstance(raw, dict):
            raise ConfigError(f"{source}: a config is a JSON object, this is {type(raw).__name__}")
        text = dict(raw.get("text_config", raw))
        for name in TOP_LEVEL:
            if name in raw:
                text[name] = raw[name]
        for name, value in FIXED.items():
            if text.get(name, value) != value:
                raise ConfigError(f"{name} = {text[name]!r}: only {value!r} is implemented")
        stored = raw.get("quantization_config", {})
        for name, value in QUANTIZATION.items():
            if stored.get(name, value) != value:
                raise ConfigError(f"quantization_config.{name} = {stored[name]!r}: only {value!r} is implemented")
        names = {f.name for f in fields(cls)}
        needed = names - {"qat", "rope_scaling", "initializer_range", *TOP_LEVEL}
        if missing := sorted(needed - text.keys()):
            raise ConfigError(f"{missing[0]}: missing from the config (all missing: {missing})")
        kept = {k: v for k, v in text.items() if k in names}
        if kept.get("rope_scaling") is not None:
            known = {f.name for f in fields(RopeScaling)}
            kept["rope_scaling"] = RopeScaling(**{k: v for k, v in kept["rope_scaling"].items() if k in known})
        return cls(**kept)

    @classmethod
    def preset(cls, name: str) -> ModelConfig:
        """`toy` and `small` train, `geometry` has the released widths, `flash` is the release."""
        if name not in PRESETS:
            raise ConfigError(f"preset = {name!r}: allowed are {', '.join(PRESETS)}")
        if name == "flash":
            return cls()
        return cls(**PRESETS[name], engram_num_embeddings=()).with_engram_rows()


def next_prime(above: int, used: set[int]) -> int:
    p = above + 1
    while p in used or p < 2 or any(p % q == 0 for q in range(2, int(p**0.5) + 1)):
        p += 1
    return p


POSITIVE = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads head_dim qk_rope_head_dim q_lora_rank "
    "o_lora_rank o_groups max_position_embeddings sliding_window index_n_heads index_head_dim index_topk "
    "candidate_topk_blocks candidate_block_size moe_intermediate_size n_routed_experts num_experts_per_tok "
    "hc_mult hc_sinkhorn_iters engram_vocab_size engram_n_heads engram_head_dim engram_compressed_vocab_size "
    "dspark_block_size dspark_markov_rank dspark_n_routed_experts dspark_num_experts_per_tok"
).split()


def check(c: ModelConfig) -> None:
    """Refuse every impossible combination: raise ConfigError with field, value, rule."""

    def need(ok: bool, name: str, rule: str, at: int | None = None) -> None:
        if not ok:
            value = getattr(c, name)
            label = name if at is None else f"{name}[{at}]"
            raise ConfigError(f"{label} = {value if at is None else value[at]!r}: {rule}")

    for name in POSITIVE:
        value = getattr(c, name)
        need(isinstance(value, int) and not isinstance(value, bool) and value > 0, name, "a positive integer")
    for name in ("rms_norm_eps", "hc_eps", "rope_theta", "compress_rope_theta", "routed_scaling_factor"):
        need(getattr(c, name) > 0, name, "must be positive")
    need(c.swiglu_limit > 0, "swiglu_limit", "must be positive")
    check_widths(c, need)
    check_owners(c, need)
    check_engram(c, need)
    check_dspark(c, need)


def check_widths(c: ModelConfig, need) -> None:
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
    need(c.rope_scaling is not None and c.rope_scaling.rope_type == "yarn", "rope_scaling", "rope_type must be 'yarn'")
    for name in ("image_token_id", "bos_token_id", "eos_token_id", "pad_token_id"):
        need(0 <= getattr(c, name) < c.vocab_size, name, f"a token id below vocab_size = {c.vocab_size}")


def check_owners(c: ModelConfig, need) -> None:
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


def check_engram(c: ModelConfig, need) -> None:
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


def check_dspark(c: ModelConfig, need) -> None:
    need(c.num_nextn_predict_layers >= 1, "num_nextn_predict_layers", "at least one DSpark block")
    need(
        0 <= c.dspark_noise_token_id < c.vocab_size,
        "dspark_noise_token_id",
        f"a token id below vocab_size = {c.vocab_size}",
    )
    need(len(c.dspark_target_layer_ids) >= 1, "dspark_target_layer_ids", "at least one layer")
    for i, layer in enumerate(c.dspark_target_layer_ids):
        need(0 <= layer < c.num_hidden_layers, "dspark_target_layer_ids", f"a layer below {c.num_hidden_layers}", i)
    need(
        c.dspark_num_experts_per_tok <= c.dspark_n_routed_experts,
        "dspark_num_experts_per_tok",
        f"at most dspark_n_routed_experts = {c.dspark_n_routed_experts}",
    )


PRESETS: dict[str, dict] = {
    # Trained on sequences of 256 tokens; RoPE reaches 32,768.
    "toy": dict(
        vocab_size=4096,
        hidden_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        head_dim=64,
        qk_rope_head_dim=16,
        q_lora_rank=64,
        o_lora_rank=64,
        o_groups=2,
        max_position_embeddings=32768,
        rope_scaling=RopeScaling(original_max_position_embeddings=2048),
        sliding_window=32,
        compress_ratios=(0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0),
        kv_source_layer_ids=(1, 4),
        index_source_layer_ids=(1, 4, 6),
        index_n_heads=4,
        index_head_dim=32,
        index_topk=32,
        candidate_source_layer_id=4,
        candidate_topk_blocks=12,
        moe_intermediate_size=128,
        n_routed_experts=8,
        num_experts_per_tok=2,
        engram_layer_ids=(1, 3),
        engram_vocab_size=2000,
        engram_n_heads=4,
        engram_head_dim=32,
        engram_compressed_vocab_size=3142,
        dspark_noise_token_id=4,
        dspark_target_layer_ids=(5, 6, 7),
        dspark_markov_rank=64,
        dspark_n_routed_experts=4,
        dspark_num_experts_per_tok=1,
        image_token_id=3,
    ),
    "small": dict(
        vocab_size=4096,
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=8,
        head_dim=64,
        qk_rope_head_dim=16,
        q_lora_rank=192,
        o_lora_rank=128,
        o_groups=4,
        max_position_embeddings=32768,
        rope_scaling=RopeScaling(original_max_position_embeddings=2048),
        sliding_window=64,
        compress_ratios=(0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0),
        kv_source_layer_ids=(2, 4, 6),
        index_source_layer_ids=(2, 4, 6, 8, 10),
        index_n_heads=8,
        index_head_dim=32,
        index_topk=64,
        candidate_source_layer_id=6,
        candidate_topk_blocks=24,
        moe_intermediate_size=256,
        n_routed_experts=16,
        num_experts_per_tok=3,
        engram_layer_ids=(1, 4),
        engram_vocab_size=8000,
        engram_n_heads=4,
        engram_head_dim=64,
        engram_compressed_vocab_size=3142,
        dspark_noise_token_id=4,
        dspark_target_layer_ids=(9, 10, 11),
        dspark_markov_rank=96,
        dspark_n_routed_experts=8,
        dspark_num_experts_per_tok=2,
        image_token_id=3,
    ),
    # Released widths and schedule; fewer experts and small tables, so that one GPU holds it.
    "geometry": dict(n_routed_experts=8, dspark_n_routed_experts=8, engram_vocab_size=20000),
    "flash": {},
}
