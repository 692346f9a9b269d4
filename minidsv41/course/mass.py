"""Attention mass: what a layer would give each key if it could read every entry, and what a selection keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41.course.weights import rows
from minidsv41.model import Model
from minidsv41.ops import Batch
from minidsv41.ops.attention import gather, probabilities
from minidsv41.ops.select import lowest_topk


@dataclass(frozen=True)
class Mass:
    """One layer's softmax with every visible entry selected, float64; the three parts of a query and head sum to 1.

    window [T, H, W], its last column the query's own row; entries [T, H, N]; sink [T, H].
    """

    window: Tensor
    entries: Tensor
    sink: Tensor

    def captured(self, topk: Tensor) -> Tensor:
        """[T, H] mass on the entries topk [T, k], or [T, H, k] where each head has its own; -1 is none."""
        at = topk if topk.dim() == 3 else topk[:, None].expand(-1, self.entries.shape[1], -1)
        return (self.entries.gather(2, at.clamp(min=0)) * (at >= 0)).sum(-1)

    def recall(self, topk: Tensor) -> Tensor:
        """[T] share of the heads' mass on entries, taken together, that lies on topk; 1 where no entry is seen."""
        return ratio(self.captured(topk).sum(1), self.entries.sum((1, 2)))

    def recall_by_head(self, topk: Tensor) -> Tensor:
        """[T, H] share of each head's own mass on entries that lies on topk; 1 where no entry is seen."""
        return ratio(self.captured(topk), self.entries.sum(2))

    def best(self, k: int) -> Tensor:
        """[T, k] the entries that all heads together look at most: no choice of k has a larger recall."""
        return lowest_topk(seen_only(self.entries.sum(1)), k)

    def best_by_head(self, k: int) -> Tensor:
        """[T, H, k] the entries that each head looks at most."""
        return lowest_topk(seen_only(self.entries).flatten(0, 1), k).unflatten(0, self.entries.shape[:2])


@torch.no_grad()
def attention_mass(model: Model, trace: Mapping[str, Tensor], layer: int, *, sink: Tensor | None = None) -> Mass:
    """The Mass of `layer` in `model.trace(ids)`. sink [H]: in place of the trained logits."""
    c = model.config
    entries = trace[f"L{c.kv_owner(layer)}.cmp.entry"].double()
    q, window = (trace[f"L{layer}.attn.{name}"].double() for name in ("q", "win_kv"))
    batch, at = Batch.equal(trace["ids"][None]), torch.arange(len(entries))
    every = torch.where(at < batch.visible(c.ratio(layer))[:, None], at, -1)  # [T, N]
    sink = model.layers[layer].attn.attn_sink if sink is None else sink
    parts = []
    for part in torch.arange(len(q)).split(64):
        here = slice(int(part[0]), int(part[-1]) + 1)
        keys, missing = gather(rows(window), rows(entries), every, batch.span(c.sliding_window), here)
        parts.append(probabilities(q[here], keys, missing, sink.double()))
    p = torch.cat(parts)
    return Mass(*p.tensor_split([c.sliding_window], dim=-1), sink=1 - p.sum(-1))


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole, 1.0)


def seen_only(mass: Tensor) -> Tensor:
    return mass.masked_fill(mass == 0, -torch.inf)
