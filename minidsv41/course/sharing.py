"""Who shares entries with whom: a schedule written in short, its bytes, and how far its readers stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product

from minidsv41.config import ConfigError, ModelConfig
from minidsv41.ledger import bytes as books
from minidsv41.serve.prefill import check_cut

BASE = replace(ModelConfig.preset("flash"), engram_num_embeddings=())  # the release; its tables play no part here


class OverBudget(ValueError):
    """A schedule that keeps or reads more than is allowed."""


class NoEntries(ValueError):
    """A schedule in which layers that should read entries have none."""


def ratios_of(text: str) -> tuple[int, ...]:
    """Runs of ratio x layers: "0x2 2x18 1x20" -> one ratio a layer. Raises ConfigError for anything else."""
    out: list[int] = []
    for part in text.split():
        found = re.fullmatch(r"(\d+)[x×*](\d+)", part)
        if not found:
            raise ConfigError(f"compress_ratios: {part!r} is no run; write ratio x layers, as in 0x2 2x18 1x20")
        out += [int(found[1])] * int(found[2])
    return tuple(out)


def layers_of(text: str) -> tuple[int, ...]:
    """Layers and ranges: "2 8 14-16" -> (2, 8, 14, 15, 16). Raises ConfigError for anything else."""
    out: list[int] = []
    for part in text.replace(",", " ").split():
        found = re.fullmatch(r"(\d+)(?:[-–](\d+))?", part)
        if not found:
            raise ConfigError(f"layers: {part!r} is no layer; write numbers or ranges, as in 2 8 14-16")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ConfigError(f"layers: {part!r} runs backwards; write ranges upwards, as in 14-16")
        out += range(first, last + 1)
    return tuple(out)


def scheduled(
    ratios: str | Sequence[int],
    owners: str | Sequence[int],
    choosers: str | Sequence[int] | None = None,
    *,
    base: ModelConfig = BASE,
) -> ModelConfig:
    """`base` with another schedule of its backbone layers. Raises ConfigError, as every config does.

    choosers: the layers that select, by default the owners. The last owner builds the candidate pool.
    """
    ratios = ratios_of(ratios) if isinstance(ratios, str) else tuple(ratios)
    owners = layers_of(owners) if isinstance(owners, str) else tuple(owners)
    choosers = layers_of(choosers) if isinstance(choosers, str) else choosers
    if len(ratios) != base.num_hidden_layers:
        raise ConfigError(f"compress_ratios: {len(ratios):,} layers; one for each of {base.num_hidden_layers} is due")
    return replace(
        base,
        compress_ratios=ratios + (0,) * base.num_nextn_predict_layers,
        kv_source_layer_ids=owners,
        index_source_layer_ids=owners if choosers is None else tuple(choosers),
        candidate_source_layer_id=owners[-1] if owners else base.candidate_source_layer_id,
    )


def readers(c: ModelConfig, owner: int) -> list[int]:
    """Layers that read the entries of `owner`, itself included."""
    return [layer for layer in range(c.num_hidden_layers) if c.kv_owner(layer) == owner]


def owner_bytes(c: ModelConfig, owner: int) -> Fraction:
    """What one owner adds for a token: its entries and their index keys. -> B/token"""
    row = books.main_entry_bytes(c).value + books.index_entry_bytes(c).value
    return Fraction(row, c.ratio(owner))


def mean_distance(c: ModelConfig, *, of: str = "kv_owner") -> Fraction:
    """Layers between a reader and the owner of its entries (or, of "index_owner", whoever chose them), on average."""
    apart = [layer - getattr(c, of)(layer) for layer in range(c.num_hidden_layers) if c.ratio(layer)]
    return Fraction(sum(apart), len(apart)) if apart else Fraction(0)


def keys_read(c: ModelConfig, length: int) -> int:
    """Bytes of index keys that one decode step reads at a context of `length` tokens; a pool bounds what it can."""
    pool = c.candidate_topk_blocks * c.candidate_block_size
    rows = 0
    for layer in c.index_source_layer_ids:
        seen = length // c.ratio(layer)
        pooled = c.mode(layer) == "reindex" and layer > c.candidate_source_layer_id
        rows += min(seen, pool) if pooled else seen
    return rows * int(books.index_entry_bytes(c))


@dataclass(frozen=True)
class Score:
    """What an allowed schedule keeps or reads, and its mean distance in layers."""

    size: Fraction
    unit: str
    distance: Fraction

    def __repr__(self) -> str:
        return f"{float(self.size):,.5g} {self.unit}, mean distance {float(self.distance):.2f} layers"


def judged(c: ModelConfig, budget: int) -> Score:
    """A schedule under `budget` B/token, by its mean distance from owner to reader.

    All layers but the first two must read entries, and a prompt must be able to leave out the decoder.
    Raises OverBudget, NoEntries, or RequestError (an owner that every row would have to reach).
    """
    if none := [layer for layer in range(2, c.num_hidden_layers) if c.ratio(layer) == 0]:
        raise NoEntries(f"layers {none} have compress_ratio 0 and read no entries; only 0 and 1 may")
    check_cut(c, "late")
    size = sum(owner_bytes(c, owner) for owner in c.kv_source_layer_ids)
    if size > budget:
        raise OverBudget(f"{float(size):,g} B/token: the budget is {budget:,}")
    return Score(size, "B/token", mean_distance(c))


def allowed(budget: int) -> list[tuple[Score, ModelConfig]]:
    """Every allowed schedule whose layers 0 and 1 are windows, nearest readers first; equal ones by their bytes."""
    unit, found = owner_bytes(scheduled("0x2 2x38", "2"), 2), []
    layers, last = BASE.num_hidden_layers, BASE.decoder_start
    for more in range(int(budget // unit)):
        for owners in combinations(range(3, last + 1), more):
            owners, ends = (2, *owners), (*owners, layers)
            for pooled in product((1, 2), repeat=len(owners)):
                if sum(2 // m for m in pooled) * unit <= budget:
                    runs = [(m,) * (end - o) for m, o, end in zip(pooled, owners, ends, strict=True)]
                    c = scheduled((0, 0, *sum(runs, ())), owners)
                    found.append((judged(c, budget), c))
    return sorted(found, key=lambda pair: (pair[0].distance, pair[0].size))


def described(ratios: str, owners: str, choosers: str, layer: int) -> str:
    """HTML: what a schedule costs and whose entries one layer reads; for an impossible one, the rule it breaks."""
    try:
        c = scheduled(ratios, owners, choosers)
    except ConfigError as error:
        return f"illegal: {error}"
    per_token = float(sum(owner_bytes(c, o) for o in c.kv_source_layer_ids))
    entries = float(books.entries_per_token(c).value)
    modes = [c.mode(i) for i in range(c.num_hidden_layers)]
    counted = ", ".join(f"{modes.count(mode)} {mode}" for mode in dict.fromkeys(modes))
    return (
        f"{per_token:,g} B and {entries:g} entries a token; {counted}; "
        f"mean distance {float(mean_distance(c)):.2f}<br>{read_by(c, layer)}"
    )


def read_by(c: ModelConfig, layer: int) -> str:
    """Whose entries a layer reads, and whose choice among them."""
    owner, chooser = c.kv_owner(layer), c.index_owner(layer)
    if owner is None:
        return f"layer {layer} (window) reads no entries"
    entries = "its own entries" if owner == layer else f"the entries of layer {owner}"
    choice = "its own choice" if chooser == layer else f"the choice of layer {chooser}"
    pooled = "two tokens" if c.ratio(layer) == 2 else "one token"
    return f"layer {layer} ({c.mode(layer)}) reads {entries}, {pooled} each, by {choice}"
