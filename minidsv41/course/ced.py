"""Who runs where while a prompt is read: cells watched in real runs, row-layers by rule, FLOPs by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.config import ModelConfig
from minidsv41.ledger.flops import FP4, cand_positions, weight_lines
from minidsv41.model import Model
from minidsv41.serve.prefill import Cut, Prefill

Held = Literal["entries", "entries and windows"]
IN_EVERY_LAYER = ("flop_attn_linears", "flop_wo_a", "flop_experts", "flop_router", "flop_mhc")


@dataclass(frozen=True)
class Grid:
    """What one prompt ran.

    ran [L, T] bool: layer by token; projected [T] bool: tokens whose entry the first decoder layer wrote;
    hit: how many tokens came before; entries [N, D]: all entries of the first decoder layer afterwards.
    """

    ran: Tensor
    projected: Tensor
    hit: int
    entries: Tensor

    @property
    def row_layers(self) -> int:
        return int(self.ran.sum())


@contextmanager
def watching(model: Model, ran: Tensor, projected: Tensor) -> Iterator[None]:
    """Mark in ran [L, T] and projected [T] the positions that layers, and the first decoder layer's compressor, get."""

    def layer(row: Tensor):
        def mark(module, args) -> None:
            row[args[1].batch.positions] = True

        return mark

    def compressor(module, args) -> None:
        projected[args[1].positions] = True

    handles = [block.register_forward_pre_hook(layer(row)) for block, row in zip(model.layers, ran, strict=True)]
    first = model.layers[model.config.decoder_start]
    handles.append(first.attn.compressor.register_forward_pre_hook(compressor))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def grid(model: Model, ids: Tensor, *, hit: int = 0, held: Held = "entries", cut: Cut | None = None) -> Grid:
    """Read a prompt ids [T] of which `hit` tokens came before, and watch. `held`: what is left of those."""
    cache = Cache(model.config, dtype=model.dtype)
    state = cache.new()
    if hit:
        Prefill(model, cache, state, ids[:hit], cut=None).finish()
        if held == "entries":
            cache.truncate(state, hit)
    ran = torch.zeros(model.config.num_hidden_layers, len(ids), dtype=torch.bool)
    projected = torch.zeros(len(ids), dtype=torch.bool)
    work = Prefill(model, cache, state, ids, cut=cut)
    with watching(model, ran, projected):
        work.finish(len(ids))
    projected[:hit] = False  # these exist, and are not written again
    batch, keys = work.inputs(0, len(ids), floor=0, kept=len(ids))
    entries = keys.read("entry", model.config.decoder_start).gather(batch.seq, batch.positions)
    return Grid(ran, projected, hit, entries)


def row_layers(
    layers: int, window: int, *, length: int, hit: int = 0, held: Held = "entries", cut: bool = True
) -> dict[str, int]:
    """Rows that layers run while a prompt is read, by part; the lower half of the layers is the encoder.

    length: tokens of the prompt, of which `hit` came before, with `held` left of them (without windows the last
    `window` of them run again); cut: whether the decoder runs on the last `window` rows only.
    """
    if not 0 <= hit < length:
        raise ValueError(f"hit = {hit}: from 0 to length - 1 = {length - 1}")
    encoder, decoder = layers // 2, layers - layers // 2
    new, again = length - hit, min(window, hit) if held == "entries" else 0
    tail = min(window, again + new) if cut else again + new
    return {"encoder, new": encoder * new, "encoder, again": encoder * again, "decoder": decoder * tail}


def ways(layers: int, window: int, *, length: int, hit: int) -> dict[str, dict[str, int]]:
    """The same prompt, read in each way that makes sense for it -> row_layers by part."""
    shape = dict(layers=layers, window=window, length=length, hit=hit)
    if hit == 0:
        return {"all layers": row_layers(**shape, cut=False), "decoder on its tail": row_layers(**shape)}
    return {
        "windows kept, all layers": row_layers(**shape, held="entries and windows", cut=False),
        "windows kept, decoder on its tail": row_layers(**shape, held="entries and windows"),
        "windows lost, both replays": row_layers(**shape),
    }


def break_even(window: int, layers: int) -> int:
    """New tokens from which on both replays run no more row-layers than all layers with windows kept."""

    def replays_cost_no_more(new: int) -> bool:
        return sum(row_layers(layers, window, length=window + new, hit=window).values()) <= layers * new

    return next(filter(replays_cost_no_more, count(1)))


def described(layers: int, window: int, *, length: int, hit: int) -> str:
    """Two lines of HTML: the prompt, and what the last of its ways costs beside the first."""
    costs = [sum(parts.values()) for parts in ways(layers, window, length=length, hit=hit).values()]
    what = f"{length - hit:,} new tokens after a hit of {hit:,}" if hit else f"{length:,} tokens, cold"
    cost = f"{costs[-1]:,} row-layers instead of {costs[0]:,}: {costs[-1] / costs[0]:.2f} times"
    even = f"; even at {break_even(window, layers):,} new tokens" if hit >= window else ""
    return f"{layers} layers, window {window}: {what}<br>{cost}{even}"


def layer_flops(c: ModelConfig, layer: int, context: int) -> Fraction:
    """What a token at `context` (itself included) costs in one layer, weighted as in the ledger.

    Attention and expert weights, router, mHC, attention over window and entries, index scores; what only owners or
    Engram layers have beside those is left out.
    """
    ratio = c.ratio(layer)
    weights = sum(Fraction(line.value) for line in weight_lines(c) if line.name in IN_EVERY_LAYER)
    keys = min(c.sliding_window, context) + (min(c.index_topk, context // ratio) if ratio else 0)
    scored = context // ratio if layer in c.index_source_layer_ids else 0
    if c.mode(layer) == "reindex" and c.kv_owner(layer) == c.candidate_source_layer_id:
        scored = min(scored, int(cand_positions(c)))
    core = 4 * c.num_attention_heads * c.head_dim * keys
    return weights / c.num_hidden_layers + core + 2 * c.index_n_heads * c.index_head_dim * scored * FP4.value


def decoder_share(c: ModelConfig, context: int) -> float:
    """Share of a token's `layer_flops` that lies in the decoder."""
    costs = [layer_flops(c, layer, context) for layer in range(c.num_hidden_layers)]
    return float(sum(costs[c.decoder_start :]) / sum(costs))
