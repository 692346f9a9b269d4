"""Attention weights of one layer, from a trace: what the window rows get, and what the entries get."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from minidsv41.model import Model
from minidsv41.ops import Batch, Rows
from minidsv41.ops.attention import gather, probabilities


@torch.no_grad()
def attention_weights(
    model: Model, trace: Mapping[str, Tensor], layer: int, *, topk: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights [T, H, W] on window rows and [T, H, k] on entries; what the sink takes is missing from their sum.

    trace: `model.trace(ids)`. topk [T, k]: the entries to read (-1: none), by default those that the layer read.
    """
    c = model.config
    owner, chooser = c.kv_owner(layer), c.index_owner(layer)
    topk = trace[f"L{chooser}.idx.topk"] if topk is None else topk
    span = Batch.equal(trace["ids"][None]).span(c.sliding_window)
    window, entries = rows(trace[f"L{layer}.attn.win_kv"]), rows(trace[f"L{owner}.cmp.entry"])
    keys, missing = gather(window, entries, topk, span, slice(0, len(topk)))
    sink = model.layers[layer].attn.attn_sink
    return probabilities(trace[f"L{layer}.attn.q"], keys, missing, sink).tensor_split([c.sliding_window], dim=-1)


def rows(values: Tensor) -> Rows:
    """values [n, D] of one sequence."""
    return Rows(values, torch.zeros(1, 1, dtype=torch.int64), page=max(1, len(values)))
