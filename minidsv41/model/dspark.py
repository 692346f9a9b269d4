"""DSpark: guess the next block of tokens from the backbone's features (DSpark paper, official code)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minidsv41.config import ModelConfig
from minidsv41.formats import WINDOW
from minidsv41.model.attention import Note, silent
from minidsv41.model.block import Block
from minidsv41.model.hyper import Streams
from minidsv41.model.keys import Keys
from minidsv41.model.norm import RMSNorm, wide, wide_linear
from minidsv41.model.rope import Rotation, frequencies
from minidsv41.ops import Batch, Rows, Span


class Draft(NamedTuple):
    """N drafts of B tokens: tokens [N, B]; logits [N, B, V] before (base) and after the Markov correction;
    confidence [N, B] logits of being accepted, given that all before were; hidden [N, B, C]."""

    tokens: Tensor
    base_logits: Tensor
    logits: Tensor
    confidence: Tensor
    hidden: Tensor


class MarkovHead(nn.Module):
    """A rank-limited bigram: logits added because of the token just before."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.dspark_markov_rank)
        self.head = nn.Linear(config.dspark_markov_rank, config.vocab_size, bias=False)

    def forward(self, previous: Tensor) -> Tensor:
        """previous [...] token ids -> [..., V]."""
        dtype = wide(self.head.weight.dtype)
        return F.linear(F.embedding(previous, self.embed.weight).to(dtype), self.head.weight.to(dtype))


class ConfidenceHead(nn.Module):
    """Logit of acceptance from the draft's hidden state and the token just before."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size + config.dspark_markov_rank, 1, bias=False)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """hidden [..., C] before the norm, previous [..., rank] Markov embedding -> [...]."""
        dtype = wide(hidden.dtype)
        return F.linear(torch.cat([hidden, previous], -1).to(dtype), self.proj.weight.to(dtype))[..., 0]


class DSpark(nn.ModuleList):
    """The draft blocks. Their window rows hold the projected features of the target's tokens, one ring each.

    A feature is the mean of the streams where a target layer begins. Inputs are the anchor and B - 1 noise tokens.
    """

    def __init__(self, config: ModelConfig) -> None:
        experts, chosen = config.dspark_n_routed_experts, config.dspark_num_experts_per_tok
        layers = range(config.num_hidden_layers, config.num_hidden_layers + config.num_nextn_predict_layers)
        super().__init__(Block(config, i, experts=experts, chosen=chosen) for i in layers)
        self.config = config
        first, last, width = self[0], self[-1], config.hidden_size
        first.main_proj = nn.Linear(len(config.dspark_target_layer_ids) * width, width, bias=False)
        first.main_norm = RMSNorm(width, config.rms_norm_eps)
        last.norm = RMSNorm(width, config.rms_norm_eps)
        last.markov_head = MarkovHead(config)
        last.confidence_head = ConfidenceHead(config)

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        return Rotation.at(positions, frequencies(self.config, compressed=False, device=positions.device), dtype)

    def remember(self, features: Tensor, batch: Batch, keys: Keys, note: Note = silent) -> None:
        """Write the window rows of every block for the tokens of `batch` from their features [T, targets * C]."""
        x = self[0].main_norm(self[0].main_proj(features))  # [T, C]
        note("main_x", x)
        rotation = self.rotation(batch.positions, x.dtype)
        for k, block in enumerate(self):
            attn = block.attn
            keys.write_raw("window", attn.layer, batch.seq, batch.positions, attn.wkv(x), attn.kv_norm, rotation)
            rows = keys.read("window", attn.layer)
            note(f"ring_kv.{k}", lambda rows=rows: rows.gather(batch.seq, batch.positions))

    def hidden(
        self,
        anchor: Tensor,
        seq: Tensor,
        last: Tensor,
        embed: nn.Embedding,
        keys: Keys,
        note: Callable[[int], Note] = lambda k: silent,
    ) -> Tensor:
        """Run the noise blocks: anchor [N] the token sampled after position last [N] of sequence seq [N].

        All B rows of a block see the window up to `last` and each other. -> [N, B, C] before the norm.
        """
        n, size, window = len(anchor), self.config.dspark_block_size, self.config.sliding_window
        steps = torch.arange(size, device=anchor.device)
        tokens = torch.full((n, size), self.config.dspark_noise_token_id, device=anchor.device)
        tokens[:, 0] = anchor
        x = F.embedding(tokens.flatten(), embed.weight)  # [N * B, C]
        streams = Streams.start(x, self.config.hc_mult, wide(x.dtype))
        rotation = self.rotation((last[:, None] + 1 + steps).flatten(), x.dtype)
        seq, last = seq.repeat_interleave(size), last.repeat_interleave(size)
        span = Span(seq, (last - window + 1).clamp(min=0), last, window)
        mates = torch.arange(n * size, device=anchor.device).view(n, size).repeat_interleave(size, 0)  # [N * B, B]
        table = torch.zeros(int(seq.max()) + 1, 1, dtype=torch.int64, device=anchor.device)

        for k, block in enumerate(self):

            def attend(x: Tensor, attn=block.attn) -> Tensor:
                own = attn.latent(x, rotation)
                if self.config.qat:
                    own = WINDOW.fake_quant(own)
                _, q = attn.query(x, rotation)
                rows = keys.read("window", attn.layer)
                return attn.output(attn.core(q, rows, Rows(own, table, page=n * size), mates, span, rotation))

            streams = block.sublayer("attn", streams, attend, note(k))
            streams = block.experts(streams, None, note(k))
        return streams.settled().collapsed().unflatten(0, (n, size))

    def correct(self, base: Tensor, previous: Tensor) -> Tensor:
        """Markov-corrected logits [..., V] given the tokens before."""
        return base + self[-1].markov_head(previous)

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """[...] acceptance logits from hidden [..., C] and the tokens before."""
        return self[-1].confidence_head(hidden, F.embedding(previous, self[-1].markov_head.embed.weight))

    def base_logits(self, hidden: Tensor, head: nn.Linear) -> Tensor:
        """hidden [..., C] -> [..., V] by the backbone's head behind the draft's own norm."""
        return wide_linear(self[-1].norm(hidden), head.weight)

    @torch.no_grad()
    def draft(
        self,
        anchor: Tensor,
        seq: Tensor,
        last: Tensor,
        embed: nn.Embedding,
        head: nn.Linear,
        keys: Keys,
        *,
        choose: Callable[[Tensor], Tensor] = lambda logits: logits.argmax(-1),
        note: Callable[[int], Note] = lambda k: silent,
    ) -> Draft:
        """One pass of the blocks, then the Markov chain token by token; `choose` maps logits [N, V] to ids [N]."""
        hidden = self.hidden(anchor, seq, last, embed, keys, note)
        base = self.base_logits(hidden, head)
        tokens, logits, confidence, previous = [], [], [], anchor
        for step in range(self.config.dspark_block_size):
            logits.append(self.correct(base[:, step], previous))
            confidence.append(self.confidence(hidden[:, step], previous))
            previous = choose(logits[-1])
            tokens.append(previous)
        return Draft(torch.stack(tokens, 1), base, torch.stack(logits, 1), torch.stack(confidence, 1), hidden)
