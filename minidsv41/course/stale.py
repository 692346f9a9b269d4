"""What stale index keys do in decode: which steps, which layers, how many choices, how much attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.course.sabotage import sabotage, trace_by_token
from minidsv41.model import Model

SCHEDULE = (
    "num_hidden_layers compress_ratios kv_source_layer_ids index_source_layer_ids candidate_source_layer_id "
    "dspark_target_layer_ids"
).split()


def decoded(model: Model, ids: Tensor, *, after: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """ids [T], the first `after` as a prompt, the others one at a time: the trace with the owner's keys and with
    those of whoever wrote last (fault 00.stale_index_key)."""
    own = trace_by_token(model, ids, after=after)
    with sabotage("00.stale_index_key"):
        return own, trace_by_token(model, ids, after=after)


def choices_kept(own: Mapping[str, Tensor], stale: Mapping[str, Tensor], layer: int) -> Tensor:
    """[T] how many of the entries that `layer` should choose it still chooses."""
    right, found = own[f"L{layer}.idx.topk"], stale[f"L{layer}.idx.topk"]
    return ((right[:, :, None] == found[:, None]).any(-1) & (right >= 0)).sum(-1)


def divergence(own: Mapping[str, Tensor], stale: Mapping[str, Tensor]) -> Tensor:
    """[T] KL divergence of the next token, stale against own. -> nats"""
    p, q = own["logits"].log_softmax(-1), stale["logits"].log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def narrow_release(*, seed: int = 0) -> Model:
    """The released schedule of 40 layers at the toy's widths, in float64. Untrained: what it chooses means nothing."""
    flash, toy = ModelConfig.preset("flash"), ModelConfig.preset("toy")
    c = replace(toy, n_routed_experts=2, **{name: getattr(flash, name) for name in SCHEDULE})
    return Model(c).initialise(torch.Generator().manual_seed(seed)).cast(torch.float64)
