"""CSA and HCA (DeepSeek-V4): a window of single tokens, and entries that are each made of many."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minidsv41.config import RopeScaling
from minidsv41.families.dsa import picked
from minidsv41.families.softmax import causal, softmax_attention
from minidsv41.families.state import Family, State, behind
from minidsv41.model.norm import RMSNorm
from minidsv41.model.rope import Rotation, angles, rotate
from minidsv41.ops import rms_norm
from minidsv41.ops.select import lowest_topk, weigh


class Compressor(nn.Module):
    """`rate` tokens become one entry of `width`: a softmax over the tokens, separately in each channel.

    overlap: an entry is also made of the tokens of the group before it, by projections of their own.
    """

    def __init__(self, *, hidden: int, width: int, rate: int, overlap: bool, eps: float) -> None:
        super().__init__()
        self.width, self.rate, self.overlap = width, rate, overlap
        out = (1 + overlap) * width
        self.kv_proj = nn.Linear(hidden, out, bias=False)
        self.gate_proj = nn.Linear(hidden, out, bias=False)
        self.position_bias = nn.Parameter(torch.zeros(rate, out))
        self.kv_norm = RMSNorm(width, eps)

    def forward(self, x: Tensor, state: State, name: str) -> Tensor:
        """x [T, C] -> the entries [n, width] of the groups that x completes, not yet rotated."""
        tokens = torch.stack([self.kv_proj(x), self.gate_proj(x)], 1)  # [T, 2, out]
        tokens = behind(state.fixed.get(f"{name}.open"), tokens)
        whole = len(tokens) // self.rate
        state.fixed[f"{name}.open"] = tokens[whole * self.rate :]
        groups = tokens[: whole * self.rate].unflatten(0, (whole, self.rate))  # [n, rate, 2, out]
        content, gate = groups.unbind(2)  # [n, rate, out]
        groups = torch.stack([content, gate + self.position_bias], 2)
        if self.overlap:
            groups = self.overlapped(groups, state, name)  # [n, 2 rate, 2, width]
        content, gate = groups.unbind(2)
        return self.kv_norm((content * gate.softmax(1)).sum(1))

    def overlapped(self, groups: Tensor, state: State, name: str) -> Tensor:
        """Each group's own half behind the other half of the group before it; the first group has none before it."""
        earlier, own = groups.split(self.width, -1)
        before = state.fixed.get(f"{name}.before")
        if before is None:
            before = torch.zeros_like(own.new_empty(1, self.rate, 2, self.width))
            before[:, :, 1] = -torch.inf
        earlier = torch.cat([before, earlier])
        state.fixed[f"{name}.before"] = earlier[-1:]
        return torch.cat([earlier[:-1], own], 1)


class Compressed(Family):
    """What CSA and HCA share: one key that is also the value, a window and a sink, one softmax over both key sets.

    rate 0 keeps the window alone. CSA adds an indexer; HCA reads every entry.
    """

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        head_dim: int,
        rope: int,
        q_lora: int,
        o_groups: int,
        o_lora: int,
        window: int,
        rate: int = 0,
        overlap: bool = False,
        theta: float = 1e4,
        scaling: RopeScaling | None = None,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.rope, self.window, self.rate = heads, head_dim, rope, window, rate
        self.theta, self.scaling, self.eps, self.o_groups = theta, scaling, eps, o_groups
        self.q_a_proj = nn.Linear(hidden, q_lora, bias=False)
        self.q_a_norm = RMSNorm(q_lora, eps)
        self.q_b_proj = nn.Linear(q_lora, heads * head_dim, bias=False)
        self.kv_proj = nn.Linear(hidden, head_dim, bias=False)
        self.kv_norm = RMSNorm(head_dim, eps)
        self.o_a_proj = nn.Linear(heads * head_dim // o_groups, o_groups * o_lora, bias=False)
        self.o_b_proj = nn.Linear(o_groups * o_lora, hidden, bias=False)
        self.sinks = nn.Parameter(torch.zeros(heads))
        if rate:
            self.compressor = Compressor(hidden=hidden, width=head_dim, rate=rate, overlap=overlap, eps=eps)

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        return Rotation.at(positions, angles(self.rope, self.theta, self.scaling, device=positions.device), dtype)

    def attend(self, x: Tensor, positions: Tensor, state: State) -> Tensor:
        rotation = self.rotation(positions, x.dtype)
        latent_q = self.q_a_norm(self.q_a_proj(x))
        q = rotate(self.query_norm(self.q_b_proj(latent_q).unflatten(-1, (self.heads, -1))), rotation)
        keys = state.slide("window", rotate(self.kv_norm(self.kv_proj(x)), rotation), self.window - 1)
        visible = causal(positions, len(keys), window=self.window)
        if self.rate:
            entries = self.entries(self.compressor, x, state, "entry")
            seen = torch.arange(len(entries), device=x.device) < ((positions + 1) // self.rate)[:, None]
            keys = torch.cat([keys, entries])
            visible = torch.cat([visible, seen & self.chosen(x, latent_q, positions, seen, state)], 1)
        read = softmax_attention(q, keys[:, None], keys[:, None], visible, scale=self.head_dim**-0.5, sink=self.sinks)
        read = rotate(read, rotation, inverse=True)  # [T, H, D]
        groups = read.flatten(1).unflatten(1, (self.o_groups, -1))  # [T, G, H D / G]
        weight = self.o_a_proj.weight.unflatten(0, (self.o_groups, -1))  # [G, o_lora, H D / G]
        return self.o_b_proj(torch.einsum("tgi,goi->tgo", groups, weight).flatten(1))

    def query_norm(self, q: Tensor) -> Tensor:
        """V4 normalises each query head, without a weight. V4.1 does not."""
        return rms_norm(q, None, self.eps)

    def entries(self, compressor: Compressor, x: Tensor, state: State, name: str) -> Tensor:
        """All entries so far [N, width]; those that x completes are rotated by the position of their first token."""
        new = compressor(x, state, name)
        first = len(state.rows.get(name, ())) * self.rate
        at = first + self.rate * torch.arange(len(new), device=x.device)
        return state.append(name, rotate(new, self.rotation(at, x.dtype)))

    def chosen(self, x: Tensor, latent_q: Tensor, positions: Tensor, seen: Tensor, state: State) -> Tensor:
        """[T, N] of bool: entries that a query may read, of those complete before it. Here all of them."""
        return seen


class HCA(Compressed):
    """Heavily compressed attention: groups of 128 tokens do not overlap, and every entry is read."""


class CSA(Compressed):
    """Compressed sparse attention: overlapping groups of 4, and an indexer that has a compressor of its own."""

    def __init__(self, *, index_heads: int, index_dim: int, index_topk: int, **shape) -> None:
        super().__init__(overlap=True, **shape)
        self.index_heads, self.index_dim, self.topk = index_heads, index_dim, index_topk
        self.compressor.indexer = Compressor(
            hidden=self.q_a_proj.in_features, width=index_dim, rate=self.rate, overlap=True, eps=self.eps
        )
        self.compressor.indexer.q_b_proj = nn.Linear(self.q_a_proj.out_features, index_heads * index_dim, bias=False)
        self.compressor.indexer.scorer = nn.Module()
        self.compressor.indexer.scorer.weights_proj = nn.Linear(self.q_a_proj.in_features, index_heads, bias=False)

    def chosen(self, x: Tensor, latent_q: Tensor, positions: Tensor, seen: Tensor, state: State) -> Tensor:
        indexer = self.compressor.indexer
        keys = self.entries(indexer, x, state, "index")
        q = rotate(indexer.q_b_proj(latent_q).unflatten(-1, (self.index_heads, -1)), self.rotation(positions, x.dtype))
        w = indexer.scorer.weights_proj(x) * (self.index_heads * self.index_dim) ** -0.5
        scores = weigh(q, w, keys).masked_fill(~seen, -torch.inf)
        return picked(lowest_topk(scores, self.topk), len(keys))
