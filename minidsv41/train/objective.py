"""The three things that can be trained, behind one interface: backbone, draft, and the plain yardstick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.train.losses import BALANCE_WEIGHT, Queries, alignment_loss, balance_loss, draft_loss, update_bias
from minidsv41.train.plain import PlainTransformer

Terms = dict[str, Tensor]


class Objective(Protocol):
    """What the training loop needs to know."""

    stacks: dict[str, int]  # see Optimizer

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What is trained, by its full name."""
        ...

    def loss(self, tokens: Tensor, *, step: int) -> Terms:
        """tokens [B, T + 1] -> terms by name; `total` is the one to minimise."""
        ...

    def settle(self) -> None:
        """What follows the optimiser's step."""
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

    def loss(self, tokens: Tensor, *, step: int) -> Terms:
        tokens = tokens.to(next(self.module.parameters()).device)
        return {"total": F.cross_entropy(self.logits(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())}

    def settle(self) -> None:
        pass

    def logits(self, tokens: Tensor) -> Tensor:
        return self.module(tokens)


@dataclass
class Backbone:
    """Cross entropy, balance and indexer alignment.

    In `replay` of the B sequences of a batch a prompt ends at a random place, and what follows in the decoder reads
    no window row older than its last `sliding_window` tokens (attention spec §8.2, decoder replay, cut `late`).
    Alignment is computed on the last `align` sequences.
    """

    module: Model
    replay: int
    align: int
    seed: int

    def __post_init__(self) -> None:
        self.stacks = model_stacks(self.module)
        self.record = Recorder()

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.module.named_parameters() if not name.startswith("mtp.")]

    def loss(self, tokens: Tensor, *, step: int) -> Terms:
        model, (count, length) = self.module, tokens[:, :-1].shape
        floor = self.replay_floor(count, length, step)
        batch = Batch.equal(tokens[:, :-1], decoder_floor=None if floor is None else floor.to(tokens.device))
        self.record = Recorder(".scores", ".expert_ids", ".q", ".w", ".k", ".entry", ".win_kv")
        out = model(batch, SequenceKeys(model.config, batch), record=self.record)
        terms = {
            "lm": F.cross_entropy(model.logits(out.hidden), tokens[:, 1:].flatten()),
            "balance": sum(
                balance_loss(self.record[f"L{i}.ffn.scores"].unflatten(0, (count, length)), ids)
                for i, ids in self.expert_ids(count, length)
            ),
            "align": sum(self.alignment(layer, batch) for layer in model.config.index_source_layer_ids),
        }
        return terms | {"total": terms["lm"] + BALANCE_WEIGHT * terms["balance"] + terms["align"]}

    def expert_ids(self, *shape: int) -> list[tuple[int, Tensor]]:
        layers = range(self.module.config.num_hidden_layers)
        return [(i, self.record[f"L{i}.ffn.expert_ids"].unflatten(0, shape)) for i in layers]

    def replay_floor(self, count: int, length: int, step: int) -> Tensor | None:
        """[B * T] first window row that a row may read in the decoder; None if no sequence is replayed."""
        window = self.module.config.sliding_window
        if self.replay == 0 or length <= window:
            return None
        start = torch.randint(1, length - window + 1, (self.replay, 1), generator=draws(self.seed, step))
        floor = torch.zeros(count, length, dtype=torch.int64)
        floor[: self.replay] = torch.where(torch.arange(length) >= start, start, 0)
        return floor.flatten().to(self.module.device)

    def alignment(self, layer: int, batch: Batch) -> Tensor:
        config, take = self.module.config, self.record.take
        owner, count = config.kv_owner(layer), len(batch.lengths)

        def last(x: Tensor) -> Tensor:
            return x.unflatten(0, (count, -1))[count - self.align :]

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

    def settle(self) -> None:
        for i, ids in self.expert_ids(-1):
            update_bias(self.module.layers[i].ffn.gate.bias, ids)

    def logits(self, tokens: Tensor) -> Tensor:
        batch = Batch.equal(tokens.to(self.module.device))
        out = self.module(batch, SequenceKeys(self.module.config, batch))
        return self.module.logits(out.hidden).unflatten(0, tokens.shape).to(tokens.device)


@dataclass
class Draft:
    """DSpark on the frozen backbone: `anchors` random places of each batch, true previous tokens (§5.4)."""

    module: Model
    anchors: int
    seed: int

    def __post_init__(self) -> None:
        self.stacks = model_stacks(self.module)
        self.ids: dict[int, Tensor] = {}
        for name, p in self.module.named_parameters():
            p.requires_grad_(name.startswith("mtp.") and ".gate.bias" not in name)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.module.named_parameters() if name.startswith("mtp.")]

    def loss(self, tokens: Tensor, *, step: int) -> Terms:
        model, tokens, size = self.module, tokens.to(self.module.device), self.module.config.dspark_block_size
        count, length = tokens[:, :-1].shape
        generator = draws(self.seed, step)
        seq = torch.randint(count, (self.anchors,), generator=generator).to(tokens.device)
        last = torch.randint(length - size, (self.anchors,), generator=generator).to(tokens.device)
        seq, last = seq.to(tokens.device), last.to(tokens.device)
        after = last[:, None] + 1 + torch.arange(size, device=tokens.device)  # [A, K]; the anchor is the first of them
        batch = Batch.equal(tokens[:, :-1])
        keys = SequenceKeys(model.config, batch)
        with torch.no_grad():
            out = model(batch, keys)
            target = model.logits(out.hidden[seq[:, None] * length + after].flatten(0, 1)).unflatten(0, after.shape)
        mtp, previous = model.mtp, tokens[seq[:, None], after]
        mtp.remember(out.features, batch, keys)
        hidden = mtp.hidden(previous[:, 0], seq, last, model.embed, keys, self.note)
        logits = mtp.correct(mtp.base_logits(hidden, model.head), previous)
        return draft_loss(logits, mtp.confidence(hidden, previous), target, tokens[seq[:, None], after + 1])

    def note(self, stage: int) -> Callable[[str, Tensor], None]:
        def keep(name: str, value: Tensor) -> None:
            if name == "ffn.expert_ids":
                self.ids[stage] = value

        return keep

    def settle(self) -> None:
        for stage, ids in self.ids.items():
            update_bias(self.module.mtp[stage].ffn.gate.bias, ids)

    def logits(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError("a draft has no logits of its own text; see losses.draft_loss")
