"""MLA (DeepSeek-V2 to V3.2, Kimi K2, GLM-5): one latent row a token, from which all heads make keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minidsv41.families.softmax import causal, softmax_attention
from minidsv41.families.state import Family, State
from minidsv41.model.norm import RMSNorm
from minidsv41.model.rope import Rotation, angles, rotate


class MLA(Family):
    """Keeps a latent of `kv_lora` values and a rotated key of `rope` values a token.

    `absorbed` moves the up-projections of key and value to the query and to the output: the latent is then the
    key and the value of one head that all queries share. Both forms give the same, at different cost.
    """

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        q_lora: int,
        kv_lora: int,
        nope: int,
        rope: int,
        v: int,
        absorbed: bool = True,
        theta: float = 1e4,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.heads, self.kv_lora, self.nope, self.rope, self.v = heads, kv_lora, nope, rope, v
        self.absorbed, self.theta, self.scale = absorbed, theta, (nope + rope) ** -0.5
        self.q_a_proj = nn.Linear(hidden, q_lora, bias=False)
        self.q_a_layernorm = RMSNorm(q_lora, eps)
        self.q_b_proj = nn.Linear(q_lora, heads * (nope + rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, kv_lora + rope, bias=False)
        self.kv_a_layernorm = RMSNorm(kv_lora, eps)
        self.kv_b_proj = nn.Linear(kv_lora, heads * (nope + v), bias=False)
        self.o_proj = nn.Linear(heads * v, hidden, bias=False)

    def attend(self, x: Tensor, positions: Tensor, state: State) -> Tensor:
        rotation = Rotation.at(positions, angles(self.rope, self.theta, device=x.device), x.dtype)
        latent_q = self.q_a_layernorm(self.q_a_proj(x))
        q = rotate(self.q_b_proj(latent_q).unflatten(-1, (self.heads, -1)), rotation)
        latent, key = self.kv_a_proj_with_mqa(x).split([self.kv_lora, self.rope], -1)
        latent = state.append("latent", self.kv_a_layernorm(latent))  # [N, kv_lora]
        key = state.append("key", rotate(key, rotation))  # [N, rope]
        visible = causal(positions, len(key)) & self.chosen(x, latent_q, positions, state)
        read = self.read_absorbed if self.absorbed else self.read_naive
        return self.o_proj(read(q, latent, key, visible).flatten(1))

    def chosen(self, x: Tensor, latent_q: Tensor, positions: Tensor, state: State) -> Tensor:
        """[T, N] of bool: tokens that a query may read, apart from causality. Here all of them."""
        return x.new_ones(1, 1, dtype=torch.bool)

    def up(self) -> tuple[Tensor, Tensor]:
        """The two halves of the up-projection: keys [H, nope, kv_lora], values [H, v, kv_lora]."""
        return self.kv_b_proj.weight.unflatten(0, (self.heads, -1)).split([self.nope, self.v], 1)

    def read_naive(self, q: Tensor, latent: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        """Expand keys and values of every head, then attend: H heads of nope + rope and v."""
        up_k, up_v = self.up()
        k = torch.einsum("nc,hdc->nhd", latent, up_k)
        k = torch.cat([k, key[:, None].expand(-1, self.heads, -1)], -1)
        v = torch.einsum("nc,hdc->nhd", latent, up_v)
        return softmax_attention(q, k, v, visible, scale=self.scale)

    def read_absorbed(self, q: Tensor, latent: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        """Attend with kv_lora + rope against the rows as they are stored, then expand what was read."""
        up_k, up_v = self.up()
        still, turned = q.split([self.nope, self.rope], -1)
        q = torch.cat([torch.einsum("thd,hdc->thc", still, up_k), turned], -1)
        row = torch.cat([latent, key], -1)[:, None]  # [N, 1, kv_lora + rope]
        read = softmax_attention(q, row, latent[:, None], visible, scale=self.scale)
        return torch.einsum("thc,hdc->thd", read, up_v)
