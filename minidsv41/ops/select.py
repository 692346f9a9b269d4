"""The indexer's selection, plain version: score, build or use the candidate pool, keep the top k."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from minidsv41.ops.rows import Batch, Rows

TILE = 1 << 22  # scores held at once, per head
KEYS = 8192  # keys decoded at once


class Pool(NamedTuple):
    """Candidate blocks of every query: blocks [T, P] ascending, -1 padded; entries a block."""

    blocks: Tensor
    size: int

    def entries(self) -> Tensor:
        """[T, P * size] entry indices, -1 where the block is missing."""
        at = self.blocks[..., None] * self.size + torch.arange(self.size, device=self.blocks.device)
        return at.masked_fill(self.blocks[..., None] < 0, -1).flatten(1)

    def mask(self, n: int) -> Tensor:
        """[T, n] which of n entries lie in a chosen block, visible or not."""
        at = self.entries()
        mask = torch.zeros(len(at), n + 1, dtype=torch.bool, device=at.device)
        return mask.scatter_(1, torch.where((at < 0) | (at >= n), n, at), True)[:, :n]


class PoolSize(NamedTuple):
    """How large a pool the candidate source builds."""

    blocks: int
    size: int


def lowest_topk(scores: Tensor, k: int) -> Tensor:
    """[T, k] indices of the k largest of scores [T, N], ascending, -1 padded.

    Among equal scores the lowest index wins; -inf is never selected.
    """
    n = scores.shape[-1]
    if n > k:
        threshold = scores.topk(k, dim=-1).values[:, -1:]
        above, tied = scores > threshold, scores == threshold
        keep = above | (tied & (tied.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
        keep &= scores > -torch.inf
    else:
        keep = scores > -torch.inf
    count = keep.cumsum(-1)  # a compiler may read scores unrounded here and rounded above: more than k are then kept
    place = torch.where(keep & (count <= k), count - 1, k)  # column k takes what is not chosen
    chosen = torch.full((len(scores), k + 1), -1, dtype=torch.int64, device=scores.device)
    return chosen.scatter_(1, place, torch.arange(n, device=scores.device).expand_as(place))[:, :k].contiguous()


def weigh(q: Tensor, w: Tensor, keys: Tensor) -> Tensor:
    """Sum over heads of w * relu(q . k): q [..., L, H, D], w [..., L, H], keys [..., N, D] -> [..., L, N]."""
    dots = torch.einsum("...lhd,...nd->...lhn", q, keys).relu()
    return torch.einsum("...lhn,...lh->...ln", dots, w)


def tiles(batch: Batch, n: int) -> Iterator[tuple[Tensor, range]]:
    """Cut the batch into (rows [S', L], sequences) tiles of equal sequences, TILE scores at most."""
    s = 0
    while s < len(batch.lengths):
        length, end = batch.lengths[s], s
        while end < len(batch.lengths) and batch.lengths[end] == length:
            end += 1
        step = max(1, TILE // max(1, (end - s) * n))
        rows = torch.arange(sum(batch.lengths[:s]), sum(batch.lengths[:end]), device=batch.device)
        for part in rows.view(end - s, length).split(step, dim=1):
            yield part, range(s, end)
        s = end


def tile_scores(q: Tensor, w: Tensor, keys: Rows, visible: Tensor, rows: Tensor, seqs: range, n: int) -> Tensor:
    """[S' * L, n] scores of one tile, -inf beyond `visible`."""
    seq = torch.arange(seqs.start, seqs.stop, device=q.device)[:, None]
    parts = [
        weigh(q[rows], w[rows], keys.gather(seq, torch.arange(a, min(a + KEYS, n), device=q.device)))
        for a in range(0, max(n, 1), KEYS)
    ]
    scores = torch.cat(parts, -1).flatten(0, 1)
    hidden = torch.arange(n, device=q.device) >= visible[rows.flatten(), None]
    return scores.masked_fill(hidden, -torch.inf)


def index_scores(q: Tensor, w: Tensor, keys: Rows, visible: Tensor, batch: Batch, n: int) -> Tensor:
    """[T, n] indexer scores of every query, -inf where not visible. Differentiable; for study and training.

    q [T, H, D] index queries; w [T, H] head weights; keys: index keys of the owner layer.
    """
    out = [tile_scores(q, w, keys, visible, rows, seqs, n) for rows, seqs in tiles(batch, n)]
    order = torch.cat([rows.flatten() for rows, _ in tiles(batch, n)])
    return torch.cat(out)[order.argsort()]


@torch.no_grad()
def index_select(
    q: Tensor,
    w: Tensor,
    keys: Rows,
    visible: Tensor,
    k: int,
    pool: Pool | PoolSize | None,
    *,
    batch: Batch,
    n: int,
) -> tuple[Tensor, Pool | None]:
    """Choose k entries a query: topk [T, k] ascending, -1 padded; and the pool in force.

    pool: None, no restriction and none built; a PoolSize builds one from these scores (they themselves
    are not restricted by it); a Pool restricts the choice to its blocks, and only they are scored.
    q [T, H, D], w [T, H], keys: the owner's index keys, visible [T], n: the most that any query sees.
    Source: official code; the pool: report §2.3.2.
    """
    if isinstance(pool, Pool):
        return select_in_pool(q, w, keys, visible, k, pool, batch), pool
    topk = torch.full((len(q), k), -1, dtype=torch.int64, device=q.device)
    blocks = topk.new_full((len(q), pool.blocks), -1) if pool else None
    for rows, seqs in tiles(batch, n):
        scores = tile_scores(q, w, keys, visible, rows, seqs, n)
        flat = rows.flatten()
        topk[flat] = lowest_topk(scores, k)
        if pool:
            blocks[flat] = best_blocks(scores, visible[flat], pool)
    return topk, Pool(blocks, pool.size) if pool else None


def best_blocks(scores: Tensor, visible: Tensor, pool: PoolSize) -> Tensor:
    """[T, blocks] candidate blocks by block maximum; the newest visible entry's block is always in."""
    missing = -scores.shape[-1] % pool.size
    best = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf).unflatten(-1, (-1, pool.size)).amax(-1)
    newest = ((visible - 1) // pool.size)[:, None]
    best = torch.where((torch.arange(best.shape[-1], device=best.device) == newest), torch.inf, best)
    return lowest_topk(best, pool.blocks)


def select_in_pool(q: Tensor, w: Tensor, keys: Rows, visible: Tensor, k: int, pool: Pool, batch: Batch) -> Tensor:
    """[T, k]: score the pool's entries only."""
    out = []
    step = max(1, TILE // (pool.blocks.shape[-1] * pool.size * q.shape[-1]))
    for rows in torch.arange(len(q), device=q.device).split(step):
        at = Pool(pool.blocks[rows], pool.size).entries()  # [L, E]
        at = at.masked_fill(at >= visible[rows, None], -1)
        values = keys.gather(batch.seq[rows, None], at)  # [L, E, D]
        scores = weigh(q[rows, None], w[rows, None], values)[:, 0]  # [L, E]
        scores = scores.masked_fill(at < 0, -torch.inf)
        chosen = lowest_topk(scores, k)
        out.append(at.gather(1, chosen.clamp(min=0)).masked_fill(chosen < 0, -1))
    return torch.cat(out)
