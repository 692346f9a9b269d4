"""Lesson 05: the funnel at full size, what a pool surely holds and what it need not, and ties."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minidsv41 import paths
from minidsv41.checkpoint import load
from minidsv41.config import ConfigError, ModelConfig
from minidsv41.course import figures, funnel
from minidsv41.course.funnel import Funnel, choose, outside, pool_of, tried
from minidsv41.course.lessons.l05 import asked, blocks_needed, needed, outside_keys, questions
from minidsv41.course.pictures import funnel as pictures
from minidsv41.course.sabotage import sabotage
from minidsv41.ledger.flops import flop_decode
from minidsv41.model import Model
from minidsv41.ops import select


def random_rows(values: int, *, seed: int = 0, n: int = 50) -> torch.Tensor:
    """2,000 rows of scores with few different values, each cut at what its query sees."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, values, (2000, n), generator=draw).double()
    return rows.masked_fill(torch.arange(n) >= torch.randint(1, n + 1, (2000, 1), generator=draw), -torch.inf)


@pytest.fixture(scope="module")
def traced() -> tuple[Model, dict[str, torch.Tensor]]:
    """The trained network, asked with a selection small enough for its pool."""
    model = load(paths.checkpoint_dir("recall"), dtype=torch.float64).requires_grad_(False)
    model.config = replace(model.config, index_topk=8)
    return model, model.trace(funnel.lookups().tokens[0, :-1])


def test_the_release_meets_the_condition_and_the_mini_does_not():
    flash, toy = ModelConfig.preset("flash"), ModelConfig.preset("toy")
    assert flash.candidate_topk_blocks - 1 == 2047 >= flash.index_topk == 512
    assert 1_048_576 // flash.candidate_block_size == 131_072
    assert flash.candidate_topk_blocks * flash.candidate_block_size == 16_384
    assert toy.candidate_topk_blocks - 1 < toy.index_topk


def test_without_the_pool_a_step_at_a_million_tokens_costs_8_5_gflop_more():
    with_pool, without = (float(flop_decode(ModelConfig.preset("flash"), 1_048_576, pool=p).value) for p in (1, 0))
    assert without - with_pool == 4 * (1_048_576 - 16_384) * 2 * 32 * 128 / 4
    assert [round(x / 1e9, 1) for x in (with_pool, without)] == [27.0, 35.5]


@pytest.mark.parametrize("size", [1, 4, 8])
@pytest.mark.parametrize("values", [2, 5, 10**6])
def test_a_pool_of_more_than_k_blocks_holds_its_builders_best_k(values: int, size: int):
    rows = random_rows(values)
    assert not outside(choose(rows, 5), pool_of(rows, 6, size)).any()
    if values == 10**6:
        assert outside(choose(rows, 5), pool_of(rows, 5, size)).any()


def test_two_rules_for_ties_break_the_theorem():
    rows = random_rows(2)
    own = choose(rows.flip(1), 5)
    own = torch.where(own < 0, -1, rows.shape[1] - 1 - own)
    assert outside(own, pool_of(rows, 6, 4)).any()


def test_the_newest_block_is_always_in():
    rows = random_rows(5)
    newest = (rows > -torch.inf).sum(1) - 1
    assert pool_of(rows, 1, 4)[torch.arange(len(rows)), newest].all()


@pytest.mark.parametrize(("k", "size", "entries"), [(1, 1, 5), (3, 2, 30), (6, 4, 60), (9, 4, 30)])
def test_blocks_needed_is_what_the_worst_case_needs(k: int, size: int, entries: int):
    assert needed(k, size, entries) == blocks_needed(k, size, entries)


def test_the_config_refuses_a_pool_that_cannot_hold_k():
    toy = ModelConfig.preset("toy")
    assert replace(toy, candidate_topk_blocks=5).candidate_topk_blocks == 5
    with pytest.raises(ConfigError, match="candidate_topk_blocks"):
        replace(toy, candidate_topk_blocks=4)


def test_the_counter_example_loses_the_later_layers_best_entry():
    for question in questions():
        found = asked(outside_keys, **question)
        assert found.lost and found.best == 0 and 0 not in found.blocks and len(found.blocks) == question["blocks"]


def test_a_query_that_agrees_with_the_builders_loses_nothing():
    own = torch.randn(6, generator=torch.Generator().manual_seed(3)).double()
    for seed in range(50):
        keys = torch.randn(40, 6, generator=torch.Generator().manual_seed(seed)).double()
        assert not tried(keys, own, 2 * own, blocks=3, size=4).lost


def test_the_funnel_of_a_query_is_what_the_network_selects(traced):
    model, trace = traced
    assert funnel.pooled_layers(model.config) == (4, 6)
    assert funnel.pooled_layers(ModelConfig.preset("flash")) == (20, 24)
    for query in (7, 150, 400, 511):
        f = funnel.funnel(trace, query, config=model.config, k=8, blocks=12)
        chosen = [trace[f"L{layer}.idx.topk"][query] for layer in (4, 6)]
        assert f.own.tolist() == [i for i in chosen[0].tolist() if i >= 0]
        assert f.got.tolist() == [i for i in chosen[1].tolist() if i >= 0]
        assert torch.equal(f.pool, trace["L4.idx.candidates"][query, : query + 1])


def test_on_the_trained_network_the_builder_loses_nothing_and_the_later_layer_much(traced):
    model, trace = traced
    found = [funnel.funnel(trace, q, config=model.config, k=8, blocks=12) for q in range(256, 512)]
    assert not any(len(f.missing(f.own)) for f in found)
    assert sum(f.best_is_lost for f in found) > len(found) / 2
    assert not any(len(f.missing(f.got)) for f in found)


def test_a_small_funnel_by_hand():
    f = Funnel(torch.tensor([9.0, 0, 0, 0, 5, 0, 1]), torch.tensor([1.0, 0, 7, 0, 0, 0, 3]), k=2, blocks=2, size=2)
    assert f.pool.tolist() == [True, True, False, False, False, False, True]
    assert (f.own.tolist(), f.wanted.tolist(), f.got.tolist()) == ([0, 4], [2, 6], [0, 6])
    assert (f.missing(f.own).tolist(), f.missing(f.wanted).tolist(), f.best_is_lost) == ([4], [2], True)
    said = funnel.described(f, (4, 6), (0.5, 0.25))
    assert "7 entries in 4 blocks; the pool: 2 blocks, 3 entries" in said
    assert "own 2: 1 outside" in said and "1 outside, the best among them" in said and "kept 25%" in said


def test_a_stable_choice_does_not_depend_on_what_lies_beyond():
    rows, wide = random_rows(4, n=40), torch.full((2000, 17), -torch.inf).double()
    assert torch.equal(choose(rows, 6), choose(torch.cat([rows, wide], 1), 6))
    with sabotage("05.ties_by_width"):
        narrow, padded = select.lowest_topk(rows, 6), select.lowest_topk(torch.cat([rows, wide], 1), 6)
    assert not torch.equal(narrow, padded)
    best = [rows.gather(1, t.clamp(min=0)).masked_fill(t < 0, 0).sum(1) for t in (narrow, padded)]
    assert torch.equal(*best)  # both are a correct top-k


def test_lookups_are_the_same_each_time():
    first, again = funnel.lookups(length=128), funnel.lookups(length=128)
    assert torch.equal(first.tokens, again.tokens) and first.answers.any()


def test_pictures_are_drawn(traced):
    model, trace = traced
    drawn = funnel.funnel(trace, 400, config=model.config, k=8, blocks=12)
    assert figures.png(pictures.strip(drawn, (4, 6))).startswith(b"\x89PNG")
    flat = Funnel(torch.zeros(9).double(), torch.zeros(9).double(), 2, 1, 4)
    assert figures.png(pictures.strip(flat, (4, 6))).startswith(b"\x89PNG")
    panels = {"k": {"a": {1: 0.1, 2: 0.2}, "b": {1: 0.2, 2: 0.3}}, "blocks": {"a": {4: 0.5}}}
    assert figures.png(pictures.curves(panels)).startswith(b"\x89PNG")
