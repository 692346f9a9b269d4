"""Attention with its gradients: the forward kernels of sparse and window attention joined to their backward.

For training, the forward keeps q, its output and 4 bytes a head (the logarithm of the softmax's denominator); the
backward makes the weights again. Nothing grows with the number of keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minidsv41.kernels import attention_backward as backward
from minidsv41.kernels import sparse_attention as forward
from minidsv41.ops.rows import Rows, Span


def sparse_attention(
    q: Tensor, window: Rows, entries: Rows | None, topk: Tensor | None, sink: Tensor, span: Span
) -> Tensor:
    """As `ops.sparse_attention`: gradients reach q, sink and rows stored as plain values. Raises Unsupported."""
    entry_data = None if entries is None else entries.data
    given = [x for x in (q, window.data, entry_data, sink) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        backward.check(q, window, entries, topk)
        return Attention.apply(q, window.data, entry_data, sink, window, entries, topk, span)
    return forward.sparse_attention(q, window, entries, topk, sink, span)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, window_data, entry_data, sink, window, entries, topk, span) -> Tensor:
        out, lse = forward.sparse_attention(q, window, entries, topk, sink, span, with_lse=True)
        ctx.save_for_backward(q, out, lse, sink)
        ctx.keys = window, entries, topk, span
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        q, out, lse, sink = ctx.saved_tensors
        window, entries, topk, span = ctx.keys
        found = backward.attention_backward(grad, q, out, lse, window, entries, topk, sink, span)
        return found.q, found.window, found.entries, found.sink, None, None, None, None
