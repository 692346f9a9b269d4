"""How much of the attention a selection keeps."""

from __future__ import annotations

from statistics import mean

import torch
from torch import Tensor

from minidsv41.ops import Batch
from minidsv41.ops.select import lowest_topk
from minidsv41.study.exam import Exam, seen_by
from minidsv41.train.losses import Queries


def attention_mass(exam: Exam, layer: int) -> float:
    """Share of a layer's attention on entries that lies on those it selects, if it could read all that it sees.

    Mean over the rows of the second half of the sequences with lookups, whose selection is far smaller than what
    they see.
    """
    model, c = exam.model, exam.model.config
    owner, found = c.kv_owner(layer), []
    wanted = [f"L{layer}.attn.q", f"L{owner}.cmp.entry", f"L{layer}.attn.win_kv", f"L{layer}.idx.topk"]
    for tokens in exam.asked.tokens[:, :-1].split(exam.sizes.batch):
        seen = seen_by(model, tokens, *wanted)
        count, half = len(tokens), tokens.shape[1] // 2
        q, entries, window, topk = (seen[name].unflatten(0, (count, -1)) for name in wanted)
        batch = Batch.equal(tokens.to(model.device))
        queries = Queries(
            q=q,
            entries=entries,
            window=window,
            sink=model.layers[layer].attn.attn_sink.detach(),
            visible=batch.visible(c.ratio(layer)).unflatten(0, (count, -1))[0],
            first=batch.span(c.sliding_window).first.unflatten(0, (count, -1)),
        )
        kept = queries.mass().gather(2, topk.clamp(min=0)) * (topk >= 0)
        found.append(kept.sum(-1)[:, half:].mean(dtype=torch.float64))
    return float(torch.stack(found).mean())


def kept_choice(exam: Exam, layer: int) -> float:
    """Share of what a Reindex layer would select from all entries that it selects from its pool; rows as above."""
    found = []
    for tokens in exam.asked.tokens[:, :-1].split(exam.sizes.batch):
        wanted = [f"L{layer}.idx.scores", f"L{layer}.idx.topk"]
        seen = seen_by(exam.model, tokens, *wanted)
        scores, topk = (seen[name] for name in wanted)
        free = lowest_topk(scores, topk.shape[1])
        rows = torch.arange(len(topk), device=topk.device) % tokens.shape[1] >= tokens.shape[1] // 2
        found.append(overlap(free[rows], topk[rows], scores.shape[1]))
    return mean(found)


def overlap(free: Tensor, topk: Tensor, n: int) -> float:
    """Share of the indices free [T, k] below n, -1 padded, that are in topk [T, k] too."""

    def mask(at: Tensor) -> Tensor:
        empty = torch.zeros(len(at), n + 1, dtype=torch.bool, device=at.device)
        return empty.scatter_(1, torch.where(at < 0, n, at), True)[:, :n]

    return float((mask(free) & mask(topk)).sum() / mask(free).sum())
