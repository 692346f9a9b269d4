"""The backward of sparse and of window attention, one sequence in training: rows are plain bfloat16 values.

"kernel" is the backward alone; peers run forward and backward, as does "kernel with forward", since no peer has a
backward that stands alone. The target is 3.5 times that of the forward of sparse attention. Floor: the matrix unit, 5
products of heads x width for each query and key (1,087 us at T=4,096), where the window is not all there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from minidsv41.kernels import attention, sparse_attention
from minidsv41.kernels.attention_backward import attention_backward
from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.ops import Rows, Span
from minidsv41.ops import attention as plain

RATIO = 2  # tokens an entry
COMPILED = 8192  # more queries need too much memory where all keys are gathered at once


@dataclass(frozen=True)
class Inputs:
    """What attention takes, in its order, and the gradient of its output."""

    q: Tensor
    window: Rows
    entries: Rows | None
    topk: Tensor | None
    sink: Tensor
    span: Span
    grad: Tensor

    @property
    def given(self) -> tuple:
        return self.q, self.window, self.entries, self.topk, self.sink, self.span


def case(T: int, H: int, D: int, W: int, k: int, target_us: float | None = None) -> Case:
    """q, output and gradient read once, q's gradient written; rows read once, their gradients added and cast once."""
    rows = T + (T // RATIO if k else 0)
    moved = 4 * T * H * D * 2 + T * (H * 4 + k * 8) + rows * D * (2 + 4 + 4 + 2)
    operation = "attention_backward" if k else "window_backward"
    shape = f"T={T:,} heads={H}x{D} keys={W + k}"
    return Case(operation, shape, moved, 10 * T * H * D * (W + k), target_us, partial(contest, T, H, D, W, k))


def contest(T: int, H: int, D: int, W: int, k: int, device: torch.device, seed: int) -> Contest:
    x = inputs(T, H, D, W, k, device=device, seed=seed)
    out, lse = sparse_attention.sparse_attention(*x.given, with_lse=True)
    run = partial(attention_backward, x.grad, x.q, out, lse, *x.given[1:])
    runs: dict[str, Callable] = {"kernel": run}
    runs["kernel with forward"] = partial(both, attention.sparse_attention, x)
    runs["plain with forward"] = partial(both, plain.sparse_attention, x)
    if T <= COMPILED:
        runs["compile with forward"] = partial(both, partial(at_once, torch.compile(attend, dynamic=False)), x)
    workspace = T * (H + W + k) * 4 + (T + (T // RATIO if k else 0)) * D * 4
    return Contest(runs, partial(error, run, x), 1.5e-2, workspace, frozenset(runs) - {"kernel"})


def inputs(T: int, H: int, D: int, W: int, k: int, *, device: torch.device, seed: int) -> Inputs:
    """One sequence; each query reads k of its visible entries, spread over them, or all if they are fewer."""
    g = torch.Generator(device).manual_seed(seed)
    made = partial(torch.randn, device=device, generator=g)
    at, seq = torch.arange(T, device=device), torch.zeros(T, dtype=torch.long, device=device)
    page, chosen, entries = seq[:1, None], None, None
    if k:
        visible, slot = ((at + 1) // RATIO)[:, None], torch.arange(k, device=device)
        spread = (visible * (slot + torch.rand(T, k, device=device, generator=g)) / k).long()
        few = torch.where(slot < visible, slot, -1)
        chosen = torch.where(visible < k, few, spread.clamp(max=visible - 1))
        entries = Rows(made(max(1, T // RATIO), D).bfloat16(), page, page=max(1, T // RATIO))
    window, span = Rows(made(T, D).bfloat16(), page, page=T), Span(seq, (at - W + 1).clamp(min=0), at, W)
    return Inputs(made(T, H, D).bfloat16(), window, entries, chosen, made(H), span, made(T, H, D).bfloat16())


def both(operation: Callable, x: Inputs) -> tuple[Tensor, ...]:
    """Forward and backward: gradients of q, rows and sink."""
    leaves = [t.detach().requires_grad_() for t in (x.q, x.window.data, x.sink)]
    window, entries = replace(x.window, data=leaves[1]), x.entries
    if entries is not None:
        entries = replace(entries, data=entries.data.detach().requires_grad_())
        leaves.append(entries.data)
    out = operation(leaves[0], window, entries, x.topk, leaves[2], x.span)
    return torch.autograd.grad(out, leaves, x.grad.to(out.dtype))


def at_once(attend: Callable, q: Tensor, window: Rows, entries: Rows | None, topk: Tensor | None, sink, span) -> Tensor:
    """The plain version without tiles, which a compiler can see through; rows of one page."""
    return attend(q, window.data, None if entries is None else entries.data, topk, sink, span.rows())


def attend(q: Tensor, window: Tensor, entries: Tensor | None, topk: Tensor | None, sink: Tensor, at: Tensor) -> Tensor:
    keys = F.embedding(at.clamp(min=0), window)
    if entries is not None:
        keys = torch.cat([keys, F.embedding(topk.clamp(min=0), entries)], 1)
        at = torch.cat([at, topk], 1)
    scores = (q @ keys.transpose(1, 2)).float() * q.shape[-1] ** -0.5
    scores = scores.masked_fill((at < 0)[:, None], -torch.inf)
    scores = torch.cat([scores, sink[None, :, None].expand(len(q), -1, 1)], -1)
    return scores.softmax(-1)[..., :-1].to(q.dtype) @ keys


def error(run: Callable, x: Inputs) -> float:
    """The largest relative error of a gradient, against the plain version in float64."""
    wide = replace(x, q=x.q.double(), sink=x.sink.double(), grad=x.grad.double())
    wide = replace(wide, window=replace(x.window, data=x.window.data.double()))
    if x.entries is not None:
        wide = replace(wide, entries=replace(x.entries, data=x.entries.data.double()))
    found, exact = run(), both(plain.sparse_attention, wide)
    mine = (found.q, found.window, found.sink, found.entries)
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(mine, exact, strict=False))


CASES = [
    case(4096, 64, 512, 128, 512, 3850.0),
    case(4096, 64, 512, 128, 0),
    case(32768, 64, 512, 128, 512),
    case(32768, 64, 512, 128, 0),
]
