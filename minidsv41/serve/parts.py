"""A sequence as the sections of a stream: what is given on one side is taken on the other.

Sections follow the pools of the cache: for each layer its last W window rows (DSpark's rings among them), each owner's
entries and index keys, then open pairs and Engram's last ids. Instead of windows, open pairs and Engram's ids, a
replay order may go: the tokens from which the receiver computes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.cache.pool import PAGE, Allocator, CacheFull, Pool
from minidsv41.model.norm import wide
from minidsv41.serve.manifest import HandoffError

LAYOUT = 1  # version of what `parts` yields


@dataclass(frozen=True)
class Part:
    """A section as a state gives and takes it; `size` is known before the state has any page."""

    name: str
    size: int
    give: Callable[[], Tensor]
    take: Callable[[Tensor], None]


def layout(cache: Cache) -> str:
    """How rows and open pairs of this cache are stored."""
    pool = next(iter(cache.pools.values()))
    rows = "packed" if pool.packed else str(cache.dtype).removeprefix("torch.")
    return f"{LAYOUT}: {rows} rows, {wide(cache.dtype)} pairs".replace("torch.", "")


def window_rows(cache: Cache, length: int) -> range:
    """Positions that the next draft can read, and the next token but for the oldest."""
    return range(max(0, length - cache.config.sliding_window), length)


def replay_tokens(cache: Cache, length: int) -> int:
    """The last window, and before it what its n-grams reach back to."""
    return min(length, cache.config.sliding_window + cache.config.engram_max_ngram_size - 1)


def parts(cache: Cache, state: State, *, draft: bool, replay: Tensor | None = None) -> Iterator[Part]:
    """The sections of a sequence, in the order of the stream.

    replay: ids [replay_tokens] to give or to take instead of windows, pairs and Engram's ids.
    """
    for (kind, layer), pool in cache.pools.items():
        window = kind == "window"
        if window and (replay is not None or (layer >= cache.config.num_hidden_layers and not draft)):
            continue
        pages = state.windows if window else state.entries
        rows = window_rows(cache, state.length) if window else range(state.length // cache.config.ratio(layer))
        at = partial(locate, pages, pool.page, rows)
        size = len(rows) * pool.row_bytes
        yield Part(f"{kind} {layer}", size, partial(read_rows, pool, at), partial(write_rows, pool, at))
    if replay is None:
        tensors = {f"open pair {owner}": pair for owner, pair in state.open_pairs.items()}
        tensors["engram ids"] = state.history
    else:
        tensors = {"replay ids": replay}
    for name, tensor in tensors.items():
        yield Part(name, tensor.nbytes, partial(as_bytes, tensor), partial(fill, tensor))


def locate(pages: dict[int, int], page: int, rows: range) -> Tensor:
    """Physical rows [n]. Raises HandoffError where a page is missing."""
    try:
        table = [pages[i] * page for i in range(rows.start // page, -(-rows.stop // page))]
    except KeyError:
        raise HandoffError(f"the cache no longer holds rows {rows.start}..{rows.stop - 1} of this sequence") from None
    index = torch.arange(rows.start, rows.stop)
    return torch.tensor(table, dtype=torch.int64)[index // page - rows.start // page] + index % page


def as_bytes(tensor: Tensor) -> Tensor:
    """[n] uint8 on the CPU."""
    return tensor.contiguous().flatten().view(torch.uint8).cpu()


def fill(tensor: Tensor, data: Tensor) -> None:
    """Undoes `as_bytes`, in place."""
    tensor.copy_(data.view(tensor.dtype).view(tensor.shape))


def columns(pool: Pool) -> list[Tensor]:
    return [pool.data] if pool.scales is None else [pool.data, pool.scales]


def read_rows(pool: Pool, at: Callable[[], Tensor]) -> Tensor:
    """All values, then all scales."""
    rows = at().to(pool.data.device)
    return torch.cat([as_bytes(column[rows]) for column in columns(pool)])


def write_rows(pool: Pool, at: Callable[[], Tensor], data: Tensor) -> None:
    rows = at().to(pool.data.device)
    sizes = [len(rows) * column.shape[1] * column.element_size() for column in columns(pool)]
    for column, piece in zip(columns(pool), data.split(sizes), strict=True):
        column[rows] = piece.view(column.dtype).view(len(rows), column.shape[1]).to(column.device)


def reserve(cache: Cache, state: State, *, windows: bool) -> None:
    """Take the pages of a sequence of `state.length` tokens. Raises HandoffError when they are not to be had."""
    pages = range(-(-state.length // PAGE))
    try:
        take(cache.entries, state.entries, pages)
        if windows:
            take(cache.windows, state.windows, pages[window_rows(cache, state.length).start // PAGE :])
    except CacheFull as error:
        raise HandoffError(f"no room for {state.length} tokens: {error}") from None


def take(allocator: Allocator, own: dict[int, int], pages: range) -> None:
    for page in pages:
        own[page] = allocator.take()
