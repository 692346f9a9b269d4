"""The indexer: which entries a query attends to (official code)."""

from __future__ import annotations

from torch import Tensor, nn

from minidsv41.config import ModelConfig
from minidsv41.formats import INDEX
from minidsv41.model.norm import RMSNorm
from minidsv41.model.rope import Rotation, rotate


class Indexer(nn.Module):
    """Small queries for every layer that selects; keys, from the latents, only where entries are owned.

    Inputs are detached: the language-model loss sees nothing but the selection, so the indexer
    learns from its own alignment loss alone.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.width, self.qat = config.index_n_heads, config.index_head_dim, config.qat
        self.wq_b = nn.Linear(config.q_lora_rank, self.heads * self.width, bias=False)
        self.weights_proj = nn.Linear(config.hidden_size, self.heads, bias=False)
        if config.mode(layer) == "full":
            self.wk = nn.Linear(config.head_dim, self.width, bias=False)
            self.k_norm = RMSNorm(self.width, config.rms_norm_eps)

    def queries(self, x: Tensor, qr: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """x [T, C], qr [T, q_lora] -> q [T, H, D] rounded, w [T, H] scaled head weights."""
        q = rotate(self.wq_b(qr.detach()).unflatten(-1, (self.heads, self.width)), rotation)
        w = self.weights_proj(x.detach()) * (self.width**-0.5 * self.heads**-0.5)
        return INDEX.fake_quant(q) if self.qat else q, w
