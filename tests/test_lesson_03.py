"""Lesson 03: how far windows reach, what an exact rebuild runs, what a bounded one leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minidsv41.cache.replay import first_rows, halo
from minidsv41.config import ModelConfig
from minidsv41.course import figures
from minidsv41.course.hit import divergence, exactly, replayed, states
from minidsv41.course.pictures import staircase as pictures
from minidsv41.course.reads import Reading
from minidsv41.course.records import record
from minidsv41.course.staircase import Rebuild, counted, overlapping, reach, rows_to_run, twice
from tests.tiny import TINY, prompt, tiny

L, W, HIT = TINY.num_hidden_layers, TINY.sliding_window, 60
FLASH = ModelConfig.preset("flash")
TURN = 50 * FLASH.num_hidden_layers


def changed(a: torch.Tensor, b: torch.Tensor, *, more: float = 1e-12) -> torch.Tensor:
    return (a - b).abs().amax(-1) > more


def test_one_state_of_the_release_reaches_5081_positions() -> None:
    layers, window = FLASH.num_hidden_layers, FLASH.sliding_window
    assert reach(layers, window)[0] == layers * (window - 1) + 1 == halo(FLASH) + 1 == 5_081
    assert reach(layers, window)[-3:] == [255, 128, 1]


def test_cells_of_the_release() -> None:
    layers, window = FLASH.num_hidden_layers, FLASH.sliding_window
    cells = rows_to_run(layers, window)
    assert sum(cells) == sum(128 + 127 * i for i in range(39)) == 99_099
    assert layers * layers * window == 204_800
    assert [round(n / TURN, 2) for n in (204_800, 99_099, window * layers)] == [102.4, 49.55, 2.56]


@pytest.mark.parametrize(("layers", "window"), [(1, 1), (1, 5), (2, 4), (3, 1), (8, 6)])
def test_reach_grows_by_a_window_less_one_a_layer(layers: int, window: int) -> None:
    assert reach(layers, window) == [1 + k * (window - 1) for k in range(layers, -1, -1)]
    assert rows_to_run(layers, window)[-1] == 0


def test_the_package_writes_the_rows_that_one_new_token_reads() -> None:
    """A new token's own state is the last one, so that the old rows before each layer are one fewer."""
    old = [n - 1 for n in reach(L, W)[:-1]]
    assert [HIT - first for first in first_rows(TINY, HIT)] == old


def test_a_dyed_token_stains_the_staircase_and_nothing_else() -> None:
    model, ids, token = tiny(), prompt(HIT + 10), 12
    exact, disk = states(model, ids)
    x = model.embed(ids).detach().clone()
    x[token] = torch.nan
    stained = states(model, ids, x=x, disk=disk)[0].isnan().any(-1)
    at = torch.arange(len(ids))
    for layer, row in enumerate(stained):
        assert torch.equal(row, (at >= token) & (at <= token + (layer + 1) * (W - 1)))
    assert not changed(states(model, ids, disk=disk)[0], exact).any()


def test_entries_that_are_computed_again_carry_a_change_beyond_every_window() -> None:
    model, ids, token = tiny(), prompt(HIT + 10), 12
    exact, disk = states(model, ids)
    x = model.embed(ids).detach().clone()
    x[token] = x[token + 1] + 1
    free, kept = (changed(states(model, ids, x=x, disk=d)[0], exact) for d in (None, disk))
    beyond = token + L * (W - 1) + 1
    assert free[-1, beyond:].any()
    assert not kept[:, beyond:].any()


@pytest.mark.parametrize("old", [1, W - 1, W, W + 1, 20, L * (W - 1), L * (W - 1) + 1])
def test_exact_cells_are_those_that_the_network_computes_exactly(old: int) -> None:
    model, ids = tiny(qat=False), prompt(HIT)
    exact, disk = states(model, ids)
    again = changed(states(model, ids, disk=disk, floor=HIT - old)[0], exact)[:, HIT - old :]
    found = [int((~row).flip(0).cumprod(0).sum()) for row in again]
    assert found == Rebuild(L, W, old, "rectangle").exact


def test_the_last_replayed_token_is_exact_in_the_first_layer_only() -> None:
    model, ids = tiny(), prompt(HIT)
    exact, disk = states(model, ids)
    wrong = changed(states(model, ids, disk=disk, floor=HIT - W)[0], exact)[:, -1]
    assert wrong.tolist() == [False] + [True] * (L - 1)
    assert Rebuild(L, W, W).exact == [1] + [0] * (L - 1)


def test_a_whole_staircase_is_exact_and_costs_less_than_half_of_the_rectangle() -> None:
    layers, window = FLASH.num_hidden_layers, FLASH.sliding_window
    stairs = Rebuild(layers, window, layers * window)
    assert stairs.exact == stairs.run == stairs.needed
    assert sum(stairs.run) < 0.5 * sum(Rebuild(layers, window, layers * window, "rectangle").run)
    assert "49.55 times a turn of 50 tokens<br>exact: 99,099 of 99,099" in counted(stairs, turn=50)


def test_replayed_is_the_serving_path() -> None:
    """Bounded replay is a rebuild of W tokens; the halo makes it exact; pages of another conversation do not matter."""
    model, ids = tiny(), prompt(HIT + 9)
    exact, bounded = exactly(model, ids, HIT), replayed(model, ids, HIT)
    torch.testing.assert_close(bounded, replayed(model, ids, HIT, shape="rectangle", old=W), rtol=0, atol=1e-9)
    torch.testing.assert_close(replayed(model, ids, HIT, shape="staircase"), exact, rtol=0, atol=1e-9)
    assert torch.equal(bounded, replayed(model, ids, HIT, neighbour=prompt(70, seed=5)))
    assert divergence(exact, bounded).max() > 1e-6
    assert divergence(exact, exact).abs().max() == 0


def test_tokens_read_twice_and_rows_lost() -> None:
    reading = Reading(3, "full", (4, 9), owner=3, chooser=3, ratio=2, visible=5, entries=(0, 2, 4))
    assert twice(reading) == ({4, 5, 8, 9}, set())
    assert twice(reading, floor=6) == ({8, 9}, {4, 5})
    assert overlapping([reading, replace(reading, layer=4)], 6) == (
        "query 9<br>layers 3–4: 2 tokens read twice, 2 rows lost, 2 of them still in an entry"
    )
    assert "lost" not in overlapping([reading])


def test_pictures_are_of_one_width_and_small() -> None:
    change = torch.logspace(-20, 0, 40, dtype=torch.float64).expand(L, -1)
    reading = Reading(3, "full", (4, 9), owner=3, chooser=3, ratio=2, visible=5, entries=(0, 2, 4))
    for fig in (
        pictures.measured(change, change, change > 1e-9, 12),
        pictures.steps(Rebuild(L, W, 20)),
        pictures.steps(Rebuild(1, 1, 1, "rectangle")),
        pictures.overlap([reading], 12, 6),
        pictures.divergences({"6 tokens": change[0], "exact": torch.zeros(40, dtype=torch.float64)}),
        pictures.dots({"hit": {"with": [1e-4, 2e-4], "without": [1e-5]}}, "KL"),
    ):
        data = figures.png(fig)
        assert int.from_bytes(data[16:20], "big") == figures.WIDTH
        assert len(data) < 20_000


def test_the_recorded_study_counts_the_cells_of_the_toy() -> None:
    toy = ModelConfig.preset("toy")
    run = record("bench_replay")
    hit, turn = run["settings"]["hit"], run["settings"]["turn"]
    layers, window = toy.num_hidden_layers, toy.sliding_window
    for found in run["results"]:
        ways = found["ways"]
        assert ways["hit with windows"]["row_layers"] == turn * layers
        assert ways["hit, encoder replay"]["row_layers"] == (turn + window) * layers
        old = sum(n - 1 for n in reach(layers, window)[:-1])
        assert ways["hit, exact staircase"]["row_layers"] == turn * layers + old
        assert ways["hit, exact rectangle"]["row_layers"] == (turn + layers * (window - 1)) * layers
        assert hit > layers * (window - 1)
