"""How far RoPE is stretched where keys are compressed."""

from __future__ import annotations

from dataclasses import dataclass, fields

from minidsv41.config.rules import ConfigError, check_types, needing


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """YaRN, used by layers with compressed keys only. No magnitude factor."""

    rope_type: str = "yarn"
    factor: float = 16
    beta_fast: float = 32
    beta_slow: float = 1
    original_max_position_embeddings: int = 65536

    def __post_init__(self) -> None:
        need = needing(self, prefix="rope_scaling.")
        check_types(self, need)
        need(self.rope_type == "yarn", "rope_type", "only 'yarn' is implemented")
        for name in ("factor", "beta_slow", "original_max_position_embeddings"):
            need(getattr(self, name) > 0, name, "must be positive")
        need(self.beta_fast >= self.beta_slow, "beta_fast", f"at least beta_slow = {self.beta_slow}")

    @classmethod
    def from_json(cls, value: object) -> RopeScaling:
        """`rope_scaling` of a released config, which has every key; others are left alone."""
        names = [f.name for f in fields(cls)]
        if not isinstance(value, dict) or not value.keys() >= set(names):
            raise ConfigError(f"rope_scaling = {value!r}: an object with {', '.join(names)}")
        return cls(**{name: value[name] for name in names})
