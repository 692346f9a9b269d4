"""Rows that come from elsewhere: equal answers, and when the network waits for them."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minidsv41.model import Model
from minidsv41.serve.prefetch import Prefetcher, Simulated, SlowTable, WallClock, prefetching
from minidsv41.train.bench_prefetch import PrefetchConfig, lines, measure
from tests.tiny import prompt, tiny

MODEL = tiny(engram_layer_ids=(1, 3))


def slow(clock, latency: float, model: Model = MODEL) -> Prefetcher:
    layers = model.config.engram_layer_ids
    tables = {n: SlowTable(model.layers[n].engram.embed.weight, clock, latency) for n in layers}
    return Prefetcher(tables, clock)


@pytest.mark.parametrize("layers", [(1, 3), (1, 5)], ids=["both in the encoder", "one in the decoder"])
def test_the_answer_does_not_depend_on_where_rows_come_from(layers: tuple[int, int]):
    model, ids = tiny(engram_layer_ids=layers), prompt(20)
    want = model.trace(ids)
    prefetcher = slow(Simulated(), 0.5, model)
    with prefetching(model, prefetcher, pace=1.0):
        got = model.trace(ids)
    assert all(torch.equal(want[name], got[name]) for name in want)
    assert not prefetcher.waiting
    after = model.trace(ids)
    assert torch.equal(after["logits"], want["logits"]) and len(prefetcher.spans) == 8 + 2 + 2


@pytest.mark.parametrize(
    ("latency", "waits"),
    [
        (0.0, [0, 0]),
        (1.0, [0, 0]),
        (1.5, [0.5, 0]),
        (2.0, [1.0, 0]),
        (2.5, [1.5, 0.5]),  # the second answer comes at 5, layer 2 ends at 4.5
    ],
)
def test_the_network_waits_for_what_outlasts_the_blocks_before_it(latency: float, waits: list[float]):
    prefetcher = slow(Simulated(), latency)
    with prefetching(MODEL, prefetcher, pace=1.0):
        MODEL.trace(prompt(4))
    assert [s.end - s.begin for s in prefetcher.spans if s.what.startswith("wait")] == waits
    assert prefetcher.stall == sum(waits)
    store = [s for s in prefetcher.spans if s.lane == "store"]
    assert [(s.begin, s.end) for s in store] == [(0, latency), (latency, 2 * latency)]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=6))
def test_the_lane_does_one_thing_at_a_time(jobs: list[tuple[float, float]]):
    clock, handles, done = Simulated(), [], 0.0
    for before, length in jobs:
        clock.sleep(before)
        done = max(done, clock.now()) + length
        handles.append((clock.start(lambda length=length: clock.sleep(length)), done))
    for handle, at in handles:
        here = clock.now()
        handle.result()
        assert clock.now() == max(here, at)


def test_many_rows_take_longer():
    clock = Simulated()
    SlowTable(torch.zeros(5, 2), clock, 1.0, 0.25).read(torch.zeros(3, 2, dtype=torch.int64))
    assert clock.now() == 1.0 + 6 * 0.25


def test_on_the_wall_clock_block_0_runs_while_the_store_sleeps():
    """The store answers only after block 0 is over, which would never be if somebody waited for it there."""
    clock, over = WallClock(), threading.Event()
    prefetcher = slow(clock, 1.0)
    ids, want = prompt(8), MODEL.trace(prompt(8))["logits"]
    hook = MODEL.layers[0].register_forward_hook(lambda *_: over.set())
    clock.sleep = lambda seconds: seconds and over.wait(30)
    try:
        with prefetching(MODEL, prefetcher):
            got = MODEL.trace(ids)["logits"]
    finally:
        hook.remove()
    assert over.is_set() and torch.equal(got, want)
    ends = {s.what: s.end for s in prefetcher.spans}
    assert ends["layer 0"] < ends["rows 1"] <= ends["wait 1"]


def test_waiting_is_measured():
    config = PrefetchConfig(tokens=40, latencies=(0.5, 40.0), repeats=3)
    found = measure(tiny(dtype=torch.float32, engram_layer_ids=(1, 3)), prompt(60), config)
    assert found["layers"] == [1, 3] and len(found["blocks"]) == 8
    assert [len(row["runs"]) for row in found["runs"]] == [3, 3]
    slowest = found["runs"][-1]
    assert slowest["latency"] > 20 * found["runs"][0]["latency"]
    for run in slowest["runs"]:
        assert run["fetch"] >= slowest["latency"] and run["wait"] > 0
        assert run["wait"] == pytest.approx(run["fetch"] - run["block"], abs=0.2 * run["fetch"])
    assert {(lane, what) for lane, what, *_ in slowest["spans"]} >= {("store", "rows 1"), ("compute", "wait 3")}
    assert len(lines(found)) == 3
