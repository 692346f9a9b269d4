"""The compressor: m tokens of the layer's input become one latent (report §2.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minidsv41.config import ModelConfig
from minidsv41.model.keys import Keys
from minidsv41.model.norm import RMSNorm, wide
from minidsv41.ops import Batch


class Compressor(nn.Module):
    """m = 2: a softmax over the pair, separately in each channel. m = 1: a projection, no gate."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.ratio = layer, config.ratio(layer)
        self.wkv = nn.Linear(config.hidden_size, config.head_dim, bias=False)
        if self.ratio == 2:
            self.wgate = nn.Linear(config.hidden_size, config.head_dim, bias=False)
        self.norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, C] -> seq [n], index [n], latents [n, D] of the groups that close in this call.

        The latents are neither rotated nor rounded.
        """
        if self.ratio == 1:
            return batch.seq, batch.positions, self.norm(self.wkv(x))
        pairs = torch.stack([self.wkv(x), self.wgate(x)], 1).to(wide(x.dtype))  # [T, 2, D]
        before = keys.open_pair(self.layer, pairs)  # [S, 2, D]
        closing = batch.odd  # [n]
        seq = batch.seq[closing]
        first = torch.where((batch.offset[closing] == 0)[:, None, None], before[seq], pairs[closing - 1])
        content, gate = torch.stack([first, pairs[closing]], 1).unbind(2)  # [n, 2, D] each: 2 tokens
        pooled = (content * gate.softmax(1)).sum(1)  # [n, D]
        return seq, batch.positions[closing] // 2, self.norm(pooled.to(x.dtype))
