"""The shipped checkpoint: the product of `minidsv41 train --preset toy`, and better than n-grams."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from minidsv41 import checkpoint, paths
from minidsv41.config import ModelConfig
from minidsv41.serve import speak
from minidsv41.tokens import load_tokenizer
from minidsv41.train.data import corpus
from minidsv41.train.evaluate import validate
from minidsv41.train.loop import SNAPSHOTS, TrainConfig
from minidsv41.train.ngram import baseline
from minidsv41.train.objective import Backbone

FOLDER = paths.checkpoint_dir()


@pytest.fixture(scope="module")
def model():
    return checkpoint.load(FOLDER)


@pytest.fixture(scope="module")
def record() -> dict:
    return json.loads((FOLDER / "record.json").read_text(encoding="utf-8"))


def test_it_is_the_toy_trained_with_the_default_settings(model, record) -> None:
    assert model.config == ModelConfig.preset("toy")
    assert TrainConfig(**record["settings"]) == TrainConfig()


def test_its_record_keeps_the_promises(record) -> None:
    assert record["minutes"] <= 10
    assert record["machine"]["cores"] <= 2
    assert record["peak_memory_mb"] < 3000
    assert sum(f.stat().st_size for f in FOLDER.iterdir()) <= 12e6


@pytest.mark.slow
def test_bits_per_byte_of_the_file_are_as_recorded_and_beat_kneser_ney(model, record) -> None:
    text, settings = corpus(), TrainConfig()
    torch.set_num_threads(1)
    bits = validate(
        Backbone(model, replay=0, align=0, seed=0).logits, text, length=settings.length, batch=settings.batch
    )
    for kind, value in record["validation_bits_per_byte"].items():
        assert bits[kind] == pytest.approx(value, abs=2e-3)
    grams = baseline(text, vocab_size=model.config.vocab_size)
    assert bits["total"] < grams["total"]


def test_the_readme_of_the_data_gives_the_recorded_numbers(record) -> None:
    readme = (paths.data_dir() / "README.md").read_text(encoding="utf-8")
    bits = record["validation_bits_per_byte"]
    assert f"| {' | '.join(f'{bits[kind]:.3f}' for kind in ('total', 'plays', 'poems', 'python'))} |" in readme


def test_its_curve_is_complete(record) -> None:
    lines = [json.loads(line) for line in (FOLDER / "curve.jsonl").read_text(encoding="utf-8").splitlines()]
    c = TrainConfig()
    for stage, steps, term in (("backbone", c.steps, "lm"), ("draft", c.draft_steps, "total")):
        assert [line["step"] for line in lines if line["stage"] == stage and term in line] == list(range(1, steps + 1))
    losses = [line["lm"] for line in lines if "lm" in line]
    assert sum(losses[-10:]) < 0.55 * sum(losses[:10])


def test_snapshots_of_the_indexer_fit_the_model_and_differ(model) -> None:
    own = {n: p for n, p in model.named_parameters() if ".indexer." in n}
    found = [load_file(FOLDER / f"indexer-{percent:03}.safetensors") for percent in SNAPSHOTS]
    for tensors in found:
        assert {n: t.shape for n, t in tensors.items()} == {n: p.shape for n, p in own.items()}
    name = "layers.4.attn.indexer.wq_b.weight"
    assert len({t[name].float().norm().item() for t in found}) == len(SNAPSHOTS)


@pytest.mark.parametrize("prompt", ["ROMEO.\n", "春眠", "def main(", "ſtrange ☃ \U0001f600"])
def test_it_talks(model, prompt: str) -> None:
    g = torch.Generator().manual_seed(0)
    said = "".join(speak(model, load_tokenizer(), prompt, max_new=20, temperature=0.7, generator=g))
    assert said.strip()
    assert said.encode("utf-8")
