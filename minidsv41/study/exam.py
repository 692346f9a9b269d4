"""One trained network, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.study.base import Sizes
from minidsv41.study.facts import Facts
from minidsv41.study.variant import reshaped
from minidsv41.tokens import load_tokenizer, token_map
from minidsv41.train.data import Corpus, corpus
from minidsv41.train.evaluate import validate
from minidsv41.train.objective import Backbone
from minidsv41.train.recall import Sequences, recall

SEED = 1_000_000  # of what is asked: no training draws it


@dataclass
class Exam:
    """A network of one variant; folder: where what is trained on top of it goes."""

    model: Model
    sizes: Sizes
    seed: int
    folder: Path

    @property
    def corpus(self) -> Corpus:
        return corpus()

    @property
    def asked(self) -> Sequences:
        """Facts and questions in the validation text, the same for every network."""
        return self.lookups(self.sizes.asked)

    def lookups(self, count: int) -> Sequences:
        return Facts(self.held_out.numpy(), length=self.sizes.length, seed=SEED)(count, 0)

    @cached_property
    def held_out(self) -> Tensor:
        """All validation text [N]."""
        return torch.cat([torch.as_tensor(s.tokens) for s in self.corpus.validation.values()]).long()

    def read(self, **changes) -> Exam:
        """The same weights under a changed config."""
        weights = dict(self.model.named_parameters())
        return replace(self, model=loaded(reshaped(self.model.config, changes), weights, self.sizes.device))

    def quality(self) -> dict[str, float]:
        """Bits per byte of the validation text, in total and by kind; share of right answers, of all and of those that
        nothing in the last two windows tells; mean -ln p of the answers."""
        z, logits = self.sizes, Backbone(self.model, replay=0, align=0, seed=0).logits
        how = dict(length=z.length, batch=z.batch, batches=z.windows, device=z.device)
        bits = validate(logits, self.corpus, **how)
        asked = self.asked
        far = asked._replace(distance=asked.distance * (asked.distance > 2 * self.model.config.sliding_window))
        found, beyond = (recall(logits, some, batch=z.batch) for some in (asked, far))
        kinds = {f"bits_per_byte_{kind}": value for kind, value in bits.items() if kind != "total"}
        return {
            "bits_per_byte": bits["total"],
            **kinds,
            "recall": found["recall"],
            "recall_far": beyond["recall"],
            "recall_nats": found["nats"],
        }


def loaded(config: ModelConfig, weights: dict[str, Tensor], device: str) -> Model:
    """A network of that shape with these parameters."""
    with torch.device("meta"):
        model = Model(config)
    model.token_map = torch.tensor(token_map(load_tokenizer()), device=device)
    model.load_state_dict({name: w.detach().clone().to(device) for name, w in weights.items()}, assign=True)
    return model


def seen_by(model: Model, tokens: Tensor, *wanted: str) -> dict[str, Tensor]:
    """What a pass over tokens [B, T] records under names that end in one of `wanted`."""
    out: dict[str, Tensor] = {}
    batch = Batch.equal(tokens.to(model.device))

    def record(name: str, value) -> None:
        if name.endswith(wanted):
            out[name] = value() if callable(value) else value

    with torch.no_grad():
        model(batch, SequenceKeys(model.config, batch), record=record)
    return out
