"""The sparsity laboratory: what one choice of entries keeps of the attention of all who read by it, and its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.course.mass import Mass, attention_mass, seen_only
from minidsv41.course.tasks import Task
from minidsv41.course.weights import rows
from minidsv41.formats import INDEX
from minidsv41.ledger import bytes as books
from minidsv41.model import Model, SequenceKeys
from minidsv41.model.attention import Attention, Context
from minidsv41.model.rope import rotate
from minidsv41.ops import Batch, Rows
from minidsv41.ops.select import index_scores, lowest_topk
from minidsv41.replaced import replaced

SINKS = 4  # first entries that "recency + sink" always reads


@contextmanager
def selecting(model: Model, k: int, length: int) -> Iterator[None]:
    """`model` selects k entries a query, from a pool of all blocks of `length` tokens, while the block runs."""
    own = model.config
    blocks = length // own.candidate_block_size + 2
    model.config = replace(own, index_topk=min(k, length), candidate_topk_blocks=blocks)
    try:
        yield
    finally:
        model.config = own


def without_entries(layers: range) -> AbstractContextManager:
    """These layers read their windows and no entry while the block runs; all else is as before."""

    def blind(core: Callable) -> Callable:
        def run(self: Attention, q: Tensor, window: Rows, entries, topk, *rest) -> Tensor:
            seen = (None, None) if self.layer in layers else (entries, topk)
            return core(self, q, window, *seen, *rest)

        return run

    return replaced(Attention, "core", blind)


@dataclass(frozen=True)
class Group:
    """Layers that read by one choice, on one prompt.

    masses: of each layer; scores [T, N] of the chooser's indexer, -inf where not visible.
    """

    task: Task
    config: ModelConfig
    masses: Mapping[int, Mass]
    scores: Tensor

    @cached_property
    def mass(self) -> Mass:
        """All heads of all layers side by side: [T, layers x H, ...]."""
        parts = self.masses.values()
        window, entries, sink = (torch.cat([getattr(m, n) for m in parts], 1) for n in ("window", "entries", "sink"))
        return Mass(window, entries, sink)

    @cached_property
    def visible(self) -> Tensor:
        """[T] entries that each query sees."""
        return (self.scores > -torch.inf).sum(1)

    def recall(self, topk: Tensor) -> Tensor:
        """[asked] share of the group's mass on entries that lies on topk [T, k]."""
        return self.mass.recall(topk)[self.task.asked]

    def bytes_read(self, topk: Tensor, *, keys: bool) -> float:
        """Mean bytes over asked queries: topk once for each layer; all visible index keys once, if `keys`."""
        asked = self.task.asked
        gathered = (topk[asked] >= 0).sum(1) * len(self.masses) * int(books.main_entry_bytes(self.config))
        read = self.visible[asked] * int(books.index_entry_bytes(self.config)) * keys
        return (gathered + read).double().mean().item()


def group(model: Model, trace: Mapping[str, Tensor], task: Task, chooser: int) -> Group:
    """The layers of `model` that read by the choice of `chooser`, on the prompt that was traced."""
    c = model.config
    layers = [layer for layer in range(c.num_hidden_layers) if c.index_owner(layer) == chooser]
    masses = {layer: attention_mass(model, trace, layer) for layer in layers}
    return Group(task, c, masses, trace[f"L{chooser}.idx.scores"])


# Selectors: (group, k) -> topk [T, k], -1 where fewer entries are visible.


def oracle(g: Group, k: int) -> Tensor:
    """What the group looks at most: no choice of k has a larger recall."""
    return g.mass.best(k)


def indexer(g: Group, k: int) -> Tensor:
    return lowest_topk(g.scores, k)


def recent(g: Group, k: int) -> Tensor:
    """The first SINKS entries, or half of k, and the newest."""
    first = min(SINKS, k // 2)
    n = torch.arange(g.scores.shape[1])
    order = torch.where(n < first, n + len(n), n).double()
    return lowest_topk(order.masked_fill(g.scores == -torch.inf, -torch.inf), k)


def random(g: Group, k: int) -> Tensor:
    """The same draw for any k: a larger choice contains the smaller one."""
    dice = torch.rand(g.scores.shape, generator=torch.Generator().manual_seed(0))
    return lowest_topk(dice.masked_fill(g.scores == -torch.inf, -torch.inf), k)


SELECTORS: dict[str, Callable[[Group, int], Tensor]] = {
    "oracle": oracle,
    "indexer": indexer,
    "recency + sink": recent,
    "random": random,
}


@dataclass(frozen=True)
class Point:
    """Mean recall and bytes of one choice, over the prompts."""

    size: float
    recall: float

    def __repr__(self) -> str:
        return f"recall {self.recall:.1%} for {self.size:,.0f} B a query"


def curve(groups: Mapping[str, Group], select: Callable[[Group, int], Tensor], ks: list[int]) -> list[Point]:
    """One Point for each k; every prompt counts the same. Only the indexer reads index keys."""
    found = []
    for k in ks:
        chosen = [(g, select(g, k)) for g in groups.values()]
        recall = torch.stack([g.recall(topk).mean() for g, topk in chosen]).mean().item()
        sizes = [g.bytes_read(topk, keys=select is indexer) for g, topk in chosen]
        found.append(Point(sum(sizes) / len(sizes), recall))
    return found


def kept(mass: Mass, topk: Tensor, query: int) -> tuple[Tensor, Tensor]:
    """[H] mass that each head of one query has on the entries topk [T, k], and on all."""
    return mass.captured(topk)[query], mass.entries.sum(2)[query]


def lost(mass: Mass, topk: Tensor, query: int, head: int, count: int) -> list[tuple[int, float]]:
    """Entries that a head looks at most and that topk [T, k] leaves out, with their mass."""
    there = mass.entries[query, head].clone()
    there[topk[query][topk[query] >= 0]] = 0
    found = lowest_topk(seen_only(there[None]), count)[0]
    found = found[found >= 0]
    return sorted(((int(e), there[e].item()) for e in found), key=lambda pair: -pair[1])


def sawtooth(masses: Mapping[int, Mass], choices: Mapping[int, Tensor], chooser: Callable[[int], int]) -> Tensor:
    """[layers, 2, T]: recall of each layer's mass by the choice in force, and by its own best of as many."""
    found = []
    for layer, mass in masses.items():
        topk = choices[chooser(layer)]
        found.append(torch.stack([mass.recall(topk), mass.recall(mass.best(topk.shape[1]))]))
    return torch.stack(found)


def opened(mass: Mass, shift: float) -> Mass:
    """The same layer with its sink logits raised by `shift`: every key gives up the same share."""
    sink = mass.sink * torch.tensor(shift, dtype=torch.float64).exp()
    total = (1 - mass.sink + sink)[..., None]
    return Mass(mass.window / total, mass.entries / total, sink / total[..., 0])


def needed(mass: Mass, query: int, tolerance: float) -> int:
    """The smallest k for which no more than `tolerance` of a head's softmax, on the mean of heads, is left out."""
    each = mass.entries[query].mean(0).sort(descending=True).values
    left = each.sum() - torch.cat([each.new_zeros(1), each.cumsum(0)])
    return int((left <= tolerance + 1e-12).nonzero()[0])


def scores_by(model: Model, trace: Mapping[str, Tensor], layer: int, snapshot: Path) -> Tensor:
    """[T, N] index scores that the indexer of `layer` gave with the weights of a snapshot file, on the same trace."""
    c, batch = model.config, Batch.equal(trace["ids"][None])
    ctx = Context(c, batch, SequenceKeys(c, batch), model.dtype)
    prefix = f"layers.{layer}.attn.indexer."
    weights = {
        n.removeprefix(prefix): t.to(model.dtype) for n, t in load_file(snapshot).items() if n.startswith(prefix)
    }
    own = model.layers[layer].attn.indexer
    kept = {n: t.clone() for n, t in own.state_dict().items()}
    own.load_state_dict(weights)
    try:
        latent = trace[f"L{layer}.cmp.latent"]
        at = torch.arange(len(latent)) * c.ratio(layer)
        q, w = own.queries(trace[f"L{layer}.attn.x"], trace[f"L{layer}.attn.qr"], ctx.rotation(compressed=True))
        keys = rotate(own.k_norm(own.wk(latent)), ctx.rotation(compressed=True, positions=at))
        return index_scores(q, w, rows(INDEX.fake_quant(keys)), batch.visible(c.ratio(layer)), batch, len(latent))
    finally:
        own.load_state_dict(kept)
