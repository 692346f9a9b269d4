"""The shape of a model: one frozen dataclass, the rules that it must obey, and presets."""

from minidsv41.config.presets import PRESETS
from minidsv41.config.rules import ConfigError
from minidsv41.config.shape import Mode, ModelConfig
from minidsv41.config.yarn import RopeScaling

__all__ = ["PRESETS", "ConfigError", "Mode", "ModelConfig", "RopeScaling"]
