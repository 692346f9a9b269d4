"""The benchmark's contenders and records."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from minidsv41.cli import app
from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import kv_bytes_per_token
from minidsv41.serve.study import counting
from minidsv41.train import (
    bench,
    bench_absorption,
    bench_decode,
    bench_lifecycle,
    bench_speculative,
    bench_train,
    bench_verify,
)
from tests.babble import babble
from tests.tiny import TINY, prompt, tiny


def test_contenders_have_equal_active_parameters():
    plain = bench.contender("plain", "toy", seed=0).config
    assert plain.parameters == pytest.approx(bench.active_parameters(ModelConfig.preset("toy")), rel=1e-3)


@pytest.mark.parametrize("name", bench.CONTENDERS)
def test_training_is_measured(name, monkeypatch):
    monkeypatch.setattr(bench_train, "corpus", babble)
    config = bench_train.BenchConfig(minutes=0.01, threads=1, length=64, batch=2)
    found = bench_train.train(name, config)
    assert found["curve"][-1]["step"] == found["steps"] >= 1
    assert found["curve"][-1]["seconds"] >= 0.6
    low, high = found["tokens_per_second_range"]
    assert 0 < low <= found["tokens_per_second"] <= high
    assert found["peak_memory_mb"] > 50


def test_decoding_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_decode, "corpus", babble)
    config = bench_decode.DecodeConfig(lengths=(40, 70), tokens=2, threads=1)
    results = {name: bench_decode.decode(name, config) for name in bench.CONTENDERS}
    c = ModelConfig.preset("toy")
    plain = [row["cache_bytes"] for row in results["plain"]]
    assert plain == [2 * c.num_hidden_layers * c.hidden_size * 4 * tokens for tokens in (42, 72)]
    ours = [row["cache_bytes"] for row in results["minidsv41"]]
    assert ours[1] - ours[0] == kv_bytes_per_token(c).value * 30
    path = bench.write(bench.record("decode", config, results), tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "bench_decode.json"
    assert content["results"] == results and content["machine"]["threads"] == 1


def test_speculation_is_measured():
    text = babble()
    c = bench_speculative.SpeculativeConfig(prompts=2, length=20, new=9, rows=(1, 4), threads=1)
    found = bench_speculative.measure(tiny(dtype=torch.float32), text, c)
    assert [(row["kind"], row["temperature"]) for row in found["text"]] == [
        (kind, t) for kind in text.validation for t in c.temperatures
    ]
    for row in found["text"]:
        assert 1 <= row["tokens_per_step"] == pytest.approx(1 + sum(row["kept"]), abs=2e-3)
        assert row["steps"] >= 2
        assert row["same_text"] <= c.prompts
        for name in ("plain", "speculative"):
            low, high = row[f"{name}_range"]
            assert 0 < low <= row[name] <= high
    block = TINY.dspark_block_size
    assert {len(found["calibration"][name]) for name in ("temperatures", "error_before", "error_after")} == {block}
    assert list(found["seconds_per_step"]) == ["1", "4"]


def test_the_price_of_a_draft_is_measured():
    model, block = tiny(dtype=torch.float32), TINY.dspark_block_size
    c = bench_verify.VerifyConfig(loads=(1, 3), length=20, repeats=2)
    with counting(model) as rows:
        found = bench_verify.measure(model, prompt(200), c, clock=lambda: float(sum(rows)))  # one row-layer a second
    for row, load in zip(found["seconds"], c.loads, strict=True):
        assert row["requests"] == load
        assert row["draft"] == 0  # its blocks are not among those that are counted
        assert row["verify"] == [load * (1 + n) * TINY.num_hidden_layers for n in range(block + 1)]
    assert found["busy"] >= 0
    assert sum("requests: draft" in line for line in bench_verify.lines(found)) == 2


def test_absorption_is_measured():
    c = bench_absorption.AbsorptionConfig(heads=2, prefix=600, queries=(1, 40, 130, 150), repeats=2)
    with FlopCounterMode(display=False) as counter:
        found = bench_absorption.measure(c, clock=counter.get_total_flops)  # one FLOP a second
    for row in found["seconds"]:
        assert (row["naive"], row["absorbed"]) == c.flops(row["queries"])
    assert found["crossing"] == pytest.approx(139.0, abs=1)  # n (1 + n / 600) = 170.7
    assert bench_absorption.crossing(found["seconds"][:2]) is None
    assert sum("queries: naive" in line for line in bench_absorption.lines(found)) == 4


def test_the_lifecycle_is_measured(monkeypatch):
    model, length, window = tiny(dtype=torch.float32), TINY.num_hidden_layers, TINY.sliding_window
    c = bench_lifecycle.LifecycleConfig(prefix=150, turn=9, lengths=(20, 70), requests=3, new=8, repeats=2, threads=1)
    with counting(model) as rows:
        monkeypatch.setattr(bench_lifecycle.time, "perf_counter", lambda: float(sum(rows)))  # one row-layer a second
        found = bench_lifecycle.measure(model, prompt(200), c)

    def late(n: int) -> int:
        return n * length // 2 + min(n, 2 * window - 1) + window * (length // 2 - 1)

    stairs = sum((length - layer) * (window - 1) for layer in range(length))
    for row, new in zip(found["turn"], (9, 2 * window), strict=True):
        assert {name: way["seconds"] for name, way in row["ways"].items()} == {
            "no replay": late(new),
            "bounded replay": late(window + new),
            "exact replay": stairs + late(new),
        }
    hit = found["hit"]
    assert (hit["cold"]["seconds"], hit["store"]["seconds"]) == (late(159), late(159 - 128 + window))
    assert hit["persist"]["pages"] == 2
    for row, n in zip(found["cold"], c.lengths, strict=True):
        costs = {"none": n * length, "late": late(n), "report": (n + window) * length // 2}
        assert {cut: way["seconds"] for cut, way in row["cut"].items()} == costs
        assert row["speedup"]["late"] == costs["none"] / costs["late"]
    for row in found["decode"]:
        assert row["plain"]["tokens_per_second"] == pytest.approx(1 / length)  # each token runs all layers once
        assert 0 < row["speculative"]["tokens_per_second"] <= 1 / length
    assert sum("replay" in line for line in bench_lifecycle.lines(found)) == 6


def test_a_device_that_is_not_there_is_refused_at_once(tmp_path):
    done = CliRunner().invoke(app, ["bench", "absorption", "--device", "tpu", "--into", str(tmp_path)])
    assert done.exit_code == 2 and "cpu, or cuda on a machine that has a GPU" in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())
