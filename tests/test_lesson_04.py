"""Lesson 04: what pooling can reach, what sharing costs and saves, which schedules exist, what a stale key does."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from minidsv41.config import ConfigError, ModelConfig
from minidsv41.course import figures, mixer, sharing, stale
from minidsv41.course.lessons.l04 import BUDGET, CHOOSERS, KEYS_BUDGET, best, best_choosers, chosen, step_cost
from minidsv41.course.pictures import sharing as pictures
from minidsv41.course.sabotage import first_difference, sabotage
from minidsv41.course.weights import attention_weights
from minidsv41.ledger import bytes as books
from minidsv41.model import Model

RELEASE = ("0x2 2x18 1x20", "2 8 14 20", "2 8 14 20 24 28 32 36")


@pytest.fixture(scope="module")
def release() -> ModelConfig:
    return sharing.scheduled(*RELEASE)


def per_token(c: ModelConfig) -> float:
    return float(sum(sharing.owner_bytes(c, owner) for owner in c.kv_source_layer_ids))


def test_the_short_form_is_the_released_schedule(release: ModelConfig):
    flash = ModelConfig.preset("flash")
    for name in ("compress_ratios", "kv_source_layer_ids", "index_source_layer_ids", "candidate_source_layer_id"):
        assert getattr(release, name) == getattr(flash, name)
    assert sharing.ratios_of("0*1 2×2") == (0, 2, 2)
    assert sharing.layers_of("2, 8 14-16") == (2, 8, 14, 15, 16)


@pytest.mark.parametrize("schedule", [RELEASE, ("0x2 2x38", "2 11 20"), ("0x2 1x38", "2-39")])
def test_bytes_of_a_schedule_are_the_ledgers(schedule: tuple[str, ...]):
    c = sharing.scheduled(*schedule)
    assert per_token(c) == books.kv_bytes_per_token(c).value


def test_sharing_divides_by_11_6_and_pooling_by_2_at_most(release: ModelConfig):
    alone, whole, pooled = (sharing.scheduled(r, "2-39") for r in ("0x2 2x18 1x20", "0x2 1x38", "0x2 2x38"))
    assert per_token(alone) == books.kv_bytes_per_token_no_sharing(release).value == 10_324
    assert round(per_token(alone) / per_token(release), 1) == 11.6
    assert per_token(whole) / per_token(pooled) == 2
    assert per_token(sharing.scheduled("0x2 1x38", "2 8 14 20")) / per_token(release) == pytest.approx(1.6)


def test_every_reader_is_read_by_one_line(release: ModelConfig):
    lines = [sharing.readers(release, owner) for owner in release.kv_source_layer_ids]
    assert sum(lines, []) == list(range(2, 40))
    assert sharing.mean_distance(release) * 38 == sum(layer - line[0] for line in lines for layer in line)


def test_distance_counts_no_window_layers():
    assert sharing.mean_distance(sharing.scheduled("0x2 2x18 1x20", "2-39")) == 0
    assert sharing.mean_distance(sharing.scheduled("0x2 1x38", "2")) == 18.5


@pytest.mark.parametrize(
    ("schedule", "rule"),
    [
        (("0x2 2x18 1x20", "2 8 14"), r"compress_ratios\[20\] = 1: its owner, layer 14, has 2"),
        (("0x2 2x38", "5 20"), "layer 2 reads entries, but no source stands at or before it"),
        (("0x2 2x38", "20 2"), "must ascend"),
        (("0x2 4x38", "2"), r"compress_ratios\[2\] = 4: allowed are 0, 1, 2"),
        (("0x2 2x38", "2 20", "20"), "must also be in index_source_layer_ids"),
        (("0x2 2x18 1y20", "2 20"), "'1y20' is no run"),
        (("0x2 2x38", "2 b"), "'b' is no layer"),
        (("0x40", ""), "candidate_source_layer_id"),
    ],
)
def test_an_impossible_schedule_is_explained_by_its_rule(schedule: tuple[str, ...], rule: str):
    with pytest.raises(ConfigError, match=rule) as raised:
        sharing.scheduled(*schedule)
    owners = schedule[1]
    said = sharing.described(schedule[0], owners, schedule[2] if len(schedule) > 2 else owners, 5)
    assert said == f"illegal: {raised.value}"


def test_no_three_owners_stand_nearer_to_their_readers():
    """The search leaves out owners in layers 0 and 1; they do not help."""
    right = best()
    for first in (0, 1):
        for more in combinations(range(first + 1, 21), 2):
            c = sharing.scheduled(f"0x{first} 2x{40 - first}", (first, *more))
            assert sharing.judged(c, BUDGET).distance > right.distance
    assert right == sharing.judged(sharing.scheduled("0x2 2x38", "2 11 20"), BUDGET)
    assert [pair[0] for pair in sharing.allowed(BUDGET)].count(right) == 1


def test_choosers_past_the_pool_are_cheap():
    base = step_cost()
    assert step_cost(5) - base == 524_288 * 68  # 35.7 MB
    assert step_cost(33) - base == 16_384 * 68  # 1.1 MB
    decoder = set(range(20, 40))
    assert step_cost(*decoder) <= KEYS_BUDGET < step_cost(5)
    assert chosen(CHOOSERS.solution) == best_choosers()


def test_one_gate_stays_on_the_segment_and_two_fill_the_box():
    a, b = (-2.0, 1.0), (1.0, 3.0)
    corners = {tuple(round(x) for x in mixer.mixed(a, b, (i, k)).entry) for i in (-40, 40) for k in (-40, 40)}
    assert corners == {(-2, 1), (-2, 3), (1, 1), (1, 3)}
    for lead in (-3, -0.5, 0, 2):
        assert mixer.mixed(a, b, (lead, 7), one_gate=True).off_segment < 1e-12
    assert mixer.mixed(a, b, (3, -3)).off_segment > 0.3
    assert mixer.mixed(a, a, (3, -3)).off_segment == 0


@pytest.fixture(scope="module")
def toy() -> tuple[Model, torch.Tensor]:
    model = Model(ModelConfig.preset("toy")).initialise(torch.Generator().manual_seed(0)).cast(torch.float64)
    return model, torch.randint(5, 4096, (100,), generator=torch.Generator().manual_seed(1))


def test_attention_weights_give_back_the_heads(toy):
    """Weights x stored values is what the layer computed, before the inverse rotation (its norm is the same)."""
    model, ids = toy
    trace = model.trace(ids)
    for layer in (1, 5, 7):
        window, entries = attention_weights(model, trace, layer)
        owner, chooser = model.config.kv_owner(layer), model.config.index_owner(layer)
        rows = torch.arange(100)[:, None] - torch.arange(31, -1, -1)
        values = trace[f"L{layer}.attn.win_kv"][rows.clamp(min=0)]
        chosen = trace[f"L{owner}.cmp.entry"][trace[f"L{chooser}.idx.topk"].clamp(min=0)]
        heads = window @ values + entries @ chosen
        assert torch.allclose(heads.norm(dim=-1), trace[f"L{layer}.attn.heads"].norm(dim=-1), atol=1e-9)


def test_stale_keys_are_read_where_a_pair_is_open_and_nowhere_else(toy):
    model, ids = toy
    own, wrong = stale.decoded(model, ids, after=80)
    kept = stale.choices_kept(own, wrong, 1)
    assert (kept[:80] == stale.choices_kept(own, own, 1)[:80]).all()
    assert (kept[81::2] == 32).all()
    assert (kept[80::2] < 32).all()
    assert (stale.divergence(own, wrong)[:80].abs() < 1e-12).all()


def test_the_narrow_release_has_the_released_schedule(release: ModelConfig):
    c = stale.narrow_release().config
    assert [c.mode(i) for i in range(40)] == [release.mode(i) for i in range(40)]
    assert [c.kv_owner(i) for i in range(40)] == [release.kv_owner(i) for i in range(40)]


def test_faults_show_where_they_must(toy):
    model, ids = toy
    trace = model.trace(ids)
    for name, stage in (
        ("04.scalar_gate", "L1.cmp.latent"),
        ("04.last_position", "L1.cmp.entry"),
        ("04.first_choice", "L6.attn.heads"),
    ):
        with sabotage(name):
            assert first_difference(trace, model.trace(ids)).stage == stage


def test_pictures_are_small_and_follow_their_layer(release: ModelConfig):
    maps = [figures.png(pictures.metro(release, layer=layer)) for layer in (1, 17, 18)]
    for refused in (("0x2 2x38", "3"), ("0x2 2x18 1x20", "2 8 14"), ("0x2 2x", "2 x")):
        maps.append(figures.png(pictures.drawn(*refused, refused[1], 17, budget=600)))
    maps.append(figures.png(pictures.drawn("0x2 2x18 1x20", "2-39", "2-39", 17, budget=600)))
    assert len(set(maps)) == len(maps)
    assert max(map(len, maps)) < 16_000
