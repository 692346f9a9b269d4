"""Attention over the window and the selected entries, plain version.

Keys are gathered tile by tile and again in the backward pass, so memory does not grow with window or k.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minidsv41.ops.kv_write import rotated
from minidsv41.ops.rows import Rows, Span

TILE = 1 << 19  # key values gathered at once: 2 MB stay in a core's cache
TILE_GPU = 1 << 26


def sparse_attention(
    q: Tensor,
    window: Rows,
    entries: Rows | None,
    topk: Tensor | None,
    sink: Tensor,
    span: Span,
    *,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """One softmax over window rows and selected entries, with a sink in the denominator only.

    q [T, H, D]; window rows span.first..span.last of each query's sequence; topk [T, k] rows of
    `entries` (-1: none); sink [H]. Keys are the values. -> [T, H, D]; a query without keys gives 0.
    rotation: cos and sin [T, R / 2] of each query, undone on the last R dims of its output.
    Gradients reach q, sink and rows stored as plain values. Source: official code.
    """
    entry_data = None if entries is None else entries.data
    out = SparseAttention.apply(q, window.data, entry_data, sink, window, entries, topk, span)
    return out if rotation is None else rotated(out, rotation[0][:, None], -rotation[1][:, None])


class SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, window_data, entry_data, sink, window, entries, topk, span) -> Tensor:
        out, kept = torch.empty_like(q), []
        training = any(ctx.needs_input_grad)
        for rows in tiles(q, span, topk):
            keys, missing = gather(window, entries, topk, span, rows)
            p = probabilities(q[rows], keys, missing, sink)
            out[rows] = p.to(q.dtype) @ keys
            if training:
                kept.append(p)
        if training:
            ctx.save_for_backward(q, window_data, entry_data, sink, out, torch.cat(kept) if kept else q.new_zeros(0))
            ctx.keys = window, entries, topk, span
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        q, window_data, entry_data, sink, out, p = ctx.saved_tensors
        window, entries, topk, span = ctx.keys
        d_q, d_sink, d_window = torch.zeros_like(q), torch.zeros_like(sink), torch.zeros_like(window_data)
        d_entry = None if entry_data is None else torch.zeros_like(entry_data)
        scale = q.shape[-1] ** -0.5
        for rows in tiles(q, span, topk):
            keys, missing = gather(window, entries, topk, span, rows)
            g, p_t = grad[rows], p[rows]
            delta = (g * out[rows]).sum(-1, keepdim=True).to(p.dtype)  # [t, H, 1]
            d_s = (p_t * ((g @ keys.transpose(1, 2)).to(p.dtype) - delta)).to(q.dtype) * scale
            d_q[rows] = d_s @ keys
            d_sink -= ((1 - p_t.sum(-1, keepdim=True)) * delta).sum((0, 2)).to(sink.dtype)
            d_keys = torch.cat([d_s, p_t.to(q.dtype)], 1).transpose(1, 2) @ torch.cat([q[rows], g], 1)  # [t, n, D]
            d_keys.masked_fill_(missing[..., None], 0)
            scatter(d_window, d_keys[:, : span.width], window, span.seq[rows], span.take(rows).rows())
            if d_entry is not None:
                scatter(d_entry, d_keys[:, span.width :], entries, span.seq[rows], topk[rows])
        return d_q, d_window, d_entry, d_sink, None, None, None, None


def tiles(q: Tensor, span: Span, topk: Tensor | None) -> list[slice]:
    width = span.width + (0 if topk is None else topk.shape[-1])
    step = max(1, (TILE if q.device.type == "cpu" else TILE_GPU) // (width * q.shape[-1]))
    return [slice(a, min(a + step, len(q))) for a in range(0, len(q), step)]


def gather(window: Rows, entries: Rows | None, topk: Tensor | None, span: Span, rows: slice) -> tuple[Tensor, Tensor]:
    """Keys [t, W + k, D] of some queries, and which of them do not exist [t, W + k]."""
    seq, at = span.seq[rows, None], span.take(rows).rows()  # [t, 1], [t, W]
    if topk is None:
        return window.gather(seq, at), at < 0
    keys = torch.cat([window.gather(seq, at), entries.gather(seq, topk[rows])], 1)
    return keys, torch.cat([at, topk[rows]], 1) < 0


def probabilities(q: Tensor, keys: Tensor, missing: Tensor, sink: Tensor) -> Tensor:
    """[t, H, n] attention weights in at least float32; what the sink takes is missing from their sum."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ keys.transpose(1, 2)).to(wide).mul_(q.shape[-1] ** -0.5)
    scores.masked_fill_(missing[:, None], -torch.inf)
    top = scores.amax(-1, keepdim=True).clamp_(min=-1e30)
    p = scores.sub_(top).exp_()
    return p.div_(p.sum(-1, keepdim=True) + (sink.to(wide)[:, None] - top).exp_())


def scatter(grad: Tensor, d_keys: Tensor, rows: Rows, seq: Tensor, at: Tensor) -> None:
    """Add the gradients of gathered keys [t, n, D] to their rows; those of missing keys are zero."""
    if len(grad):
        where = rows.locate(seq[:, None], at.clamp(min=0))
        grad.index_add_(0, where.flatten(), d_keys.flatten(0, 1))
