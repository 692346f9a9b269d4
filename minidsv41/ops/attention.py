"""Attention over the window and the selected entries, plain version."""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.ops.rows import Rows, Span

GATHERED = 1 << 25  # key values gathered at once when no gradient is needed


def sparse_attention(
    q: Tensor, window: Rows, entries: Rows | None, topk: Tensor | None, sink: Tensor, span: Span
) -> Tensor:
    """One softmax over window rows and selected entries, with a sink in the denominator only.

    q [T, H, D]; window rows span.first..span.last of each query's sequence; topk [T, k] rows of
    `entries` (-1: none); sink [H]. Keys are the values. -> [T, H, D]; a query without keys gives 0.
    Source: attention spec §7.
    """
    width = span.width + (0 if topk is None else topk.shape[-1])
    step = max(1, GATHERED // (width * q.shape[-1]))
    if torch.is_grad_enabled() or len(q) <= step:
        return attend(q, window, entries, topk, sink, span)
    parts = [slice(a, a + step) for a in range(0, len(q), step)]
    return torch.cat(
        [
            attend(q[part], window, entries, None if topk is None else topk[part], sink, span.take(part))
            for part in parts
        ]
    )


def attend(q: Tensor, window: Rows, entries: Rows | None, topk: Tensor | None, sink: Tensor, span: Span) -> Tensor:
    at = span.rows()  # [T, W]
    keys = window.gather(span.seq[:, None], at)  # [T, W, D]
    if topk is not None:
        keys = torch.cat([keys, entries.gather(span.seq[:, None], topk)], 1)  # [T, W + k, D]
        at = torch.cat([at, topk], 1)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ keys.transpose(1, 2)).to(wide) * q.shape[-1] ** -0.5  # [T, H, W + k]
    scores = scores.masked_fill((at < 0)[:, None], -torch.inf)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=-1e30)
    p = (scores - top).exp()
    p = p / (p.sum(-1, keepdim=True) + (sink.to(wide)[:, None] - top).exp())
    return p.to(q.dtype) @ keys
