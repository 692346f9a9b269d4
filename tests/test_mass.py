"""Attention mass of a layer: the model's own softmax, every entry selected."""

from __future__ import annotations

import pytest
import torch

from minidsv41 import paths
from minidsv41.checkpoint import load
from minidsv41.course.mass import Mass, attention_mass
from minidsv41.course.weights import attention_weights
from minidsv41.model import Model
from minidsv41.ops import Batch
from minidsv41.train.losses import Queries

LAYERS = (1, 3, 4, 6, 7)


@pytest.fixture(scope="module")
def traced() -> tuple[Model, dict[str, torch.Tensor]]:
    model = load(paths.checkpoint_dir("recall"), dtype=torch.float64).requires_grad_(False)
    ids = torch.randint(5, model.config.vocab_size, (200,), generator=torch.Generator().manual_seed(0))
    return model, model.trace(ids)


@pytest.mark.parametrize("layer", LAYERS)
def test_mass_is_what_attention_computes_with_every_entry_selected(traced, layer: int):
    model, trace = traced
    mass, n = attention_mass(model, trace, layer), len(trace["ids"]) // model.config.ratio(layer)
    visible = Batch.equal(trace["ids"][None]).visible(model.config.ratio(layer))
    every = torch.where(torch.arange(n) < visible[:, None], torch.arange(n), -1)
    window, entries = attention_weights(model, trace, layer, topk=every)
    assert torch.allclose(mass.window, window, atol=1e-12) and torch.allclose(mass.entries, entries, atol=1e-12)
    assert torch.allclose(mass.window.sum(-1) + mass.entries.sum(-1) + mass.sink, torch.ones(()).double())
    assert (mass.sink > 0).all()


@pytest.mark.parametrize("layer", [1, 4, 6])
def test_recall_is_what_training_aligns_to_and_studies_measure(traced, layer: int):
    model, trace = traced
    c, batch = model.config, Batch.equal(trace["ids"][None])
    queries = Queries(
        q=trace[f"L{layer}.attn.q"][None],
        entries=trace[f"L{c.kv_owner(layer)}.cmp.entry"][None],
        window=trace[f"L{layer}.attn.win_kv"][None],
        sink=model.layers[layer].attn.attn_sink,
        visible=batch.visible(c.ratio(layer)),
        first=batch.span(c.sliding_window).first[None],
    )
    topk = trace[f"L{layer}.idx.topk"]
    kept = (queries.mass()[0].gather(1, topk.clamp(min=0)) * (topk >= 0)).sum(1)
    recall = attention_mass(model, trace, layer).recall(topk)
    assert torch.allclose(recall[1:], kept[1:], atol=1e-10)  # the first query of a pair sees no entry


def test_no_choice_of_as_many_keeps_more_than_the_best(traced):
    model, trace = traced
    mass, draw = attention_mass(model, trace, 6), torch.Generator().manual_seed(1)
    best, own = mass.recall(mass.best(8)), mass.recall_by_head(mass.best_by_head(8))
    chosen = trace["L6.idx.topk"][:, :8]
    other = torch.randint(0, 200, (200, 8), generator=draw)
    other = torch.where(other <= torch.arange(200)[:, None], other.sort(1).values, -1)
    assert (mass.recall(chosen) <= best + 1e-12).all() and (mass.recall_by_head(chosen) <= own + 1e-12).all()
    distinct = (other.diff(dim=1) > 0).all(1)
    assert distinct.sum() > 10 and (mass.recall(other)[distinct] < best[distinct]).all()


def test_small_sums_by_hand():
    mass = Mass(
        window=torch.tensor([[[0.1], [0.2]]]),
        entries=torch.tensor([[[0.4, 0.1, 0.0], [0.1, 0.5, 0.0]]]),
        sink=torch.tensor([[0.4, 0.2]]),
    )
    first = torch.tensor([[0, -1]])
    assert mass.captured(first).tolist() == [pytest.approx([0.4, 0.1])]
    assert mass.recall(first).item() == pytest.approx(0.5 / 1.1)
    assert mass.recall_by_head(first).tolist() == [pytest.approx([0.8, 1 / 6])]
    assert mass.best(1).tolist() == [[1]] and mass.best(3).tolist() == [[0, 1, -1]]
    assert mass.best_by_head(1).tolist() == [[[0], [1]]]
    assert mass.captured(mass.best_by_head(1)).tolist() == [pytest.approx([0.4, 0.5])]


def test_a_larger_sink_takes_mass_from_every_key_alike(traced):
    model, trace = traced
    before = attention_mass(model, trace, 6)
    after = attention_mass(model, trace, 6, sink=model.layers[6].attn.attn_sink.double() + 3)
    factor = after.entries.sum(-1) / before.entries.sum(-1)
    assert (factor < 1).all() and (after.sink > before.sink).all()
    assert torch.allclose(after.entries, before.entries * factor[..., None], atol=1e-12)
    topk = trace["L6.idx.topk"]
    assert torch.allclose(after.recall_by_head(topk), before.recall_by_head(topk), atol=1e-10)
