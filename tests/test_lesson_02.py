"""Lesson 02: which cells a prompt runs, what a hit costs, where 8B and 16B come from, what the bias may do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from minidsv41.config import ModelConfig
from minidsv41.course import ced, figures, records
from minidsv41.course.activated import activated
from minidsv41.course.balance import Router, package_rule
from minidsv41.course.pictures import ced as pictures
from minidsv41.ledger import flops, params
from minidsv41.model.moe import Gate
from minidsv41.serve import study
from tests.tiny import TINY, prompt, tiny

FLASH = ModelConfig.preset("flash")
L, W = TINY.num_hidden_layers, TINY.sliding_window
HELD = ("entries", "entries and windows")
CUTS = (None, "report")


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize(("length", "hit"), [(1, 0), (W, 0), (W + 1, 0), (30, 0), (5, 3), (30, 4), (30, 23), (30, 29)])
def test_the_rule_counts_the_cells_that_run(model, length: int, hit: int, held: str, cut: str | None):
    seen = ced.grid(model, prompt(length), hit=hit, held=held, cut=cut)
    rule = ced.row_layers(L, W, length=length, hit=hit, held=held, cut=bool(cut))
    assert seen.row_layers == sum(rule.values())
    encoder = int(seen.ran[: L // 2].sum())
    assert encoder == rule["encoder, new"] + rule["encoder, again"]
    assert int(seen.ran[:, hit:].sum()) >= (L // 2) * (length - hit)
    assert seen.projected.tolist() == [token >= hit for token in range(length)]


def test_what_is_watched_is_what_the_study_counts(model):
    ways = {way.name: way for way in study.WAYS}
    ids, hit, length = prompt(37), 20, 30
    for name, shape in (
        ("cold, decoder replay report", dict(cut="report")),
        ("hit with windows", dict(hit=hit, held="entries and windows")),
        ("hit, both replays report", dict(hit=hit, cut="report")),
    ):
        counted, _ = study.take_in(model, ways[name], ids, hit=hit, length=length)
        assert ced.grid(model, ids[:length], **shape).row_layers == counted


def test_a_cut_cold_prompt_leaves_all_entries_of_the_full_run(model):
    ids = prompt(30)
    whole, cut = ced.grid(model, ids), ced.grid(model, ids, cut="report")
    torch.testing.assert_close(cut.entries, whole.entries, rtol=0, atol=1e-9)
    assert len(whole.entries) == 30 and (whole.entries != 0).any(-1).all()
    assert not torch.equal(ced.grid(model, ids, hit=20, cut="report").entries, whole.entries)


@pytest.mark.parametrize("window", [1, 4, 7, 128])
@pytest.mark.parametrize("layers", [2, 8, 40])
def test_two_windows_are_the_debt_at_any_depth(window: int, layers: int):
    assert ced.break_even(window, layers) == 2 * window


def test_a_turn_at_full_size():
    lost = ced.row_layers(40, 128, length=10_050, hit=10_000)
    kept = ced.row_layers(40, 128, length=10_050, hit=10_000, held="entries and windows", cut=False)
    assert lost == {"encoder, new": 1_000, "encoder, again": 2_560, "decoder": 2_560}
    assert sum(lost.values()) / sum(kept.values()) == 3.06
    with pytest.raises(ValueError, match="hit = 5: from 0 to length - 1 = 4"):
        ced.row_layers(40, 128, length=5, hit=5)


@pytest.mark.parametrize("context", [1, 100, 4096, 131072, 1048576])
@pytest.mark.parametrize("config", [FLASH, TINY], ids=["flash", "tiny"])
def test_layers_sum_to_the_ledger(config: ModelConfig, context: int):
    lines = {line.name: line.value for line in flops.weight_lines(config)}
    beside = sum(lines[name] for name in ("flop_head", "flop_compressor", "flop_indexer_linears", "flop_engram"))
    layers = sum(ced.layer_flops(config, layer, context) for layer in range(config.num_hidden_layers))
    assert layers + beside == flops.flop_decode(config, context).value


def test_half_of_the_work_lies_in_the_decoder_at_any_context():
    shares = [ced.decoder_share(FLASH, n) for n in (1, 4096, 131072, 1048576)]
    assert all(0.48 < share < 0.51 for share in shares)
    assert shares[-1] == min(shares)


def test_8b_and_16b():
    found = activated(FLASH)
    assert [(phase, round(n / 1e9, 2)) for phase, _, n in found] == [
        *(("prefill", n) for n in (7.55, 7.58, 7.90)),
        *(("decode", n) for n in (15.09, 15.15, 15.82, 16.13)),
    ]
    assert found[0][2] == int(params.active_prefill_encoder(FLASH))
    assert found[-1][2] == int(params.active_decode_full(FLASH))
    assert round(int(params.backbone_params(FLASH)) / 1e9, 2) == 551.57
    assert round(int(params.engram_table_params(FLASH)) / 1e9, 2) == 196.61


@pytest.mark.parametrize("config", [FLASH, TINY], ids=["flash", "tiny"])
def test_decode_meets_more_than_prefill_by_the_decoder_and_the_head(config: ModelConfig):
    found = {(phase, what): n for phase, what, n in activated(config)}
    layer = int(params.active_per_layer_matrices(config))
    assert found["decode", "all layers"] - found["prefill", "layers of the encoder"] == layer * (
        config.num_hidden_layers - config.decoder_start
    )


def test_the_bias_selects_and_never_weighs():
    g = torch.Generator().manual_seed(0)
    gate = Gate(TINY, experts=5, chosen=2).double()
    gate.weight.data.normal_(generator=g)
    x = torch.randn(40, TINY.hidden_size, generator=g, dtype=torch.float64)
    gate.bias[3] = 10.0
    ids, weights, scores = gate(x, None)
    assert (ids == 3).any(-1).all()
    picked = scores.gather(1, ids)
    torch.testing.assert_close(weights, picked / picked.sum(-1, keepdim=True) * TINY.routed_scaling_factor)


def test_the_package_rule_evens_the_load_in_time():
    short, long = Router(steps=100), Router(steps=2000)
    assert short.overload(package_rule) > 2
    assert long.overload(package_rule) < 1.3
    assert short.overload(lambda bias, load: bias) == pytest.approx(long.overload(lambda bias, load: bias), rel=0.05)
    with pytest.raises(ValueError, match="one bias for each of 8"):
        short.overload(lambda bias, load: bias[:3])


def test_readout_names_the_break_even_of_a_long_hit_only():
    assert ced.described(40, 128, length=1000, hit=0) == (
        "40 layers, window 128: 1,000 tokens, cold<br>22,560 row-layers instead of 40,000: 0.56 times"
    )
    assert ced.described(40, 128, length=1000, hit=950).endswith(
        "6,120 row-layers instead of 2,000: 3.06 times; even at 256 new tokens"
    )
    assert "even" not in ced.described(40, 128, length=150, hit=100)
    assert len({ced.described(2 * half, 128, length=1000, hit=950) for half in (1, 2, 20)}) == 3


def test_figures(model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    grids = {
        "cold": ced.grid(model, prompt(20), cut="report"),
        "hit": ced.grid(model, prompt(20), hit=12, cut="report"),
    }
    found = [dict(variant=v, seed=s, measures=dict(bits_per_byte=2 + s / 9)) for v in ("ced", "own") for s in range(3)]
    (tmp_path / "study_ced.json").write_text(json.dumps(dict(results=found)), encoding="utf-8")
    monkeypatch.setattr(records, "records_dir", lambda: tmp_path)
    bits = records.by_variant(records.record("study_ced"), "bits_per_byte")
    for fig in (
        pictures.cells(grids, W),
        pictures.parts(ced.ways(40, 128, length=1000, hit=0)),
        pictures.parts(ced.ways(40, 128, length=1000, hit=950)),
        pictures.seeds({"a": bits, "b": bits}),
    ):
        data = figures.png(fig)
        assert int.from_bytes(data[16:20], "big") == figures.WIDTH
        assert len(data) < 20_000
