"""MHA, GQA and MQA: keys and values for each head, for each group of heads, or one for all."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minidsv41.families.softmax import causal, rotate_halves, softmax_attention
from minidsv41.families.state import Family, State
from minidsv41.model.rope import Rotation, angles
from minidsv41.ops import rms_norm


class Heads(Family):
    """`kv_heads` = heads: MHA; 1: MQA; between: GQA."""

    def __init__(self, *, hidden: int, heads: int, kv_heads: int, head_dim: int, rope: int, theta: float = 1e4) -> None:
        super().__init__()
        if heads % kv_heads:
            raise ValueError(f"kv_heads = {kv_heads}: must divide heads = {heads}")
        self.heads, self.kv_heads, self.head_dim, self.rope, self.theta = heads, kv_heads, head_dim, rope, theta
        self.q_proj = nn.Linear(hidden, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)

    def attend(self, x: Tensor, positions: Tensor, state: State) -> Tensor:
        return self.o_proj(self.read(self.q_proj(x).unflatten(-1, (self.heads, -1)), x, positions, state).flatten(1))

    def read(self, q: Tensor, x: Tensor, positions: Tensor, state: State) -> Tensor:
        """Queries [T, H, D] before their rotation -> what they read [T, H, D]."""
        rotation = Rotation.at(positions, angles(self.rope, self.theta, device=x.device), x.dtype)
        k = rotate_halves(self.key(self.k_proj(x).unflatten(-1, (self.kv_heads, -1))), rotation)
        k = state.append("key", k)
        v = state.append("value", self.v_proj(x).unflatten(-1, (self.kv_heads, -1)))
        visible = causal(positions, len(k))
        return softmax_attention(rotate_halves(q, rotation), k, v, visible, scale=self.head_dim**-0.5)

    def key(self, k: Tensor) -> Tensor:
        return k


class GatedHeads(Heads):
    """The full-attention layer of the 3:1 hybrids (Qwen3-Next, Qwen3.5): norms on query and key, a gate on the output.

    The norms multiply by 1 + weight.
    """

    def __init__(self, *, eps: float = 1e-6, **shape) -> None:
        super().__init__(**shape)
        self.q_proj = nn.Linear(self.q_proj.in_features, 2 * self.q_proj.out_features, bias=False)
        self.q_norm, self.k_norm = (CentredNorm(self.head_dim, eps) for _ in range(2))

    def attend(self, x: Tensor, positions: Tensor, state: State) -> Tensor:
        q, gate = self.q_proj(x).unflatten(-1, (self.heads, 2, -1)).unbind(2)  # [T, H, D] each
        return self.o_proj((self.read(self.q_norm(q), x, positions, state) * gate.sigmoid()).flatten(1))

    def key(self, k: Tensor) -> Tensor:
        return self.k_norm(k)


class CentredNorm(nn.Module):
    """RMSNorm whose factor is 1 + weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, 1 + self.weight, self.eps)
