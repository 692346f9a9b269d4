"""Deviations that are no option of the model: wrappers around its functions, in place while a `with` block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.model import Model
from minidsv41.model.dspark import MarkovHead
from minidsv41.model.indexer import Indexer
from minidsv41.ops import Next
from minidsv41.ops.seam import predict
from minidsv41.replaced import replaced
from minidsv41.train import losses, objective
from minidsv41.train.loop import TrainConfig
from minidsv41.train.losses import Queries
from minidsv41.train.objective import Backbone


@contextmanager
def undelayed() -> Iterator[None]:
    """mHC as in V4: a sublayer's input is mixed with the coefficients of its own streams, which are read twice.

    The output of the network is still mixed by the last sublayer's coefficients: V4's own head mix would add weights.
    """

    def seam(X: Tensor, F: Tensor | None, pre, post, comb, into: Next):
        X = X if F is None else ops.update(X, F, post, comb)
        own, post, comb = predict(X, into)
        return X, ops.rms_norm(ops.collapse(X, own), into.norm, into.eps), own, post, comb

    with replaced(ops, "seam", lambda _: seam):
        yield


@contextmanager
def plain_residual() -> Iterator[None]:
    """x + F(norm(x)): coefficients are constants. pre reads stream 0, post adds to it, comb leaves all as they are."""

    def seam(X: Tensor, F: Tensor | None, pre, post, comb, into: Next):
        X = X if F is None else ops.update(X, F, post, comb)
        rows, n = X.shape[:2]
        eye = torch.eye(n, dtype=into.fn.dtype, device=X.device)
        one_hot, ones = eye[0].expand(rows, n), torch.ones_like(eye[0]).expand(rows, n)
        x = ops.rms_norm(ops.collapse(X, one_hot), into.norm, into.eps)
        return X, x, one_hot, ones, eye.expand(rows, n, n)

    with replaced(ops, "seam", lambda _: seam):
        yield


def set_rounding(model: Model, on: bool) -> None:
    """Switch the fake quantisation of everything that is cached."""
    model.config = replace(model.config, qat=on)
    for part in model.modules():
        if isinstance(part, Indexer):
            part.qat = on


@contextmanager
def rounding_late(config: TrainConfig) -> Iterator[None]:
    """Caches are rounded in the last part of a training only, together with the weights (`round_from`)."""

    def make(loss: Callable) -> Callable:
        def late(self: Backbone, *args, step: int, **rest):
            set_rounding(self.module, step >= config.round_from * config.steps)
            return loss(self, *args, step=step, **rest)

        return late

    with replaced(Backbone, "loss", make):
        yield


@dataclass(frozen=True)
class InPool(Queries):
    """Queries that may only read the entries of their pool: inside bool [B, T, N]."""

    inside: Tensor

    @property
    def hidden(self) -> Tensor:
        return super().hidden | ~self.inside

    @torch.no_grad()
    def mass(self) -> Tensor:
        p = Queries(*(getattr(self, f.name) for f in fields(Queries))).mass() * self.inside
        return p / p.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)


@contextmanager
def pool_in_alignment(config: TrainConfig) -> Iterator[None]:
    """A Reindex layer's indexer is aligned on the entries of its pool, from which it has to choose."""

    def make(alignment: Callable) -> Callable:
        def pooled(self: Backbone, layer: int, batch, seen):
            c = self.module.config
            if c.mode(layer) != "reindex" or not self.align:
                return alignment(self, layer, batch, seen)
            inside = seen.take(f"L{c.candidate_source_layer_id}.idx.candidates")
            inside = inside.unflatten(0, (len(batch.lengths), -1))[-self.align :]
            with replaced(objective, "Queries", lambda _: partial(InPool, inside=inside)):
                return alignment(self, layer, batch, seen)

        return pooled

    recorded = replaced(objective, "Recorder", lambda made: partial(made, ".candidates"))
    with recorded, replaced(Backbone, "alignment", make):
        yield


@contextmanager
def no_markov() -> Iterator[None]:
    """Drafts of one block know nothing of each other: nothing is added to their logits."""

    def make(forward: Callable) -> Callable:
        def nothing(self: MarkovHead, previous: Tensor) -> Tensor:
            return torch.zeros_like(forward(self, previous))

        return nothing

    with replaced(MarkovHead, "forward", make):
        yield


@contextmanager
def no_confidence() -> Iterator[None]:
    """The confidence head is not trained, so that the blocks serve the drafts alone."""
    with replaced(losses, "DRAFT_WEIGHTS", lambda weights: weights | {"confidence": 0.0}):
        yield


@contextmanager
def drafts_alone() -> Iterator[None]:
    """Neither Markov head nor confidence."""
    with no_markov(), no_confidence():
        yield
