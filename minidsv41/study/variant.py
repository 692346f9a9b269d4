"""What is compared: a training, a variant of a study, a study."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from minidsv41.config import ModelConfig
from minidsv41.train.loop import TrainConfig

if TYPE_CHECKING:
    from minidsv41.study.exam import Exam

Fields = Mapping[str, Any]
Around = Callable[[], AbstractContextManager]


class StudyError(ValueError):
    """A study that does not exist, or a run of it that failed."""


def unchanged(config: TrainConfig) -> AbstractContextManager:
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Training:
    """One backbone: fields that differ from the base shape and the base settings.

    network: in place whenever this network runs; objective: only while it is trained. Both say what is no option of
    the model.
    """

    shape: Fields = field(default_factory=dict)
    settings: Fields = field(default_factory=dict)
    network: Around = nullcontext
    objective: Callable[[TrainConfig], AbstractContextManager] = unchanged

    def config(self, base: ModelConfig) -> ModelConfig:
        return reshaped(base, self.shape)

    def key(self, base: ModelConfig, settings: TrainConfig) -> str:
        """The same for two trainings if they leave the same network."""
        whole = [self.config(base).to_json(), vars(replace(settings, **self.settings))]
        text = json.dumps([*whole, self.network.__name__, self.objective.__name__], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One network of a study. read: fields of the shape that change after training; around: in place while it is
    measured."""

    name: str
    says: str
    trained: Training = field(default_factory=Training)
    read: Fields = field(default_factory=dict)
    around: Around = nullcontext


@dataclass(frozen=True, kw_only=True)
class Study:
    """Variants, a question, and `measure`: what is told of each besides bits per byte and recall."""

    name: str
    question: str
    variants: tuple[Variant, ...]
    measure: Callable[[Exam], dict[str, float]]

    def variant(self, name: str) -> Variant:
        return next(v for v in self.variants if v.name == name)


def reshaped(config: ModelConfig, changes: Fields) -> ModelConfig:
    """The config with some fields changed, and as many table rows as it then has."""
    return replace(config, engram_num_embeddings=(), **changes).with_engram_rows()
