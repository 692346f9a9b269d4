"""The model's shape: one frozen dataclass whose keys are those of the released `config.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from minidsv41.config.presets import PRESETS
from minidsv41.config.rules import ConfigError, check
from minidsv41.config.yarn import RopeScaling

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
    "gate_temp": 1.0,
}
QUANTIZATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
TOP_LEVEL = ("image_token_id", "bos_token_id", "eos_token_id", "pad_token_id")


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
        """[layer][order][head]: modulus of each hash head, all different (official code)."""
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
        raw = source if isinstance(source, dict) else read(Path(source))
        text = dict(section(raw, "text_config", raw))
        for name in TOP_LEVEL:
            if name in raw:
                text[name] = raw[name]
        check_fixed(text, FIXED)
        check_fixed(section(raw, "quantization_config", {}), QUANTIZATION, prefix="quantization_config.")
        names = {f.name for f in fields(cls)}
        needed = names - {"qat", "initializer_range", *TOP_LEVEL}
        if missing := sorted(needed - text.keys()):
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise ConfigError(f"missing from the config: {', '.join(missing[:5])}{more}")
        kept = {k: v for k, v in text.items() if k in names}
        config = cls(**kept | {"rope_scaling": RopeScaling.from_json(kept["rope_scaling"])})
        if len(rows := config.engram_num_embeddings) != len(layers := config.engram_layer_ids):
            raise ConfigError(f"engram_num_embeddings = {rows}: one number for each of engram_layer_ids = {layers}")
        return config

    @classmethod
    def preset(cls, name: str) -> ModelConfig:
        """`toy` and `small` train, `geometry` has the released widths, `flash` is the release."""
        if name not in PRESETS:
            raise ConfigError(f"preset = {name!r}: allowed are {', '.join(PRESETS)}")
        if name == "flash":
            return cls()
        return cls(**PRESETS[name], engram_num_embeddings=()).with_engram_rows()


def read(path: Path) -> dict:
    """The JSON object in a file, or ConfigError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error})") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a config is a JSON object, this is {type(raw).__name__}")
    return raw


def section(raw: dict, name: str, default: dict) -> dict:
    if not isinstance(found := raw.get(name, default), dict):
        raise ConfigError(f"{name} = {found!r}: an object is expected")
    return found


def check_fixed(found: dict, fixed: dict, *, prefix: str = "") -> None:
    """Raise ConfigError unless every fixed key that is there has its one value."""
    for name, value in fixed.items():
        if found.get(name, value) != value:
            raise ConfigError(f"{prefix}{name} = {found[name]!r}: only {value!r} is implemented")


def next_prime(above: int, used: set[int]) -> int:
    p = above + 1
    while p in used or p < 2 or any(p % q == 0 for q in range(2, int(p**0.5) + 1)):
        p += 1
    return p
