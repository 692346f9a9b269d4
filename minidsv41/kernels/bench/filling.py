"""Weights and caches for measuring: random weights, random records, copies of a sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.cache.pool import PAGE, Pool
from minidsv41.config import ModelConfig
from minidsv41.model import Model

PIECE = 1 << 17  # rows copied at once


@torch.no_grad()
def random_model(config: ModelConfig, *, device: torch.device, dtype: torch.dtype, seed: int) -> Model:
    """Fresh weights, made on the device in the dtype that they keep."""
    with torch.device("meta"):
        model = Model(config).cast(dtype)
    model = model.to_empty(device=device)
    model.token_map = torch.arange(config.vocab_size, device=device) % config.engram_compressed_vocab_size
    for name, p in model.named_parameters():
        p.fill_(1 if "norm" in name or name.endswith(("q_weight", "k_weight")) else 0)
    return model.initialise(torch.Generator(device).manual_seed(seed)).eval()


def fill(cache: Cache, length: int, count: int, generator: torch.Generator) -> list[State]:
    """Sequences of `length` tokens each, whose records are random: nobody computed them."""
    states = placed(cache, length, count)
    for state in states:
        for pair in state.open_pairs.values():
            pair.normal_(generator=generator)
        state.history.random_(cache.config.engram_compressed_vocab_size, generator=generator)
    for pool in cache.pools.values():
        scramble(pool, generator)
    return states


def placed(cache: Cache, length: int, count: int) -> list[State]:
    """Sequences of `length` tokens each in pages of their own, in which nothing is written."""
    states, window = [], cache.config.sliding_window
    for _ in range(count):
        state = cache.new()
        state.length = length
        state.entries = {page: cache.entries.take() for page in range(-(-length // PAGE))}
        first = max(0, length - window) // PAGE
        state.windows = {page: cache.windows.take() for page in range(first, -(-length // PAGE))}
        states.append(state)
    return states


def scramble(pool: Pool, generator: torch.Generator) -> None:
    """Random rows everywhere but in page 0: codes of every kind but NaN, scales of a few binades."""
    data = pool.data[pool.page :]
    if not pool.packed:
        data.normal_(generator=generator)
        return
    data.random_(256, generator=generator)
    if pool.format.values.bits == 8:
        data.bitwise_and_(0xBF)  # below 2
    low, high = (0x28, 0x38) if pool.format.name == "main" else (125, 130)
    pool.scales[pool.page :].random_(low, high, generator=generator)


def copied(state: State, source: Cache, into: Cache) -> State:
    """The same sequence in pages of its own; packed records become the values that they stand for in a float cache."""
    new = into.new()
    new.length, new.history = state.length, state.history.clone()
    new.open_pairs = {owner: pair.clone() for owner, pair in state.open_pairs.items()}
    new.windows = {page: into.windows.take() for page in state.windows}
    new.entries = {page: into.entries.take() for page in state.entries}
    for (kind, layer), pool in source.pools.items():
        window, target = kind == "window", into.pools[kind, layer]
        old, fresh = (s.windows if window else s.entries for s in (state, new))
        for at, to in zip(rows(pool, list(old.values())), rows(target, list(fresh.values())), strict=True):
            if pool.packed == target.packed:
                target.copy_rows(to, pool, at)
            else:
                target.data[to] = pool.format.decode(pool.data[at], pool.scales[at], into.dtype)
    return new


def rows(pool: Pool, pages: list[int]) -> Iterator[Tensor]:
    """Physical rows of these pages, a piece at a time."""
    device = pool.data.device
    for part in torch.tensor(pages, device=device).split(PIECE // pool.page):
        yield (part[:, None] * pool.page + torch.arange(pool.page, device=device)).flatten()
