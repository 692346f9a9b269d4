"""How much arithmetic a decode step does for each byte of cache that it reads, and what a machine makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from minidsv41.config import ModelConfig
from minidsv41.formats import MAIN, WINDOW
from minidsv41.ledger.flops import cand_positions
from minidsv41.ledger.machines import Machine, machine

DTYPES = ("as deployed", "BF16", "FP8", "FP4")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Equal layers: the rows that they keep, and what a decode step reads of them.

    width: numbers of a row; row: its bytes as deployed; every: tokens that it stands for. products: multiply-adds of
    one query token with one row, all heads together. owners keep the rows, readers read them. most: rows a query
    reads at most; chosen: each query reads a choice of its own. window: only the last `most` rows are kept.
    """

    width: int
    row: int
    products: int
    owners: int
    readers: int
    every: int = 1
    most: int | None = None
    chosen: bool = False
    window: bool = False

    def size(self, dtype: str) -> int:
        """Bytes of a row; FP8 and FP4 with their scales, for 32 and 16 numbers each."""
        rules = {"as deployed": lambda width: self.row, "BF16": lambda width: 2 * width}
        return (rules | {"FP8": WINDOW.row_bytes, "FP4": MAIN.row_bytes})[dtype](self.width)

    def kept(self, context: int) -> int:
        return min(context, self.most) if self.window else context // self.every

    def read(self, context: int) -> int:
        """Rows that one query of one reader reads."""
        rows = context // self.every
        return rows if self.most is None else min(rows, self.most)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one request keeps, and what a decode step of it reads and computes in its attention, all layers."""

    held: int
    read: int
    flops: int

    @property
    def intensity(self) -> float:
        """FLOP for each byte read."""
        return self.flops / self.read if self.read else 0.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The attention layers of a model, in groups."""

    name: str
    groups: tuple[Group, ...]

    def work(self, context: int, *, queries: int = 1, dtype: str = "as deployed") -> Work:
        """`queries` tokens are checked in one step; shared rows are read once for all of them.

        Queries, outputs and weights are left out. Choices of different queries count as different rows.
        """
        held = read = flops = 0
        for g in self.groups:
            size, rows = g.size(dtype), g.read(context)
            held += g.owners * g.kept(context) * size
            read += g.readers * rows * size * (queries if g.chosen else 1)
            flops += 2 * g.readers * rows * g.products * queries
        return Work(held=held, read=read, flops=flops)


def heads(name: str, *, layers: int, heads: int, kv_heads: int, width: int) -> Shape:
    """MHA, GQA, MQA with equal widths of keys and values."""
    row = 2 * kv_heads * width
    group = Group(width=row, row=2 * row, products=2 * heads * width, owners=layers, readers=layers)
    return Shape(name=name, groups=(group,))


def latent(name: str, *, layers: int, heads: int, kv_lora: int = 512, rope: int = 64) -> Shape:
    """MLA, absorbed, in BF16: each head multiplies the whole row as a key and its latent part as a value."""
    width, products = kv_lora + rope, heads * (2 * kv_lora + rope)
    return Shape(
        name=name, groups=(Group(width=width, row=2 * width, products=products, owners=layers, readers=layers),)
    )


def v32() -> Shape:
    layers = dict(owners=61, readers=61)
    main = Group(width=576, row=656, products=128 * 1088, most=2048, chosen=True, **layers)
    return Shape(name="DeepSeek-V3.2", groups=(main, Group(width=128, row=132, products=64 * 128, **layers)))


def v4_flash() -> Shape:
    row, key = dict(width=512, row=584, products=2 * 64 * 512), dict(width=128, row=68, products=64 * 128)
    return Shape(
        name="DeepSeek-V4-Flash",
        groups=(
            Group(**row, owners=21, readers=21, every=4, most=512, chosen=True),
            Group(**key, owners=21, readers=21, every=4),
            Group(**row, owners=20, readers=20, every=128),
            Group(**row, owners=43, readers=43, most=128, window=True),
        ),
    )


def v41(c: ModelConfig) -> Shape:
    """Few owners, many readers: entries and index keys of each ratio, the pool of the Reindex layers, the windows."""
    width, key, n = c.head_dim, c.index_head_dim, c.num_hidden_layers
    main = dict(width=width, products=2 * c.num_attention_heads * width)
    entry = dict(main, row=MAIN.row_bytes(width), most=c.index_topk, chosen=True)
    index = dict(width=key, row=key // 2 + key // 32, products=c.index_n_heads * key)
    groups = []
    for ratio in sorted({c.ratio(o) for o in c.kv_source_layer_ids}, reverse=True):
        owners = [o for o in c.kv_source_layer_ids if c.ratio(o) == ratio]
        readers = sum(c.kv_owner(layer) in owners for layer in range(n))
        groups.append(Group(**entry, owners=len(owners), readers=readers, every=ratio))
        groups.append(Group(**index, owners=len(owners), readers=len(owners), every=ratio))
    again = sum(c.mode(layer) == "reindex" for layer in range(n))
    groups.append(Group(**index, owners=0, readers=again, most=int(cand_positions(c).value), chosen=True))
    window = WINDOW.row_bytes(width)
    groups.append(Group(**main, row=window, owners=n, readers=n, most=c.sliding_window, window=True))
    return Shape(name="DeepSeek-V4.1-Flash", groups=tuple(groups))


SHAPES = (
    heads("MHA of V3's size", layers=61, heads=128, kv_heads=128, width=128),
    heads("DeepSeek-67B", layers=95, heads=64, kv_heads=8, width=128),
    latent("DeepSeek-V3", layers=61, heads=128),
    latent("Kimi K2", layers=61, heads=64),
    v32(),
    v4_flash(),
    v41(ModelConfig.preset("flash")),
)


def shape(name: str) -> Shape:
    """Raises KeyError with the names."""
    found = {s.name: s for s in SHAPES}
    if name not in found:
        raise KeyError(f"no shape {name!r}; there are {', '.join(found)}")
    return found[name]


def layer_of(heads: int) -> Shape:
    """One layer of absorbed MLA in V3's widths with that many heads on the card."""
    return latent(f"MLA, {heads} heads", layers=1, heads=heads)


def described(*, model: str, context: int, queries: int, dtype: str, card: str) -> str:
    """HTML for the widget. context: a power of two."""
    on, tokens = machine(card), 2**context
    work = shape(model).work(tokens, queries=queries, dtype=dtype)
    seconds, binds = on.seconds(work.flops, work.read), on.binds(work.flops, work.read)
    lines = [
        f"{tokens:,} tokens keep {amount(work.held)}; a step reads {amount(work.read)} "
        f"and computes {work.flops / 1e9:,.1f} GFLOP",
        f"{work.intensity:,.1f} FLOP a byte; ridge of {card}: {float(on.ridge.value):,.1f}; bound by {binds}, "
        f"{1e3 * seconds:,.3f} ms at least",
    ]
    if work.held > on.memory:
        lines.append(f"does not fit: {card} has {amount(on.memory)}")
    return "<br>".join(lines)


def amount(size: int) -> str:
    """Bytes in decimal units."""
    unit, name = next(((u, n) for u, n in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")) if size >= u), (1, "B"))
    return f"{float(Fraction(size, unit)):,.4g} {name}"


def attainable(on: Machine, intensity: float) -> float:
    """FLOP/s that the machine can reach at this many FLOP a byte."""
    return min(on.flops, intensity * on.bandwidth)
