"""CSA2 attention: one key = value row for all heads; window rows and selected entries in one softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from minidsv41 import ops
from minidsv41.config import ModelConfig
from minidsv41.model.compressor import Compressor
from minidsv41.model.indexer import Indexer
from minidsv41.model.keys import Keys
from minidsv41.model.norm import RMSNorm
from minidsv41.model.rope import Rotation, frequencies, rotate
from minidsv41.ops import Batch, Pool, PoolSize, Rows, Span

Note = Callable[[str, Tensor | Callable[[], Tensor]], None]


def silent(name: str, value: Tensor | Callable[[], Tensor]) -> None:
    """The recorder of a run that nobody watches."""


@dataclass
class Context:
    """What all layers of one forward pass share: the batch, its keys and rotations, and what was chosen.

    selected: index source layer -> topk [T, k]; pools: candidate source layer -> its candidates.
    """

    config: ModelConfig
    batch: Batch
    keys: Keys
    dtype: torch.dtype
    selected: dict[int, Tensor] = field(default_factory=dict)
    pools: dict[int, Pool] = field(default_factory=dict)
    _rotations: dict[bool, Rotation] = field(default_factory=dict)

    def rotation(self, *, compressed: bool, positions: Tensor | None = None) -> Rotation:
        """Angles at `positions`, or at the batch's own."""
        if positions is None and compressed in self._rotations:
            return self._rotations[compressed]
        at = self.batch.positions if positions is None else positions
        made = Rotation.at(at, frequencies(self.config, compressed=compressed, device=at.device), self.dtype)
        if positions is None:
            self._rotations[compressed] = made
        return made


class Attention(nn.Module):
    """One attention layer. Mode and owners come from the config, once."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer, self.mode = config, layer, config.mode(layer)
        heads, width, groups = config.num_attention_heads, config.head_dim, config.o_groups
        eps = config.rms_norm_eps
        self.wq_a = nn.Linear(config.hidden_size, config.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(config.q_lora_rank, eps)
        self.wq_b = nn.Linear(config.q_lora_rank, heads * width, bias=False)
        self.wkv = nn.Linear(config.hidden_size, width, bias=False)
        self.kv_norm = RMSNorm(width, eps)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.wo_a = nn.Linear(heads * width // groups, groups * config.o_lora_rank, bias=False)
        self.wo_b = nn.Linear(groups * config.o_lora_rank, config.hidden_size, bias=False)
        if self.mode == "full":
            self.compressor = Compressor(config, layer)
        if self.mode in ("full", "reindex"):
            self.indexer = Indexer(config, layer)

    def query(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """x [T, C] -> latent qr [T, q_lora], q [T, H, D] after RoPE. No norm per head."""
        qr = self.q_norm(self.wq_a(x))
        return qr, rotate(self.wq_b(qr).unflatten(-1, (-1, self.config.head_dim)), rotation)

    def latent(self, x: Tensor, rotation: Rotation) -> Tensor:
        """x [T, C] -> window rows [T, D] after RoPE, not yet rounded."""
        return rotate(self.kv_norm(self.wkv(x)), rotation)

    def output(self, heads: Tensor) -> Tensor:
        """heads [T, H, D] after the inverse RoPE -> [T, C]: a low-rank map for each group, then one for all."""
        groups = self.config.o_groups
        o = heads.reshape(len(heads), groups, -1)  # [T, G, H / G * D]
        y = torch.einsum("tgi,gri->tgr", o, self.wo_a.weight.unflatten(0, (groups, -1)))  # [T, G, rank]
        return self.wo_b(y.flatten(1))

    def forward(self, x: Tensor, ctx: Context, note: Note = silent) -> Tensor:
        """x [T, C] normed input -> [T, C]."""
        batch, keys = ctx.batch, ctx.keys
        rotation = ctx.rotation(compressed=self.mode != "window")
        qr, q = self.query(x, rotation)
        keys.write_raw("window", self.layer, batch.seq, batch.positions, self.wkv(x), self.kv_norm, rotation)
        window = keys.read("window", self.layer)
        note("attn.qr", qr)
        note("attn.q", q)
        note("attn.win_kv", lambda: window.gather(batch.seq, batch.positions))
        if self.mode == "full":
            self.publish(x, ctx, note)
        if self.mode in ("full", "reindex"):
            self.select(x, qr, ctx, note)
        entries, topk = None, None
        if self.mode != "window":
            entries = keys.read("entry", self.config.kv_owner(self.layer))
            topk = ctx.selected[self.config.index_owner(self.layer)]
        span = batch.span(self.config.sliding_window, decoder=self.layer > self.config.decoder_start)
        heads = self.core(q, window, entries, topk, span, rotation)
        note("attn.heads", heads)
        return self.output(heads)

    def core(
        self, q: Tensor, window: Rows, entries: Rows | None, topk: Tensor | None, span: Span, rotation: Rotation
    ) -> Tensor:
        """Head outputs [T, H, D]. Values carry their key's rotation, so the query's own is undone."""
        if ops.wanted(q) and not torch.is_grad_enabled():  # a kernel does so while it has them at hand
            return ops.sparse_attention(q, window, entries, topk, self.attn_sink, span, rotation=rotation)
        o = ops.sparse_attention(q, window, entries, topk, self.attn_sink, span)
        return rotate(o, rotation, inverse=True)

    def publish(self, x: Tensor, ctx: Context, note: Note) -> None:
        """Write the entries and index keys of the groups that close in this call."""
        seq, index, latent = self.compressor(x, ctx.batch, ctx.keys)
        rotation = ctx.rotation(compressed=True, positions=index * self.compressor.ratio)
        ctx.keys.write("entry", self.layer, seq, index, rotate(latent, rotation))
        raw = self.indexer.wk(latent.detach())
        ctx.keys.write_raw("index", self.layer, seq, index, raw, self.indexer.k_norm, rotation)
        note("cmp.latent", latent)
        note("cmp.entry", lambda: ctx.keys.read("entry", self.layer).gather(seq, index))
        note("idx.k", lambda: ctx.keys.read("index", self.layer).gather(seq, index))

    def select(self, x: Tensor, qr: Tensor, ctx: Context, note: Note) -> None:
        """Choose the entries for this layer and the Reuse layers after it."""
        config, batch = ctx.config, ctx.batch
        owner = config.kv_owner(self.layer)
        ratio = config.ratio(self.layer)
        index_keys, visible, n = ctx.keys.read("index", owner), batch.visible(ratio), batch.longest(ratio)
        q, w = self.indexer.queries(x, qr, ctx.rotation(compressed=True))
        pool: Pool | PoolSize | None = None
        if self.layer == config.candidate_source_layer_id:
            pool = PoolSize(config.candidate_topk_blocks, config.candidate_block_size)
        elif self.mode == "reindex":
            pool = ctx.pools.get(owner)
        topk, built = ops.index_select(q, w, index_keys, visible, config.index_topk, pool, batch=batch, n=n)
        ctx.selected[self.layer] = topk
        note("idx.q", q)
        note("idx.w", w)
        note("idx.scores", lambda: ops.index_scores(q, w, index_keys, visible, batch, n))
        note("idx.topk", topk)
        if isinstance(pool, PoolSize):
            ctx.pools[self.layer] = built
            note("idx.candidates", lambda: built.mask(n))
