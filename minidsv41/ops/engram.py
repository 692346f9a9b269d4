"""Engram around its projection: n-grams to rows of a table, rows to values; and the gate that adds to the streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minidsv41.formats import TABLE

DEAD = -1  # in a gram: nothing to hash


class Hash(NamedTuple):
    """How n-grams of up to N ids choose rows; the heads of one order share a mix and differ in their prime.

    multipliers [N]; primes, offsets [K], K = (N - 1) * heads, bigrams first; inverses [K], floor((2**64 - 1) / prime);
    all int64. pad is hashed in place of what is dead. `of` makes it once, when weights are loaded.
    """

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor
    inverses: Tensor
    heads: int
    pad: int

    @classmethod
    def of(
        cls,
        multipliers: Sequence[int],
        primes: Sequence[Sequence[int]],
        pad: int,
        *,
        device: torch.device | str = "cpu",
    ) -> Hash:
        """primes: those of each order, as many in each."""
        flat = [p for heads in primes for p in heads]
        assert len({len(heads) for heads in primes}) == 1 and min(flat) > 1, f"primes = {primes}: as many in each order"
        inverses = [(2**64 - 1) // p for p in flat]
        factors, own, inverse = (torch.tensor(x, device=device) for x in (list(multipliers), flat, inverses))
        return cls(factors, own, own.cumsum(0) - own, inverse, len(primes[0]), pad)

    def rows(self, grams: Tensor) -> Tensor:
        """grams [T, N], newest id first -> rows [T, K]."""
        terms = torch.where(grams == DEAD, self.pad, grams) * self.multipliers  # [T, N], modulo 2**64
        mixes = [terms[:, 0] ^ terms[:, 1]]
        for term in terms[:, 2:].unbind(1):
            mixes.append(mixes[-1] ^ term)
        return torch.stack(mixes, 1).repeat_interleave(self.heads, 1) % self.primes + self.offsets


class Table(NamedTuple):
    """Stored rows, E4M3 with a power of two for 32 of them: codes [N, W], scales [N, W / 32], both uint8.

    On the device, or in host memory (pinned, if a GPU is to read it there).
    """

    codes: Tensor
    scales: Tensor


def engram_read(ids: Tensor, table: Table, hash: Hash | None = None, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Values [T, K * W] of table rows `ids` [T, K], or of those that n-grams `ids` [T, N] choose by a hash."""
    rows = ids if hash is None else hash.rows(ids)
    codes, scales = (t[rows.to(t.device)].to(rows.device) for t in table)
    return TABLE.decode(codes, scales, dtype).flatten(1)


def engram_gate(
    X: Tensor, kv: Tensor, q_weight: Tensor, k_weight: Tensor, alive: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """X_j + gate_j v for each stream j: streams X [T, n, C], kv [T, (n + 1) C] -> streams [T, n, C], gate [T, n].

    kv: a key for each stream, then the value; weights [n, C]; alive [T], where False the gate is 0.
    """
    wide = torch.promote_types(X.dtype, torch.float32)
    k, v = kv.unflatten(1, (-1, X.shape[2])).to(wide).split([X.shape[1], 1], 1)  # [T, n, C], [T, 1, C]
    h = X.to(wide)
    s = (h * (q_weight * k_weight) * k).sum(-1) * X.shape[2] ** -0.5  # [T, n]
    s = s * (h.square().mean(-1) + eps).rsqrt() * (k.square().mean(-1) + eps).rsqrt()
    gate = torch.copysign(s.abs().clamp(min=1e-6).sqrt(), s).sigmoid() * alive[:, None]
    return (h + gate[..., None] * v).to(X.dtype), gate
