"""Which tokens and entries a query reads, for small layers of each family: asked of the running layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.course.reads import readings
from minidsv41.families import CSA, DSA, HCA, MLA, Family, Heads, compressed, heads, mla
from minidsv41.model import Model
from minidsv41.replaced import replaced

TOKENS, HIDDEN, WINDOW = 64, 32, 8
LATENT = dict(hidden=HIDDEN, heads=4, q_lora=16, kv_lora=24, nope=16, rope=8, v=12)
V4 = dict(hidden=HIDDEN, heads=4, head_dim=16, rope=8, q_lora=16, o_groups=2, o_lora=8, window=WINDOW)
INDEX = dict(index_heads=4, index_dim=12)


@dataclass(frozen=True)
class Picture:
    """tokens: read one by one; entries: first and last token of each entry that is read; kept: rows that exist."""

    name: str
    tokens: tuple[int, ...]
    entries: tuple[tuple[int, int], ...] = ()
    kept: int = 0

    @property
    def read(self) -> int:
        return len(self.tokens) + len(self.entries)


def layers() -> dict[str, Family]:
    """V4's window and its groups of 128 tokens shrunk to 8, selections to a dozen rows; random weights."""
    made = {
        "MHA": Heads(hidden=HIDDEN, heads=4, kv_heads=4, head_dim=8, rope=8),
        "MLA": MLA(**LATENT),
        "DSA": DSA(**LATENT, **INDEX, index_topk=12),
        "CSA": CSA(**V4, **INDEX, rate=4, index_topk=4),
        "HCA": HCA(**V4, rate=8),
    }
    generator = torch.Generator().manual_seed(0)
    for layer in made.values():
        for p in layer.parameters():
            p.data = torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5 + (p.dim() == 1)
        layer.double().requires_grad_(False)
    return made


@contextmanager
def watched() -> Iterator[list[Tensor]]:
    """Collect what each softmax of a family may see, [T, N] of bool, while the block runs."""
    seen: list[Tensor] = []

    def noting(original: Callable) -> Callable:
        def softmax_attention(q, k, v, visible, **options):
            seen.append(visible)
            return original(q, k, v, visible, **options)

        return softmax_attention

    with ExitStack() as stack:
        for module in (heads, mla, compressed):
            stack.enter_context(replaced(module, "softmax_attention", noting))
        yield seen


def of_family(name: str, layer: Family, visible: Tensor, query: int) -> Picture:
    """visible [T, N]: single tokens first, entries behind them."""
    found = visible[query].nonzero().flatten().tolist()
    rate, count = getattr(layer, "rate", 0), len(visible)
    before = rate if isinstance(layer, CSA) else 0  # an overlapping entry is also made of the group before
    entries = [i - count for i in found if i >= count]
    spans = tuple((max(0, rate * i - before), rate * (i + 1) - 1) for i in entries)
    kept = min(query + 1, layer.window) + (query + 1) // rate if rate else query + 1
    return Picture(name, tuple(i for i in found if i < count), spans, kept)


def pictures() -> Callable[[int], list[Picture]]:
    """Run every family once; the function gives their pictures for any query."""
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    ran = {}
    for name, layer in layers().items():
        with watched() as seen:
            layer(x, layer.new())
        ran[name] = layer, seen[-1]
    config = replace(ModelConfig.preset("toy"), sliding_window=WINDOW, index_topk=6)
    model = Model(config).initialise(torch.Generator().manual_seed(0))
    trace = model.trace(torch.randint(5, config.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(1)))

    def at(query: int) -> list[Picture]:
        found = [of_family(name, *layer, query) for name, layer in ran.items()]
        full = readings(config, trace, query)[config.kv_source_layer_ids[0]]
        spans = tuple((full.ratio * e, full.ratio * (e + 1) - 1) for e in full.entries)
        window = tuple(range(full.window[0], full.window[1] + 1))
        return [*found, Picture("V4.1", window, spans, len(window) + full.visible)]

    return at
