"""The shipped checkpoint `recall`: it looks things up far behind its windows, by its entries and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from minidsv41 import checkpoint, paths
from minidsv41.config import ModelConfig
from minidsv41.model import SequenceKeys
from minidsv41.ops import Batch
from minidsv41.train.data import corpus
from minidsv41.train.loop import SNAPSHOTS, TrainConfig
from minidsv41.train.recall import Lookups, recall

FOLDER = paths.checkpoint_dir("recall")


class Wiped(SequenceKeys):
    """Every entry holds zeros: the windows are all that is left."""

    def write(self, kind, layer, seq, index, values) -> None:
        super().write(kind, layer, seq, index, torch.zeros_like(values) if kind == "entry" else values)


@pytest.fixture(scope="module")
def model():
    return checkpoint.load(FOLDER)


@pytest.fixture(scope="module")
def asked():
    """Held-out text, held-out names."""
    text = np.concatenate([stream.tokens for stream in corpus().validation.values()])
    return Lookups(text, length=256, seed=11, held_out=True)(8, step=0)


def measured(model, asked, *, keys=SequenceKeys, **shape) -> dict[str, float]:
    config = replace(model.config, **shape)

    def logits(tokens):
        batch = Batch.equal(tokens)
        hidden = model(batch, keys(config, batch)).hidden
        return model.logits(hidden).unflatten(0, tokens.shape)

    own, model.config = model.config, config
    try:
        return recall(logits, asked)
    finally:
        model.config = own


def test_it_is_the_toy_with_other_training(model) -> None:
    settings = json.loads((FOLDER / "record.json").read_text(encoding="utf-8"))["settings"]
    assert model.config == ModelConfig.preset("toy")
    assert 0 < TrainConfig(**settings).recall < settings["batch"]
    assert sum(f.stat().st_size for f in FOLDER.iterdir()) <= 10e6


def test_it_recalls_beyond_the_window_and_only_by_its_entries(model, asked) -> None:
    found, wiped = measured(model, asked), measured(model, asked, keys=Wiped)
    assert found["recall"] > 0.9
    assert min(found["33-64"], found["65-128"], found["129-256"]) > 0.85
    assert max(wiped["33-64"], wiped["65-128"], wiped["129-256"]) < 0.15


def test_it_recalls_less_with_fewer_entries(model, asked) -> None:
    assert measured(model, asked, index_topk=1)["recall"] < 0.85 * measured(model, asked)["recall"]


def test_snapshots_of_the_indexer_fit_the_model_and_differ(model) -> None:
    own = {n: p.shape for n, p in model.named_parameters() if ".indexer." in n}
    found = [load_file(FOLDER / f"indexer-{percent:03}.safetensors") for percent in SNAPSHOTS]
    assert all({n: t.shape for n, t in tensors.items()} == own for tensors in found)
    name = "layers.4.attn.indexer.wq_b.weight"
    assert len({t[name].float().norm().item() for t in found}) == len(SNAPSHOTS)


def test_the_readme_of_the_data_gives_the_recorded_numbers() -> None:
    bits = json.loads((FOLDER / "record.json").read_text(encoding="utf-8"))["validation_bits_per_byte"]
    readme = (paths.data_dir() / "README.md").read_text(encoding="utf-8")
    assert f"| {' | '.join(f'{bits[kind]:.3f}' for kind in ('total', 'plays', 'poems', 'python'))} |" in readme
