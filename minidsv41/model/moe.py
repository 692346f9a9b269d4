"""Mixture of experts: sqrt-softplus router, bias for the choice only, clamped SwiGLU (official code)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minidsv41.config import ModelConfig
from minidsv41.model.norm import wide, wide_linear


class Gate(nn.Module):
    """Scores the experts. `bias` (text) and `bias_vl` (image positions) decide who is chosen, not the weight."""

    def __init__(self, config: ModelConfig, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen, self.scale = chosen, config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(experts, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(experts), requires_grad=False)
        self.bias_vl = nn.Parameter(torch.zeros(experts), requires_grad=False)

    def forward(self, x: Tensor, image_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, C] -> ids [T, K] ascending, weights [T, K] (sum: the scaling factor), scores [T, E]."""
        scores = F.softplus(wide_linear(x, self.weight)).sqrt()
        bias = self.bias if image_mask is None else torch.where(image_mask[:, None], self.bias_vl, self.bias)
        ids = (scores.detach() + bias).topk(self.chosen, -1).indices.sort(-1).values
        chosen = scores.gather(1, ids)
        return ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * self.scale, scores


def swiglu(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> Tensor:
    """silu(gate) * up * weight: gate clamped from above, up on both sides; weight [T, 1] before the down map."""
    dtype = gate.dtype
    gate, up = gate.to(wide(dtype)).clamp(max=limit), up.to(wide(dtype)).clamp(-limit, limit)
    h = F.silu(gate) * up
    return (h if weight is None else h * weight).to(dtype)


class Experts(nn.Module):
    """All routed experts, stacked: w1 (gate) and w3 (up) [E, I, C], w2 (down) [E, C, I]."""

    def __init__(self, config: ModelConfig, experts: int) -> None:
        super().__init__()
        assert experts < 2**15
        wide_, deep = config.hidden_size, config.moe_intermediate_size
        self.limit = config.swiglu_limit
        self.w1 = nn.Parameter(torch.empty(experts, deep, wide_))
        self.w2 = nn.Parameter(torch.empty(experts, wide_, deep))
        self.w3 = nn.Parameter(torch.empty(experts, deep, wide_))

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """x [T, C], ids and weights [T, K] -> [T, C] in the wide type: every expert runs once on its own rows."""
        order = ids.flatten().to(torch.int16).argsort(stable=True)  # [T * K] by expert; a GPU sorts bit by bit
        row = order // ids.shape[1]
        xs, ws = F.embedding(row, x), weights.flatten()[order, None]  # [T * K, C], [T * K, 1]
        if x.device.type != "cpu" and x.dtype == torch.bfloat16:
            y = self.grouped(xs, ids.flatten()[order], ws)
            y = torch.empty_like(y).index_copy(0, order, y)  # back in the tokens' order
            return y.unflatten(0, ids.shape).sum(1, dtype=wide(x.dtype))
        sizes = ids.flatten().bincount(minlength=len(self.w1)).tolist()
        parts = []
        experts = zip(self.w1.unbind(), self.w2.unbind(), self.w3.unbind(), strict=True)
        for (w1, w2, w3), x_e, w_e in zip(experts, xs.split(sizes), ws.split(sizes), strict=True):
            if len(x_e):
                parts.append(F.linear(swiglu(F.linear(x_e, w1), F.linear(x_e, w3), self.limit, w_e), w2))
        out = torch.zeros(x.shape, dtype=wide(x.dtype), device=x.device)
        return out.index_add(0, row, torch.cat(parts).to(out.dtype))

    def grouped(self, xs: Tensor, ids: Tensor, ws: Tensor) -> Tensor:
        """The same without a look at the sizes: rows xs [N, C] by expert ids [N] ascending, ws [N, 1] -> [N, C].

        The products of a backward pass take groups of a multiple of 8 rows only, so rows of zeros are put between.
        """
        ends = torch.searchsorted(ids, torch.arange(len(self.w1), device=ids.device), right=True, out_int32=True)
        if not torch.is_grad_enabled():
            return self.products(xs, ws, ends)
        sizes = ends.diff(prepend=ends.new_zeros(1))
        full = (sizes + 7) // 8 * 8
        apart = full.cumsum(0, dtype=torch.int32)  # [E] ends of the groups with their zeros
        place = torch.arange(len(ids), device=ids.device) + (apart - full - ends + sizes)[ids]
        apart[-1] = total = (len(ids) + 7 * len(ends) + 7) // 8 * 8
        xs, ws = (x.new_zeros(total, x.shape[1]).index_copy(0, place, x) for x in (xs, ws))
        return self.products(xs, ws, apart)[place]

    def products(self, xs: Tensor, ws: Tensor, ends: Tensor) -> Tensor:
        """Rows xs [N, C], weights ws [N, 1], the end of each expert's rows -> [N, C]."""
        gate, up = (F.grouped_mm(xs, w.transpose(1, 2), offs=ends) for w in (self.w1, self.w3))
        return F.grouped_mm(swiglu(gate, up, self.limit, ws), self.w2.transpose(1, 2), offs=ends)


class SharedExpert(nn.Module):
    """The expert that every token uses, with weight 1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.limit = config.swiglu_limit
        self.w1 = nn.Linear(config.hidden_size, config.moe_intermediate_size, bias=False)
        self.w2 = nn.Linear(config.moe_intermediate_size, config.hidden_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.moe_intermediate_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(swiglu(self.w1(x), self.w3(x), self.limit))


class MoE(nn.Module):
    """Routed experts plus one shared expert."""

    def __init__(self, config: ModelConfig, experts: int, chosen: int) -> None:
        super().__init__()
        self.gate = Gate(config, experts, chosen)
        self.experts = Experts(config, experts)
        self.shared_experts = SharedExpert(config)

    def forward(self, x: Tensor, image_mask: Tensor | None, note) -> Tensor:
        """x [T, C] normed input -> [T, C]."""
        ids, weights, scores = self.gate(x, image_mask)
        note("ffn.expert_ids", ids)
        note("ffn.expert_weights", weights)
        note("ffn.scores", scores)
        return (self.experts(x, ids, weights) + self.shared_experts(x)).to(x.dtype)
