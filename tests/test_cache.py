"""Sequences that share a cache: they join and leave, pages change hands, and nobody notices."""

from __future__ import annotations

import random

import pytest
import torch

from minidsv41.cache import Cache, State
from minidsv41.cache.pool import PAGE
from minidsv41.model import SequenceKeys
from minidsv41.model.keys import Keys
from minidsv41.ops import Batch
from minidsv41.serve.generate import step
from tests.test_model import whole
from tests.tiny import TINY, prompt, tiny

W = TINY.sliding_window
LENGTHS = (1, 2, W - 1, W, W + 1, 2 * W, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 140)
NAN_BYTE = {"E4M3": 0x7F, "UE8M0": 0xFF, "E2M1": 0x77}


def poison(cache: Cache, value: float) -> None:
    """Fill every page that nobody holds: with `value`, or with what decodes to NaN or the largest number."""
    for (kind, _), pool in cache.pools.items():
        free = (cache.windows if kind == "window" else cache.entries).free
        rows = torch.cat([torch.arange(p * pool.page, (p + 1) * pool.page) for p in free] or [torch.empty(0).long()])
        if pool.packed:
            last = 0 if value != value else 1  # the code below NaN's is the largest number
            pool.data[rows] = NAN_BYTE[pool.format.values.name] - last * (pool.format.values.bits == 8)
            pool.scales[rows] = NAN_BYTE[pool.format.scales.name] - last
        else:
            pool.data[rows] = value


@pytest.mark.parametrize("packed", [False, True], ids=["values", "packed"])
@pytest.mark.parametrize("value", [float("nan"), 1e300], ids=str)
def test_what_others_left_behind_changes_nothing(value: float, packed: bool) -> None:
    model, draw = tiny(), random.Random(1)
    cache = Cache(model.config, dtype=model.dtype, cache_format="packed" if packed else "float")
    left = [prompt(n, seed) for seed, n in enumerate(LENGTHS)]
    running: list[tuple[State, torch.Tensor, torch.Tensor]] = []
    while left or running:
        if left and len(running) < 3:
            ids = left.pop()
            running.append((cache.new(), ids, whole(model, ids)))
        some = [r for r in running if draw.random() < 0.7] or running[:1]
        starts = [state.length for state, _, _ in some]
        parts = [
            ids[at : at + draw.choice([1, 2, 3, 17, 64, 129])] for at, (_, ids, _) in zip(starts, some, strict=True)
        ]
        batch = Batch.ragged(parts, starts)
        keys = cache.keys([state for state, _, _ in some], batch)
        poison(cache, value)
        with torch.no_grad():
            logits = model.logits(model(batch, keys).hidden)
        keys.commit()
        wanted = [all_[at : at + len(p)] for at, p, (_, _, all_) in zip(starts, parts, some, strict=True)]
        torch.testing.assert_close(logits, torch.cat(wanted), rtol=0, atol=1e-9)
        for state, ids, _ in running:
            if state.length == len(ids):
                cache.release(state)
        running = [r for r in running if r[0].length < len(r[1])]
    assert len(cache.entries.free) == cache.entries.pages < sum(-(-n // PAGE) for n in LENGTHS)
    assert len(cache.windows.free) == cache.windows.pages


@pytest.mark.parametrize("length", [W, PAGE - 1, PAGE, *range(PAGE + W - 2, PAGE + W + 2)])
def test_a_draft_reads_the_oldest_row_of_the_window_too(length: int) -> None:
    """One row more than the next token does, and its page is still there."""
    model, ids = tiny(), prompt(length)
    anchor, seq, last = torch.tensor([5]), torch.tensor([0]), torch.tensor([length - 1])

    def drafted(keys: Keys) -> torch.Tensor:
        return model.mtp.draft(anchor, seq, last, model.embed, model.head, keys).logits

    batch = Batch.equal(ids[None])
    whole_keys = SequenceKeys(model.config, batch)
    with torch.no_grad():
        model.mtp.remember(model(batch, whole_keys).features, batch, whole_keys)
    cache = Cache(model.config, dtype=model.dtype)
    state = cache.new()
    step(model, cache, state, ids)
    keys = cache.keys([state], Batch.ragged([anchor], [length]))
    torch.testing.assert_close(drafted(keys), drafted(whole_keys), rtol=0, atol=1e-9)
