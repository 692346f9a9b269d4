"""Entries and index keys of a cache as bytes, page by page, and back: what a `Store` keeps of a sequence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from minidsv41.cache.pool import PAGE, Pool
from minidsv41.cache.record import Identity
from minidsv41.cache.state import Cache, State
from minidsv41.model import Model

if TYPE_CHECKING:  # LMDB is needed where a store is opened
    from minidsv41.cache.store import Store

VERSION = 1  # of a page's layout
_known: WeakKeyDictionary[Model, tuple[list[Tensor], list[int], str]] = WeakKeyDictionary()


def fingerprint(model: Model) -> str:
    """Digest of config, token map and weights as the model holds them (their dtype counts).

    Reads every weight; kept until one is replaced or changed in place (not noticed if through `.data`).
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    held, versions = list(tensors.values()), [t._version for t in tensors.values()]
    if known := _known.get(model):
        before, then, text = known
        if len(before) == len(held) and all(a is b for a, b in zip(before, held, strict=True)) and then == versions:
            return text
    digest = blake2b(json.dumps(model.config.to_json(), sort_keys=True).encode(), digest_size=16)
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    _known[model] = held, versions, digest.hexdigest()
    return digest.hexdigest()


def identity(model: Model, cache: Cache) -> Identity:
    """What a store of this model's pages, in this cache's form, is known by."""
    form = "packed" if next(iter(cache.pools.values())).packed else str(cache.dtype).removeprefix("torch.")
    owners = ", ".join(map(str, cache.config.kv_source_layer_ids))
    layout = f"{VERSION}: {form} entries and index keys of layers {owners}"
    return Identity(fingerprint(model), layout, PAGE, page_bytes(cache))


def page_bytes(cache: Cache) -> int:
    return sum(pool.page * pool.row_bytes for pool in global_pools(cache))


def export_page(cache: Cache, state: State, page: int) -> bytes:
    """Everything that the cache holds for good of tokens page * 64 .. page * 64 + 63, by owner: entries, index keys.

    Of each, all codes come before all scales.
    """
    assert (page + 1) * PAGE <= state.length, f"page {page} is not complete at {state.length} tokens"
    return b"".join(part.cpu().numpy().tobytes() for part in sections(cache, state.entries[page]))


def import_pages(cache: Cache, state: State, pages: Sequence[bytes]) -> None:
    """Fill an empty sequence with its first pages; undoes `export_page` bit for bit.

    Then it has the length of the pages, but no window rows and no Engram history: replay comes next.
    Raises CacheFull; the pages taken so far are released with the state.
    """
    assert state.length == 0 and not state.entries, "the sequence is not empty"
    for page, data in enumerate(pages):
        state.entries[page] = physical = cache.entries.take()
        stored, at = torch.frombuffer(bytearray(data), dtype=torch.uint8), 0
        for part in sections(cache, physical):
            part.copy_(stored[at : at + part.numel()].view_as(part))
            at += part.numel()
        assert at == len(data), f"page {page} has {len(data)} bytes, expected {at}"
    state.length = len(pages) * PAGE


def persist(store: Store, cache: Cache, state: State, ids: Sequence[int], *, replayed: bool) -> int:
    """Store the complete pages of a sequence that holds `ids` and are not there yet -> how many."""
    ids = ids[: state.length]
    return store.put(ids, lambda page: export_page(cache, state, page), replayed=replayed)


def restore(store: Store, cache: Cache, ids: Sequence[int]) -> tuple[State, bool]:
    """A sequence with the longest stored prefix of ids, and whether a replayed page is among it."""
    found = store.match(ids)
    state = cache.new()
    try:
        import_pages(cache, state, [record.data for record in found])
    except BaseException:
        cache.release(state)
        raise
    return state, any(record.replayed for record in found)


def global_pools(cache: Cache) -> list[Pool]:
    return [pool for (kind, _), pool in cache.pools.items() if kind != "window"]


def sections(cache: Cache, physical: int) -> Iterator[Tensor]:
    """The bytes of one physical page as they lie in the pools: uint8 views [rows, bytes]."""
    for pool in global_pools(cache):
        rows = slice(physical * pool.page, (physical + 1) * pool.page)
        for tensor in (pool.data, pool.scales):
            if tensor is not None:
                yield tensor[rows].view(torch.uint8)
