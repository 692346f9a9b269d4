"""What training minimises beside the language model's cross entropy. Plain functions of recorded tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from minidsv41.ops.select import weigh

BALANCE_WEIGHT = 1e-4
BIAS_SPEED = 1e-3
DRAFT_WEIGHTS = {"ce": 0.1, "l1": 0.9, "confidence": 1.0}
DRAFT_DECAY = 4.0


def balance_loss(scores: Tensor, ids: Tensor) -> Tensor:
    """Sum over experts of (load share x mean score share) within each sequence, mean over sequences: 1 when even.

    scores [B, T, E] router scores before the bias, ids [B, T, K] chosen experts (V3's form; V4.1's is unpublished).
    """
    experts, chosen = scores.shape[-1], ids.shape[-1]
    load = F.one_hot(ids, experts).sum(dim=2).to(scores.dtype).mean(dim=1) * (experts / chosen)  # [B, E]
    share = (scores / scores.sum(dim=-1, keepdim=True)).mean(dim=1)  # [B, E]
    return (load * share).sum(dim=-1).mean()


@torch.no_grad()
def update_bias(bias: Tensor, ids: Tensor) -> None:
    """Raise the bias [E] of experts with less than the mean load of this step, lower the others."""
    load = torch.bincount(ids.flatten(), minlength=len(bias)).to(bias.dtype)
    bias += BIAS_SPEED * torch.sign(load.mean() - load)


@dataclass(frozen=True)
class Queries:
    """What one index source's attention saw in B equal sequences; nothing here carries a gradient.

    q [B, T, H, D] main queries, entries [B, N, D], window [B, T, D] window keys, sink [H];
    visible [T] entries that each row may read, first [B, T] first window row that each row may read.
    """

    q: Tensor
    entries: Tensor
    window: Tensor
    sink: Tensor
    visible: Tensor
    first: Tensor

    @property
    def hidden(self) -> Tensor:
        """bool [T, N]: entries that a row may not read."""
        return torch.arange(self.entries.shape[1], device=self.q.device) >= self.visible[:, None]

    @torch.no_grad()
    def mass(self) -> Tensor:
        """[B, T, N] attention on each visible entry, summed over heads, as a share of all of it; 0 if none is visible.

        The softmax is the one that attention would compute with every visible entry selected: joint over window and
        entries, with the sink in the denominator.
        """
        scale = self.q.shape[-1] ** -0.5
        to_entries = torch.einsum("bthd,bnd->bthn", self.q, self.entries) * scale
        to_entries = to_entries.masked_fill(self.hidden[:, None], -torch.inf)
        to_window = torch.einsum("bthd,bsd->bths", self.q, self.window) * scale
        at = torch.arange(self.window.shape[1], device=self.q.device)
        outside = (at > at[:, None]) | (at < self.first[..., None])  # [B, T, T]
        to_window = to_window.masked_fill(outside[:, :, None], -torch.inf)
        sink = self.sink[:, None].expand(*to_entries.shape[:-1], 1)
        total = torch.cat([to_entries, to_window, sink], dim=-1).logsumexp(dim=-1, keepdim=True)
        mass = (to_entries - total).exp().sum(dim=2)
        return mass / mass.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(mass.dtype).tiny)


def alignment_loss(q: Tensor, k: Tensor, w: Tensor, queries: Queries) -> Tensor:
    """KL(p || softmax(I)), mean over the rows that see an entry: the index scores learn where attention looks.

    q [B, T, Hi, Di] index queries, k [B, N, Di] index keys, w [B, T, Hi] head weights; p = `queries.mass()`.
    The objective that trained V4.1's indexer is unpublished; this is the published one of V3.2. Only the indexer
    learns from it: its inputs and p are constants here.
    """
    p = queries.mass()
    log_q = weigh(q, w, k).masked_fill(queries.hidden, -torch.inf).log_softmax(dim=-1)
    kl = torch.where(p > 0, p * (p.clamp(min=torch.finfo(p.dtype).tiny).log() - log_q), 0).sum(dim=-1)  # [B, T]
    return kl[:, queries.visible > 0].mean()


def draft_loss(logits: Tensor, confidence: Tensor, target: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """The three terms of the DSpark loss, each a mean over anchors, weighted by exp(-(k - 1) / 4) at draft k.

    logits [A, K, V] Markov-corrected draft logits with the true previous tokens, confidence [A, K] logits,
    target [A, K, V] the frozen backbone's logits at the same places, tokens [A, K] the true tokens.
    The label of the confidence is the share of the two distributions that overlaps. `total` is their weighted sum.
    """
    weight = torch.exp(-torch.arange(logits.shape[1], device=logits.device) / DRAFT_DECAY)
    weight = weight / weight.sum() / len(logits)  # [K]
    distance = (logits.softmax(dim=-1) - target.softmax(dim=-1)).abs().sum(dim=-1)  # [A, K]
    label = (1 - distance.detach() / 2).clamp(0, 1)
    terms = {
        "ce": F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(distance),
        "l1": distance,
        "confidence": F.binary_cross_entropy_with_logits(confidence, label, reduction="none"),
    }
    means = {name: (term * weight).sum() for name, term in terms.items()}
    return means | {"total": sum(DRAFT_WEIGHTS[name] * term for name, term in means.items())}
