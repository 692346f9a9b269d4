"""Drafts against their target: what is kept, what takes a rejected word's place, and who can be caught cheating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.serve.speculative import residual


@dataclass(frozen=True)
class Overlap:
    """Target and draft distributions [V] over the same words."""

    target: Tensor
    draft: Tensor

    @property
    def kept(self) -> Tensor:
        """[V] chance that the draft is this word and is kept."""
        return torch.minimum(self.target, self.draft)

    @property
    def rejected(self) -> Tensor:
        """[V] chance that the draft is this word and is rejected."""
        return (self.draft - self.target).clamp(min=0)

    @property
    def residual(self) -> Tensor:
        """[V] what the target has beyond the draft: as much in all as is rejected."""
        return (self.target - self.draft).clamp(min=0)


def outgoing(target: Tensor, drawn: Tensor, assumed: Tensor) -> tuple[Tensor, float]:
    """Exact distribution [V] of the word that goes out, and the chance that it is the draft.

    A word is drawn from `drawn` and verified as if it came from `assumed` (all [V]). Honest is drawn = assumed.
    """
    keep = torch.where(assumed > 0, target / assumed, 1.0).clamp(max=1)
    left = residual(target, assumed)
    kept = drawn * keep
    return kept + (1 - kept.sum()) * left / left.sum(), float(kept.sum())


def distance(p: Tensor, q: Tensor) -> float:
    """Total variation: the largest difference in the chance of any event."""
    return float((p - q).abs().sum() / 2)


def best_alone(weights: Tensor, following: Tensor) -> float:
    """The largest share of second words kept that any one distribution can reach, whatever the first word is.

    weights [K]: chances of the first words, sum 1; following [K, V]: the target's distribution behind each.
    Chance given to a word is kept behind those first words that give it as much; so it goes where most do.
    """
    levels, order = following.sort(dim=0)
    worth = weights[order].flip(0).cumsum(0).flip(0).flatten()  # share of first words that reach this level
    steps = levels.diff(dim=0, prepend=levels.new_zeros(1, levels.shape[1])).flatten()
    worth, order = worth.sort(descending=True)
    spent = steps[order].cumsum(0).clamp(max=1)
    return float((spent.diff(prepend=spent.new_zeros(1)) * worth).sum())


def chi_square(counts: Tensor, p: Tensor) -> tuple[float, float]:
    """Pearson's statistic of counts [n] against chances p [n], and how often an honest sampler exceeds it."""
    expected = p * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(statistic), float(torch.special.gammaincc(torch.tensor((len(p) - 1) / 2).double(), statistic / 2))


def pooled(p: Tensor, some: Tensor) -> Tensor:
    """[n + 1] chances of `some` [n] words, and of all others together."""
    return torch.cat([p[some], 1 - p[some].sum(-1, keepdim=True)])


class Bin(NamedTuple):
    """Forecasts of about the same chance: their mean, how often it happened, and how many there are."""

    forecast: float
    frequency: float
    count: int


def reliability(p: Tensor, happened: Tensor, *, bins: int = 10, least: int = 10) -> list[Bin]:
    """Forecasts p [N] against what happened [N], by size; bins of fewer than `least` are left out."""
    which = (p * bins).long().clamp(max=bins - 1)
    found = [(p[which == b].double(), happened[which == b].double()) for b in range(bins)]
    return [Bin(float(f.mean()), float(h.mean()), len(f)) for f, h in found if len(f) >= least]


@dataclass(frozen=True)
class Drafted:
    """Drafts at A places of a text whose true words stand before each: logits of the draft without and with the Markov
    correction, and of the target, all [A, block, V]; confidence logits and the words before, [A, block]; where each
    place is, its sequence and the last token that the target has read, [A]."""

    base: Tensor
    corrected: Tensor
    target: Tensor
    confidence: Tensor
    previous: Tensor
    seq: Tensor
    last: Tensor

    def overlap(self, place: int, step: int, *, temperature: float = 1.0, markov: bool = True) -> Overlap:
        draft = self.corrected if markov else self.base
        return Overlap(*((x[place, step] / temperature).softmax(-1) for x in (self.target, draft)))

    def shares(self, logits: Tensor) -> Tensor:
        """[A, block] the share that is kept if drafts come from `logits` [A, block, V]."""
        return Overlap(self.target.softmax(-1), logits.softmax(-1)).kept.sum(-1)


@torch.no_grad()
def drafted(model: Model, rows: Tensor, *, first: int, every: int) -> Drafted:
    """Draft behind every `every`-th token from `first` on of rows [B, T], in one pass of target and draft."""
    size, (count, length) = model.config.dspark_block_size, rows.shape
    batch = Batch.equal(rows)
    keys = SequenceKeys(model.config, batch)
    out = model(batch, keys)
    model.mtp.remember(out.features, batch, keys)
    at = torch.arange(first, length - size, every)
    seq, last = torch.arange(count).repeat_interleave(len(at)), at.repeat(count)
    after = last[:, None] + 1 + torch.arange(size)
    previous = rows[seq[:, None], after]
    hidden = model.mtp.hidden(previous[:, 0], seq, last, model.embed, keys)
    base = model.mtp.base_logits(hidden, model.head)
    target = model.logits(out.hidden[seq[:, None] * length + after].flatten(0, 1)).unflatten(0, after.shape)
    corrected, confidence = model.mtp.correct(base, previous), model.mtp.confidence(hidden, previous)
    return Drafted(base, corrected, target, confidence, previous, seq, last)


def described(found: Overlap, words: list[str]) -> str:
    """Two lines of HTML; words [V]: as they are shown."""
    kept = float(found.kept.sum())
    one = [float(part.sum()) for part in (found.rejected, found.residual)]
    said = [words[int(part.argmax())] for part in (found.target, found.draft)]
    return (
        f"kept {kept:.1%} · rejected {one[0]:.1%} · residual {one[1]:.1%}<br>"
        f"target's favourite {said[0]}, draft's {said[1]}"
    )
