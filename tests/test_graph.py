"""A captured step is the ordinary step. Without a GPU nothing is captured, and the same must hold."""

import pytest
import torch
from tiny import prompt, tiny

from minidsv41.cache import Cache
from minidsv41.ops import Batch
from minidsv41.serve.graph import DecodeGraph
from minidsv41.serve.prefill import prefill

GPU = torch.cuda.is_available()
DEVICE, DTYPE, TOLERANCE = ("cuda", torch.bfloat16, 1e-2) if GPU else ("cpu", torch.float32, 1e-5)
LENGTHS = (30, 63, 64)  # an open pair, one that closes, a new page


def sequences(model, cache):
    states = [cache.new() for _ in LENGTHS]
    for seed, (state, length) in enumerate(zip(states, LENGTHS, strict=True)):
        prefill(model, cache, state, prompt(length, seed).to(DEVICE))
    return states


@torch.no_grad()
def ordinary(model, cache, states, tokens, rows):
    batch = Batch(tokens, tuple(s.length for s in states), (rows,) * len(states))
    keys = cache.keys(states, batch)
    out = model(batch, keys)
    model.mtp.remember(out.features, batch, keys)
    keys.commit()
    return model.logits(out.hidden)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("cache_format", ["packed", "float"])
def test_replays_are_ordinary_steps(rows, cache_format):
    model = tiny(dtype=DTYPE).to(DEVICE)
    one, two = (Cache(model.config, dtype=DTYPE, device=DEVICE, cache_format=cache_format) for _ in range(2))
    here, there = sequences(model, one), sequences(model, two)
    for step in range(3):
        tokens = prompt(rows * len(LENGTHS), 10 + step).to(DEVICE)
        graph = DecodeGraph(model, one, here, rows=rows)
        graph.replay(tokens.flip(0))  # leaves nothing behind
        logits = graph.replay(tokens).clone()
        assert torch.equal(graph.replay(), logits)
        graph.commit()
        torch.testing.assert_close(logits, ordinary(model, two, there, tokens, rows), rtol=0, atol=TOLERANCE)
    assert [s.length for s in here] == [s.length for s in there] == [n + 3 * rows for n in LENGTHS]
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a.history, b.history)


def test_a_cpu_captures_nothing():
    model = tiny(dtype=torch.float32)
    cache = Cache(model.config)
    state = cache.new()
    prefill(model, cache, state, prompt(9))
    assert not DecodeGraph(model, cache, [state]).captured


@pytest.mark.skipif(not GPU, reason="needs one")
def test_a_step_asks_the_gpu_for_no_numbers():
    model = tiny(dtype=torch.bfloat16).to(DEVICE)
    cache = Cache(model.config, dtype=torch.bfloat16, device=DEVICE, cache_format="packed")
    graph = DecodeGraph(model, cache, sequences(model, cache))
    assert graph.captured  # a look at a number would have broken the capture
    assert graph.replay(prompt(len(LENGTHS)).to(DEVICE)).isfinite().all()
