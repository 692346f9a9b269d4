"""The three things that can be trained, behind one interface: backbone, draft, and the plain yardstick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minidsv41.model import Model, SequenceKeys
from minidsv41.model.norm import wide
from minidsv41.ops import Batch
from minidsv41.train.losses import BALANCE_WEIGHT, Queries, alignment_loss, balance_loss, draft_loss
from minidsv41.train.plain import PlainTransformer

Terms = dict[str, Tensor]


class Loss(NamedTuple):
    """Terms by name, of which `total` is minimised; and for each router its bias [E] and whom it chose [..., K]."""

    terms: Terms
    chosen: list[tuple[Tensor, Tensor]]


class Objective(Protocol):
    """What the training loop needs to know."""

    stacks: dict[str, int]  # see Optimizer

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What is trained, by its full name."""
        ...

    def loss(self, tokens: Tensor, *, step: int, weight: Tensor | None = None) -> Loss:
        """tokens [B, T + 1], weight [B, T] of each target (all equal if None); random choices follow from `step`.

        Several threads may call at once.
        """
        ...

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> [B, T, V], for validation."""
        ...


class Recorder(dict):
    """Keeps the values of a forward pass whose names end in one of `wanted`."""

    def __init__(self, *wanted: str) -> None:
        super().__init__()
        self.wanted = wanted

    def __call__(self, name: str, value: Tensor | Callable[[], Tensor]) -> None:
        if name.endswith(self.wanted):
            self[name] = value

    def take(self, name: str) -> Tensor:
        return value() if callable(value := self[name]) else value


def draws(seed: int, step: int) -> torch.Generator:
    """Random numbers of one step: a resumed run draws the same."""
    return torch.Generator().manual_seed(1_000_003 * seed + step)


def cross_entropy(logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over targets [B, T] under logits [B * T, V], each counted `weight` [B, T] times."""
    if weight is None:
        return F.cross_entropy(logits, targets.flatten())
    nats = F.cross_entropy(logits, targets.flatten(), reduction="none")
    return (nats * weight.flatten()).sum() / weight.sum()


def model_stacks(model: Model) -> dict[str, int]:
    c = model.config
    return {
        "indexer.wq_b.weight": c.index_n_heads,
        "attn.wq_b.weight": c.num_attention_heads,
        "attn.wo_a.weight": c.o_groups,
    }


@dataclass
class Plain:
    """Cross entropy of a plain Transformer."""

    module: PlainTransformer

    def __post_init__(self) -> None:
        self.stacks = dict.fromkeys(("wq.weight", "wk.weight"), self.module.config.num_heads)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.module.named_parameters())

    def loss(self, tokens: Tensor, *, step: int, weight: Tensor | None = None) -> Loss:
        loss = cross_entropy(self.logits(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:], weight)
        return Loss({"total": loss}, [])

    def logits(self, tokens: Tensor) -> Tensor:
        return self.module(tokens)


@dataclass
class Backbone:
    """Cross entropy, balance and indexer alignment.

    In `replay` of the B sequences a prompt ends at a random place, and what follows in the decoder reads
    no window row older than its last `sliding_window` tokens: decoder replay (report §3.2.2),
    in the layers of `late` (tests/golden/README.md).
    Alignment is computed on the last `align` sequences.
    """

    module: Model
    replay: int
    align: int
    seed: int

    def __post_init__(self) -> None:
        self.stacks = model_stacks(self.module)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.module.named_parameters() if not name.startswith("mtp.")]

    def loss(self, tokens: Tensor, *, step: int, weight: Tensor | None = None) -> Loss:
        model, (count, length) = self.module, tokens[:, :-1].shape
        batch = Batch.equal(tokens[:, :-1], decoder_floor=self.replay_floor(count, length, step))
        seen = Recorder(".scores", ".expert_ids", ".q", ".w", ".k", ".entry", ".win_kv")
        out = model(batch, SequenceKeys(model.config, batch), record=seen)
        layers = range(model.config.num_hidden_layers)
        ids = [seen[f"L{i}.ffn.expert_ids"].unflatten(0, (count, length)) for i in layers]
        scores = [seen[f"L{i}.ffn.scores"].unflatten(0, (count, length)) for i in layers]
        terms = {
            "lm": cross_entropy(model.logits(out.hidden), tokens[:, 1:], weight),
            "balance": sum(balance_loss(*pair) for pair in zip(scores, ids, strict=True)),
            "align": sum(self.alignment(layer, batch, seen) for layer in model.config.index_source_layer_ids),
        }
        terms["total"] = terms["lm"] + BALANCE_WEIGHT * terms["balance"] + terms["align"]
        return Loss(terms, [(model.layers[i].ffn.gate.bias, ids[i]) for i in layers])

    def replay_floor(self, count: int, length: int, step: int) -> Tensor | None:
        """[B * T] first window row that a row may read in the decoder; None if no sequence is replayed."""
        window = self.module.config.sliding_window
        if self.replay == 0 or length <= window:
            return None
        start = torch.randint(1, length - window + 1, (self.replay, 1), generator=draws(self.seed, step))
        floor = torch.zeros(count, length, dtype=torch.int64)
        floor[: self.replay] = torch.where(torch.arange(length) >= start, start, 0)
        return floor.flatten().to(self.module.device)

    def alignment(self, layer: int, batch: Batch, seen: Recorder) -> Tensor:
        config, take = self.module.config, seen.take
        owner, count = config.kv_owner(layer), len(batch.lengths)
        if not self.align:
            return torch.zeros((), device=batch.device)

        def last(x: Tensor) -> Tensor:
            """Of the last sequences; a small difference of two distributions needs the wide type."""
            x = x.unflatten(0, (count, -1))[count - self.align :]
            return x.to(wide(x.dtype)) if x.is_floating_point() else x

        span = batch.span(config.sliding_window, decoder=layer > config.decoder_start)
        with torch.no_grad():
            queries = Queries(
                q=last(take(f"L{layer}.attn.q")),
                entries=last(take(f"L{owner}.cmp.entry")),
                window=last(take(f"L{layer}.attn.win_kv")),
                sink=self.module.layers[layer].attn.attn_sink.detach(),
                visible=batch.visible(config.ratio(layer)).unflatten(0, (count, -1))[0],
                first=last(span.first),
            )
        q, k, w = (last(take(name)) for name in (f"L{layer}.idx.q", f"L{owner}.idx.k", f"L{layer}.idx.w"))
        return alignment_loss(q, k, w, queries)

    def logits(self, tokens: Tensor) -> Tensor:
        batch = Batch.equal(tokens.to(self.module.device))
        out = self.module(batch, SequenceKeys(self.module.config, batch))
        return self.module.logits(out.hidden).unflatten(0, tokens.shape).to(tokens.device)


@dataclass
class Draft:
    """DSpark on the frozen backbone: `anchors` random places of each batch, true previous tokens (DSpark paper).

    All places count the same, whatever the weight of a target.
    """

    module: Model
    anchors: int
    seed: int

    def __post_init__(self) -> None:
        self.stacks = model_stacks(self.module)
        for name, p in self.module.named_parameters():
            p.requires_grad_(name.startswith("mtp.") and ".gate.bias" not in name)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.module.named_parameters() if name.startswith("mtp.")]

    def loss(self, tokens: Tensor, *, step: int, weight: Tensor | None = None) -> Loss:
        model, tokens, size = self.module, tokens.to(self.module.device), self.module.config.dspark_block_size
        count, length = tokens[:, :-1].shape
        generator = draws(self.seed, step)
        seq = torch.randint(count, (self.anchors,), generator=generator).to(tokens.device)
        last = torch.randint(length - size, (self.anchors,), generator=generator).to(tokens.device)
        after = last[:, None] + 1 + torch.arange(size, device=tokens.device)  # [A, K]; the anchor is the first of them
        batch = Batch.equal(tokens[:, :-1])
        keys = SequenceKeys(model.config, batch)
        with torch.no_grad():
            out = model(batch, keys)
            target = model.logits(out.hidden[seq[:, None] * length + after].flatten(0, 1)).unflatten(0, after.shape)
        mtp, previous = model.mtp, tokens[seq[:, None], after]
        mtp.remember(out.features, batch, keys)
        seen = [Recorder("ffn.expert_ids") for _ in mtp]
        hidden = mtp.hidden(previous[:, 0], seq, last, model.embed, keys, seen.__getitem__)
        logits = mtp.correct(mtp.base_logits(hidden, model.head), previous)
        terms = draft_loss(logits, mtp.confidence(hidden, previous), target, tokens[seq[:, None], after + 1])
        biases = [block.ffn.gate.bias for block in mtp]
        return Loss(terms, [(bias, own["ffn.expert_ids"]) for bias, own in zip(biases, seen, strict=True)])

    def logits(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError("a draft has no logits of its own text; see losses.draft_loss")
