"""Mixing matrices of residual streams: what Sinkhorn leaves of their sums, and what a product of many does."""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.ops.seam import sinkhorn

EPS = 1e-6  # of the release


def received(comb: Tensor) -> Tensor:
    """[..., n] how much each destination receives: sums over sources of comb [..., source, destination]."""
    return comb.sum(-2)


def handed_on(comb: Tensor) -> Tensor:
    """[..., n] how much each source hands on: sums over destinations of comb [..., source, destination]."""
    return comb.sum(-1)


def errors(comb: Tensor) -> tuple[Tensor, Tensor]:
    """[...] the largest deviation from one of what a destination receives, and of what a source hands on."""
    return tuple((total(comb) - 1).abs().amax(-1) for total in (received, handed_on))


def by_round(logits: Tensor, rounds: int) -> Tensor:
    """[rounds, 2] both errors of logits [n, n] after 1, 2, … rounds, in the order of `sinkhorn`."""
    comb, found = logits.softmax(-1) + EPS, []
    for round_ in range(rounds):
        if round_:
            comb = comb / (comb.sum(-1, keepdim=True) + EPS)
        comb = comb / (comb.sum(-2, keepdim=True) + EPS)
        found.append(torch.stack(errors(comb)))
    return torch.stack(found)


def drawn(spread: float, draw: int, first: float = 0.0, *, n: int = 4) -> Tensor:
    """[n, n] normal logits of that spread; `first` is added to the logit of stream 0 to itself."""
    logits = spread * torch.randn(n, n, generator=torch.Generator().manual_seed(draw), dtype=torch.float64)
    logits[0, 0] += first
    return logits


def gains(combs: Tensor) -> tuple[Tensor, Tensor]:
    """Gain of signal and gradient after each of S matrices [S, ..., n, n], the largest of all: [S] each.

    Signal: the most that a stream can grow, the largest sum of magnitudes that one destination receives from
    the first streams. Gradient: the same backwards, the largest sum that one source hands on.
    """
    whole, signal, gradient = torch.eye(combs.shape[-1], dtype=combs.dtype), [], []
    for comb in combs:
        whole = whole @ comb
        signal.append(received(whole.abs()).max())
        gradient.append(handed_on(whole.abs()).max())
    return torch.stack(signal), torch.stack(gradient)


def described(logits: Tensor, rounds: int) -> str:
    """HTML: both errors after so many rounds, and each destination's and source's sum."""
    comb = sinkhorn(logits, rounds, EPS)
    lines = []
    for name, sums, off in zip(
        ("each destination receives", "each source hands on"),
        (received(comb), handed_on(comb)),
        errors(comb),
        strict=True,
    ):
        lines.append(f"{name} {' '.join(f'{x:.4f}' for x in sums.tolist())}, off by up to {off:.1e}")
    return f"after {rounds} round{'s' if rounds > 1 else ''}<br>" + "<br>".join(lines)
