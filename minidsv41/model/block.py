"""One block: attention and experts, each behind a seam of the residual streams."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minidsv41 import ops
from minidsv41.config import ModelConfig
from minidsv41.model.attention import Attention, Context, Note, silent
from minidsv41.model.engram import Engram
from minidsv41.model.hyper import Streams
from minidsv41.model.moe import MoE
from minidsv41.model.norm import RMSNorm
from minidsv41.ops import Next


class Block(nn.Module):
    """Backbone layer or DSpark block; they differ in the experts and in how attention finds its keys."""

    def __init__(self, config: ModelConfig, layer: int, *, experts: int, chosen: int) -> None:
        super().__init__()
        self.config, n = config, config.hc_mult
        self.attn = Attention(config, layer)
        self.ffn = MoE(config, experts, chosen)
        for part in ("attn", "ffn"):
            setattr(self, f"{part}_norm", RMSNorm(config.hidden_size, config.rms_norm_eps))
            setattr(self, f"hc_{part}_fn", nn.Parameter(torch.empty(n * (n + 2), n * config.hidden_size)))
            setattr(self, f"hc_{part}_base", nn.Parameter(torch.empty(n * (n + 2))))
            setattr(self, f"hc_{part}_scale", nn.Parameter(torch.empty(3)))
        if layer in config.engram_layer_ids:
            self.engram = Engram(config, layer)

    def into(self, part: str) -> Next:
        """What sublayer `part` ("attn" or "ffn") brings to the seam before it."""
        fn, base, scale = (getattr(self, f"hc_{part}_{name}") for name in ("fn", "base", "scale"))
        c = self.config
        norm = getattr(self, f"{part}_norm").weight
        return Next(fn, base, scale, norm, c.rms_norm_eps, c.hc_eps, c.hc_sinkhorn_iters)

    def sublayer(self, part: str, streams: Streams, run, note: Note) -> Streams:
        """Cross the seam, run the sublayer on its input, leave its output pending."""
        F, post, comb = streams.pending or (None, None, None)
        X, x, pre, post, comb = ops.seam(streams.X, F, streams.pre, post, comb, self.into(part))
        for name, value in (("x", x), ("pre", pre), ("post", post), ("comb", comb)):
            note(f"{part}.{name}", value)
        if part == "ffn":
            note("stream_after_attn", X)
        out = run(x)
        note(f"{part}.out", out)
        return Streams(X, pre, (out, post, comb))

    def forward(self, streams: Streams, ctx: Context, note: Note = silent) -> Streams:
        streams = self.sublayer("attn", streams, lambda x: self.attn(x, ctx, note), note)
        return self.experts(streams, ctx.batch.image_mask, note)

    def publish(self, streams: Streams, ctx: Context) -> None:
        """Write this layer's entries and index keys, if it owns any, and run nothing."""
        if self.attn.mode == "full":
            self.attn.publish(self.attn_norm(streams.collapsed()), ctx, silent)

    def experts(self, streams: Streams, image_mask: Tensor | None, note: Note) -> Streams:
        streams = self.sublayer("ffn", streams, lambda x: self.ffn(x, image_mask, note), note)
        note("stream_after_ffn", lambda: streams.settled().X)
        return streams
