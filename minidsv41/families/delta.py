"""The gated delta rule: a matrix as memory, which forgets, predicts, and stores what it predicted wrongly.

    S' = exp(g) S,   e = v - S'ᵀ k,   S = S' + beta k eᵀ,   o = Sᵀ q

Shapes: q and k [T, H, K], v [T, H, V], beta [T, H], S [H, K, V]; the decay g is a logarithm <= 0, [T, H] for a head
(gated DeltaNet) or [T, H, K] for a channel (KDA). Both functions give o [T, H, V] and the S behind the last token.
"""

from __future__ import annotations

import torch
from torch import Tensor


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """One token after the other, as the rule is written."""
    out = []
    decay = channels(g).exp()
    for t in range(len(q)):
        S = S * decay[t, :, :, None]
        error = v[t] - torch.einsum("hk,hkv->hv", k[t], S)
        S = S + torch.einsum("hk,hv->hkv", k[t], beta[t, :, None] * error)
        out.append(torch.einsum("hk,hkv->hv", q[t], S))
    return torch.stack(out), S


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, *, size: int = 64
) -> tuple[Tensor, Tensor]:
    """The same in chunks of `size` tokens, each by matrix products and one triangular solve."""
    out = []
    for part in zip(*(x.split(size) for x in (q, k, v, g, beta)), strict=True):
        o, S = chunk(*part, S)
        out.append(o)
    return torch.cat(out), S


def chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk of n tokens. What token j adds to S is k_j w_jᵀ; the w solve (1 + beta A) w = beta (v - old).

    A[i, j] for j < i is k_i . k_j, decayed from j to i.
    """
    G = g.cumsum(0)  # [n, H] or [n, H, K]: the log of what is left of S at each token
    order = torch.ones(len(q), len(q), dtype=torch.bool, device=q.device).tril()
    between = G[:, None] - G[None]  # [n, n, H] or [n, n, H, K]
    between = between.masked_fill(~order.view(order.shape + (1,) * (between.dim() - 2)), -torch.inf).exp()
    total = channels(G).exp()  # [n, H, 1] or [n, H, K]
    A = pairs(k, k, between).tril(-1)  # [H, n, n]
    old = torch.einsum("nhk,hkv->hnv", k * total, S)
    weight = beta.T[:, :, None]  # [H, n, 1]
    eye = torch.eye(len(q), dtype=q.dtype, device=q.device)
    w = torch.linalg.solve_triangular(eye + weight * A, weight * (v.transpose(0, 1) - old), upper=False)
    out = torch.einsum("nhk,hkv->hnv", q * total, S) + pairs(q, k, between) @ w
    left = channels(G[-1:] - G).exp()  # what the end of the chunk keeps of each token
    S = S * total[-1, :, :, None] + torch.einsum("nhk,hnv->hkv", k * left, w)
    return out.transpose(0, 1), S


def pairs(a: Tensor, b: Tensor, between: Tensor) -> Tensor:
    """a_i . b_j with the decay from j to i between them: [H, n, n]."""
    if between.dim() == 3:
        return torch.einsum("ihk,jhk->hij", a, b) * between.permute(2, 0, 1)
    return torch.einsum("ihk,jhk,ijhk->hij", a, b, between)


def channels(g: Tensor) -> Tensor:
    """A decay with an axis for channels, of length 1 where all share it."""
    return g[..., None] if g.dim() == 2 else g
