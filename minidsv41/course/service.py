"""A day of a chat service: what keeping a conversation's bytes costs, and what losing them costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from minidsv41.config import ModelConfig
from minidsv41.formats import INDEX, MAIN, WINDOW

Keep = Callable[[str, float], bool]

GB_HOUR = 3600 * 10**9
DAY = 86_400
# Seconds of idleness at which a policy is asked, and may drop what it kept so far.
IDLE = (0, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 4 * 3600, 6 * 3600, 12 * 3600, DAY, 2 * DAY, 3 * DAY)


@dataclass(frozen=True)
class Service:
    """Pauses between turns, and what a pause costs.

    pauses: (tokens so far, seconds until the user returns). row_price: byte-seconds of memory that cost as
    much as one token through one layer; an assumption, the smaller the dearer the memory.
    """

    config: ModelConfig
    pauses: tuple[tuple[int, float], ...]
    row_price: float = 1e6

    @classmethod
    def day(cls, config: ModelConfig, *, conversations: int = 300, seed: int = 0) -> Service:
        """Half of the conversations are below 1,000 tokens, half of the users return within ten minutes."""
        g = torch.Generator().manual_seed(seed)
        draws = torch.randn(2, conversations, generator=g, dtype=torch.float64).exp()
        tokens, seconds = (draws[0] * 1000).ceil().int().tolist(), (600 * draws[1] ** 2.2).clamp(max=3 * DAY).tolist()
        return cls(config, tuple(zip(tokens, seconds, strict=True)))

    def bytes_kept(self, tokens: int) -> dict[str, float]:
        """Bytes of the windows and of what all layers share, after `tokens` tokens."""
        c = self.config
        row = MAIN.row_bytes(c.head_dim) + INDEX.row_bytes(c.index_head_dim)
        window = c.num_hidden_layers * WINDOW.row_bytes(c.head_dim)
        return {
            "window": min(tokens, c.sliding_window) * window,
            "global": sum(tokens // c.ratio(owner) for owner in c.kv_source_layer_ids) * row,
        }

    def rows_lost(self, tokens: int) -> dict[str, int]:
        """Token-layers to run again in the encoder if a kind is gone: the last window, or the whole prompt."""
        encoder = self.config.decoder_start
        return {"window": min(tokens, self.config.sliding_window) * encoder, "global": tokens * encoder}

    def cost(self, keep: Keep) -> float:
        """GB-hours of memory, recomputation converted, if `keep(kind, idle seconds)` decides what stays."""
        until = {kind: next((t for t in IDLE if not keep(kind, t)), float("inf")) for kind in ("window", "global")}
        total = 0.0
        for tokens, pause in self.pauses:
            size, lost = self.bytes_kept(tokens), self.rows_lost(tokens)
            total += sum(size[kind] * min(pause, until[kind]) for kind in size)
            gone = [lost[kind] for kind in size if pause >= until[kind]]
            total += self.row_price * max(gone, default=0)
        return total / GB_HOUR

    def one_timer(self) -> float:
        """The least cost of any policy that treats both kinds alike."""
        return min(self.cost(lambda kind, idle, t=t: idle < t) for t in IDLE)
