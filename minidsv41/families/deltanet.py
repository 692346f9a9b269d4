"""Gated DeltaNet (Qwen3-Next, Qwen3.5) and KDA (Kimi Linear, K3): layers whose state does not grow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minidsv41.families import delta
from minidsv41.families.state import Family, State
from minidsv41.model.norm import RMSNorm

CONV = 4  # taps of the convolution in front of query, key and value


class Delta(Family):
    """The recurrence with a short convolution in front of it. Keeps a matrix a head and the last 3 tokens' inputs."""

    def __init__(self, *, channels: int, key_heads: int, heads: int, key_dim: int, value_dim: int) -> None:
        super().__init__()
        self.key_heads, self.heads, self.key_dim, self.value_dim = key_heads, heads, key_dim, value_dim
        self.conv1d = nn.Conv1d(channels, channels, CONV, groups=channels, bias=False)

    def remember(self, qkv: Tensor, g: Tensor, beta: Tensor, state: State) -> Tensor:
        """Inputs of the convolution [T, channels], decay and beta -> what is read [T, H, V]."""
        taps = state.slide("conv", qkv, CONV - 1)
        taps = F.pad(taps, (0, 0, len(qkv) + CONV - 1 - len(taps), 0))  # nothing before the first token
        mixed = F.silu(self.conv1d(taps.T)).T  # [T, channels]
        wide = self.key_heads * self.key_dim
        q, k, v = mixed.split([wide, wide, self.heads * self.value_dim], -1)
        q, k = (unit(x.unflatten(-1, (self.key_heads, -1))) for x in (q, k))
        q, k = (x.repeat_interleave(self.heads // self.key_heads, 1) for x in (q, k))
        v = v.unflatten(-1, (self.heads, -1))
        S = state.fixed.get("S", v.new_zeros(self.heads, self.key_dim, self.value_dim))
        rule = delta.recurrent if len(q) == 1 else delta.chunked
        out, state.fixed["S"] = rule(q * self.key_dim**-0.5, k, v, g, beta, S)
        return out


def unit(x: Tensor) -> Tensor:
    """Of length 1 in the last axis."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class GatedDeltaNet(Delta):
    """One decay a head and token. Each key head serves heads / key_heads value heads."""

    def __init__(
        self, *, hidden: int, key_heads: int, heads: int, key_dim: int, value_dim: int, eps: float = 1e-6
    ) -> None:
        keys, values = key_heads * key_dim, heads * value_dim
        super().__init__(
            channels=2 * keys + values, key_heads=key_heads, heads=heads, key_dim=key_dim, value_dim=value_dim
        )
        self.in_proj_qkvz = nn.Linear(hidden, 2 * keys + 2 * values, bias=False)
        self.in_proj_ba = nn.Linear(hidden, 2 * heads, bias=False)
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.zeros(heads))
        self.norm = RMSNorm(value_dim, eps)
        self.out_proj = nn.Linear(values, hidden, bias=False)

    def attend(self, x: Tensor, positions: Tensor, state: State) -> Tensor:
        share = self.heads // self.key_heads  # value heads of a key head
        parts = [self.key_dim, self.key_dim, share * self.value_dim, share * self.value_dim]
        q, k, v, z = self.in_proj_qkvz(x).unflatten(-1, (self.key_heads, -1)).split(parts, -1)
        b, a = (y.flatten(1) for y in self.in_proj_ba(x).unflatten(-1, (self.key_heads, 2, share)).unbind(2))
        g = -self.A_log.exp() * F.softplus(a + self.dt_bias)  # [T, H]
        out = self.remember(torch.cat([y.flatten(1) for y in (q, k, v)], -1), g, b.sigmoid(), state)
        return self.out_proj((self.norm(out) * F.silu(z.reshape(out.shape))).flatten(1))


class KDA(Delta):
    """Kimi Delta Attention: a decay of its own for each channel of the key."""

    def __init__(self, *, hidden: int, heads: int, head_dim: int, eps: float = 1e-6) -> None:
        wide = heads * head_dim
        super().__init__(channels=3 * wide, key_heads=heads, heads=heads, key_dim=head_dim, value_dim=head_dim)
        for name in ("q_proj", "k_proj", "v_proj"):
            self.add_module(name, nn.Linear(hidden, wide, bias=False))
        self.forget_gate = nn.Module()
        self.forget_gate.f_a_proj = nn.Linear(hidden, head_dim, bias=False)
        self.forget_gate.f_b_proj = nn.Linear(head_dim, wide, bias=False)
        self.forget_gate.dt_bias = nn.Parameter(torch.zeros(wide))
        self.forget_gate.A_log = nn.Parameter(torch.zeros(1, 1, heads, 1))
        self.b_proj = nn.Linear(hidden, heads, bias=False)
        self.g_a_proj = nn.Linear(hidden, head_dim, bias=False)
        self.g_b_proj = nn.Linear(head_dim, wide, bias=False)
        self.o_norm = RMSNorm(head_dim, eps)
        self.o_proj = nn.Linear(wide, hidden, bias=False)

    def attend(self, x: Tensor, positions: Tensor, state: State) -> Tensor:
        forget = self.forget_gate
        rate = F.softplus(forget.f_b_proj(forget.f_a_proj(x)) + forget.dt_bias).unflatten(-1, (self.heads, -1))
        g = -forget.A_log[0].exp() * rate  # [T, H, K]
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
        out = self.remember(qkv, g, self.b_proj(x).sigmoid(), state)
        gate = self.g_b_proj(self.g_a_proj(x)).view(out.shape)
        return self.o_proj((self.o_norm(out) * gate.sigmoid()).flatten(1))
