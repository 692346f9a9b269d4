"""The causal encoder-decoder: embedding, encoder, decoder, head.

One forward serves training, prefill, chunked prefill and decode; only the Keys differ. The encoder is the lower
half of the layers; the first decoder layer compresses its output for all decoder layers (report §2.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minidsv41.config import ModelConfig
from minidsv41.model.attention import Context, Note, silent
from minidsv41.model.block import Block
from minidsv41.model.dspark import DSpark
from minidsv41.model.engram import DEAD, latest, lookback
from minidsv41.model.hyper import Streams
from minidsv41.model.keys import Keys, SequenceKeys
from minidsv41.model.norm import RMSNorm, wide, wide_linear
from minidsv41.ops import Batch

Record = Callable[[str, Tensor | Callable[[], Tensor]], None]


class Output(NamedTuple):
    """hidden [T, C] before the final norm; features [T, targets * C] for the draft."""

    hidden: Tensor
    features: Tensor


def noting(record: Record | None, layer: int) -> Note:
    if record is None:
        return silent
    return lambda name, value: record(f"L{layer}.{name}", value)


class Model(nn.Module):
    """DeepSeek-V4.1: `config` gives the shape, token_map [V] the compressed id of each token for Engram.

    Parameters are named as in the released checkpoint, routed experts stacked.
    """

    def __init__(self, config: ModelConfig, token_map: Tensor | list[int] | None = None) -> None:
        super().__init__()
        self.config = config
        c = config
        if token_map is None:
            token_map = torch.arange(c.vocab_size) % c.engram_compressed_vocab_size
        self.register_buffer("token_map", torch.as_tensor(token_map, dtype=torch.int64), persistent=False)
        self.embed = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(
            Block(c, i, experts=c.n_routed_experts, chosen=c.num_experts_per_tok) for i in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.mtp = DSpark(c)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> Model:
        """Fresh weights: normal matrices, unit gains, streams that start as plain residuals (none are published)."""
        n = self.config.hc_mult
        for name, p in self.named_parameters():
            if p.dim() >= 2 and not name.endswith(("q_weight", "k_weight")):
                p.normal_(0, self.config.initializer_range, generator=generator)
            elif name.endswith("_base"):
                p.zero_()
                p[2 * n :] = 4 * torch.eye(n).flatten()
            elif name.endswith("_scale"):
                p.fill_(0.01)
        return self

    def cast(self, dtype: torch.dtype) -> Model:
        """Change the compute dtype; what the release stores in float32 never gets narrower than that."""
        for name, p in self.named_parameters():
            p.data = p.data.to(wide(dtype) if is_wide(name) else dtype)
        return self

    def forward(self, batch: Batch, keys: Keys, *, record: Record | None = None) -> Output:
        """Run all layers on the rows of `batch`, reading and writing `keys`."""
        ctx = Context(self.config, batch, keys, self.dtype)
        streams, features = self.encode(ctx, record)
        return self.decode(streams, ctx, record, features)

    def encode(self, ctx: Context, record: Record | None = None) -> tuple[Streams, list[Tensor]]:
        """Embedding and encoder layers -> settled streams at the boundary, draft features so far."""
        return self.run(range(self.config.decoder_start), self.start(ctx.batch), ctx, record, [])

    def start(self, batch: Batch) -> Streams:
        """The streams before layer 0."""
        return Streams.start(F.embedding(batch.tokens, self.embed.weight), self.config.hc_mult, wide(self.dtype))

    def publish(self, streams: Streams, ctx: Context) -> None:
        """Of the first decoder layer, only what others read of every row: its entries and index keys."""
        first = self.config.decoder_start
        grams = self.grams(ctx) if first in self.config.engram_layer_ids else None
        self.layers[first].publish(self.remind(first, streams, grams, silent), ctx)

    def decode(
        self,
        streams: Streams,
        ctx: Context,
        record: Record | None = None,
        features: list[Tensor] | None = None,
        *,
        first: int | None = None,
    ) -> Output:
        """Decoder layers, from `first` on if given, and the collapse by the last sublayer's mix."""
        first = self.config.decoder_start if first is None else first
        layers = range(first, self.config.num_hidden_layers)
        streams, features = self.run(layers, streams, ctx, record, features or [])
        out = Output(streams.collapsed(), torch.cat(features, -1))
        if record:
            record("final.collapsed", out.hidden)
            record("dspark.main_hidden", out.features)
            record("logits", lambda: self.logits(out.hidden))
        return out

    def run(
        self, layers: range, streams: Streams, ctx: Context, record: Record | None, features: list[Tensor]
    ) -> tuple[Streams, list[Tensor]]:
        grams = self.grams(ctx) if set(layers) & set(self.config.engram_layer_ids) else None
        features = list(features)
        for i in layers:
            note = noting(record, i)
            streams = self.remind(i, streams, grams, note)
            if i in self.config.dspark_target_layer_ids:
                streams = streams.settled()
                features.append(streams.X.mean(1))
            streams = self.layers[i](streams, ctx, note)
        return streams.settled(), features

    def remind(self, layer: int, streams: Streams, grams: Tensor | None, note: Note) -> Streams:
        """Add what the layer's Engram knows about the last words, if it has one."""
        if layer not in self.config.engram_layer_ids:
            return streams
        engram, streams = self.layers[layer].engram, streams.settled()
        rows = engram.rows(grams, self.token_map[self.config.engram_pad_token_id])
        streams = Streams(engram(streams.X, rows, grams[:, 0] != DEAD, note), streams.pre)
        note("stream_after_engram", streams.X)
        return streams

    def grams(self, ctx: Context) -> Tensor:
        """[T, n] compressed ids of each token and its predecessors."""
        batch, n = ctx.batch, self.config.engram_max_ngram_size
        ids = self.token_map[batch.tokens]
        if batch.image_mask is not None:
            ids = ids.masked_fill(batch.image_mask, DEAD)
        history = ctx.keys.history(lambda before: latest(ids, before, batch))
        return lookback(ids, history, batch, n)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [T, C] -> [T, V], in at least float32."""
        return wide_linear(self.norm(hidden), self.head.weight)

    @torch.no_grad()
    def trace(self, ids: Tensor, *, image_mask: Tensor | None = None, keys: Keys | None = None) -> dict[str, Tensor]:
        """Every intermediate of one prompt ids [T], by name (tests/golden/README.md)."""
        batch = Batch.equal(ids[None], image_mask=image_mask)
        out: dict[str, Tensor] = {"ids": ids}

        def record(name: str, value: Tensor | Callable[[], Tensor]) -> None:
            out[name] = value() if callable(value) else value

        self.forward(batch, keys or SequenceKeys(self.config, batch), record=record)
        return out


def is_wide(name: str) -> bool:
    """Tensors that the release stores in float32."""
    return ".hc_" in name or name.endswith(("attn_sink", "gate.bias", "gate.bias_vl"))
