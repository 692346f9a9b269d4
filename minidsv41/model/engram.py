"""Engram: n-grams of compressed token ids look rows up in hashed tables (official code)."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minidsv41 import ops
from minidsv41.config import ModelConfig
from minidsv41.ops import Batch

DEAD = -1  # an image position, or before the start: nothing to hash


def multipliers(config: ModelConfig, layer: int) -> tuple[int, ...]:
    """Odd factors, one for each place of the n-gram; they depend on the compressed vocabulary size."""
    bound = (2**63 - 1) // config.engram_compressed_vocab_size // 2
    draws = np.random.default_rng(10007 * layer).integers(0, bound, config.engram_max_ngram_size, dtype=np.int64)
    return tuple(2 * int(d) + 1 for d in draws)


def lookback(ids: Tensor, history: Tensor, batch: Batch, n: int) -> Tensor:
    """[T, n] ids of each token and its n - 1 predecessors, DEAD from the first dead or missing one on.

    ids [T] compressed ids of this call (DEAD at image positions), history [S, n - 1] those before it.
    """
    rows, columns = torch.arange(len(ids), device=ids.device), [ids]
    for s in range(1, n):
        older = history[batch.seq, (n - 1 - s + batch.offset).clamp(max=n - 2)]
        columns.append(torch.where(batch.offset >= s, ids[(rows - s).clamp(min=0)], older))
    grams = torch.stack(columns, 1)  # [T, n]
    return grams.masked_fill((grams == DEAD).cumsum(1) > 0, DEAD)


def latest(ids: Tensor, history: Tensor, batch: Batch) -> Tensor:
    """[S, n - 1] the last ids after this call, oldest first."""
    keep = history.shape[1]
    last = batch.cu_seqlens[1:, None] - keep + torch.arange(keep, device=ids.device)  # [S, n - 1]
    shifted = history.gather(1, (torch.arange(keep, device=ids.device) + batch.counts[:, None]).clamp(max=keep - 1))
    return torch.where(last >= batch.cu_seqlens[:-1, None], ids[last.clamp(min=0)], shifted)


class Engram(nn.Module):
    """One table of rows, a projection to one value and a key for each stream, and a gate.

    The gate is the sigmoid of a signed square root, and there is no convolution, unlike in the Engram paper.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        place = config.engram_layer_ids.index(layer)
        self.eps, self.streams, self.width = config.rms_norm_eps, config.hc_mult, config.hidden_size
        self.multipliers = multipliers(config, layer)
        self.primes = config.engram_primes[place]
        self.embed = nn.Embedding(config.engram_num_embeddings[place], config.engram_head_dim)
        columns = config.engram_columns * config.engram_head_dim
        self.wkv = nn.Linear(columns, (self.streams + 1) * self.width, bias=False)
        self.q_weight = nn.Parameter(torch.ones(self.streams, self.width))
        self.k_weight = nn.Parameter(torch.ones(self.streams, self.width))

    def rows(self, grams: Tensor, pad: Tensor | int) -> Tensor:
        """grams [T, n] from lookback -> table rows [T, orders * heads]; the heads of one order share a mix."""
        x = torch.where(grams == DEAD, pad, grams)
        mix, offset, out = x[:, 0] * self.multipliers[0], 0, []
        for place, heads in enumerate(self.primes, start=1):
            mix = mix ^ (x[:, place] * self.multipliers[place])
            for prime in heads:
                out.append(mix % prime + offset)
                offset += prime
        return torch.stack(out, 1)

    def read(self, rows: Tensor) -> Tensor:
        """rows [T, columns] -> [T, columns, dim]"""
        return F.embedding(rows, self.embed.weight)

    def forward(self, X: Tensor, rows: Tensor, alive: Tensor, note) -> Tensor:
        """Streams X [T, n, C], table rows [T, columns], alive [T] -> X with the gated value added to each stream."""
        e = self.read(rows).flatten(1)  # [T, columns * dim]
        X, gate = ops.engram_gate(X, self.wkv(e), self.q_weight, self.k_weight, alive, self.eps)
        note("engram.rows", rows)
        note("engram.gate", gate)
        return X
