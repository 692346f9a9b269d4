"""DSA (DeepSeek-V3.2): MLA that reads only the tokens which a small indexer scores highest."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minidsv41.families.mla import MLA
from minidsv41.families.softmax import causal, rotate_halves
from minidsv41.families.state import State
from minidsv41.model.rope import Rotation, angles
from minidsv41.ops.select import lowest_topk, weigh


class DSA(MLA):
    """One index key a token; `index_topk` tokens a query, the lowest position first among equal scores."""

    def __init__(self, *, index_heads: int, index_dim: int, index_topk: int, **shape) -> None:
        super().__init__(**shape)
        self.topk = index_topk
        self.indexer = Indexer(
            hidden=self.q_a_proj.in_features,
            q_lora=self.q_a_proj.out_features,
            heads=index_heads,
            width=index_dim,
            rope=self.rope,
            theta=self.theta,
        )

    def chosen(self, x: Tensor, latent_q: Tensor, positions: Tensor, state: State) -> Tensor:
        scores = self.indexer(x, latent_q, positions, state)
        scores = scores.masked_fill(~causal(positions, scores.shape[1]), -torch.inf)
        return picked(lowest_topk(scores, self.topk), scores.shape[1])


def picked(selection: Tensor, count: int) -> Tensor:
    """Selected indices [T, k], -1 padded -> [T, count] of bool."""
    found = torch.zeros(len(selection), count + 1, dtype=torch.bool, device=selection.device)
    return found.scatter(1, selection.where(selection >= 0, count), True)[:, :count]


class Indexer(nn.Module):
    """Scores sum_j w_j relu(q_j . k): many small query heads, one key a token. RoPE on the first dims, in halves."""

    def __init__(self, *, hidden: int, q_lora: int, heads: int, width: int, rope: int, theta: float) -> None:
        super().__init__()
        self.heads, self.width, self.rope, self.theta = heads, width, rope, theta
        self.wq_b = nn.Linear(q_lora, heads * width, bias=False)
        self.wk = nn.Linear(hidden, width, bias=False)
        self.k_norm = nn.LayerNorm(width, eps=1e-6)
        self.weights_proj = nn.Linear(hidden, heads, bias=False)

    def forward(self, x: Tensor, latent_q: Tensor, positions: Tensor, state: State) -> Tensor:
        """x [T, C], latent queries [T, q_lora] -> scores [T, N] of all tokens so far, none hidden."""
        rotation = Rotation.at(positions, angles(self.rope, self.theta, device=x.device), x.dtype)
        keys = state.append("index", rotate_halves(self.k_norm(self.wk(x)), rotation))
        q = rotate_halves(self.wq_b(latent_q).unflatten(-1, (self.heads, -1)), rotation) * self.width**-0.5
        return weigh(q, self.weights_proj(x) * self.heads**-0.5, keys)
