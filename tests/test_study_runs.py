"""Recorded comparisons: networks of equal size that differ in what is said, and records that are whole."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from minidsv41 import ops, paths
from minidsv41.cli import app
from minidsv41.config import ModelConfig
from minidsv41.model import Model
from minidsv41.ops import Batch
from minidsv41.replaced import replaced
from minidsv41.study import STUDIES, Study, StudyError, Variant, changes
from minidsv41.study.base import SHAPE, Sizes
from minidsv41.study.catalogue import BLOCKS, EVERY
from minidsv41.study.facts import ASKED, FACT, KEYS, QUESTION, TOLD, VALUE, VALUES, Facts, Strewn
from minidsv41.study.processes import Piece, side_by_side
from minidsv41.study.selection import overlap
from minidsv41.study.variant import reshaped
from minidsv41.train.data import Batches
from minidsv41.train.losses import Queries
from minidsv41.train.objective import Backbone, Draft
from tests.babble import babble
from tests.tiny import prompt, tiny

EACH = [pytest.param(s, v, id=f"{s.name}-{v.name}") for s in STUDIES.values() for v in s.variants]


@lru_cache
def parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        model = Model(config)
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith("mtp."))


@pytest.mark.parametrize(("study", "variant"), EACH)
def test_equal_parameters(study: Study, variant: Variant) -> None:
    assert parameters(variant.trained.config(SHAPE)) == pytest.approx(parameters(SHAPE), rel=1e-3)
    assert reshaped(variant.trained.config(SHAPE), variant.read)  # a legal shape


def test_what_a_plain_network_does_not_use_is_next_to_nothing() -> None:
    with torch.device("meta"):
        model = Model(STUDIES["mhc"].variant("plain").trained.config(SHAPE))
    idle = sum(p.numel() for name, p in model.named_parameters() if ".hc_" in name and not name.startswith("mtp."))
    assert 0 < idle < 1e-3 * parameters(SHAPE)


def test_all_entries_are_all() -> None:
    length = Sizes().length
    assert length == EVERY and SHAPE.candidate_block_size * BLOCKS > length


def test_only_what_was_told_tells_an_answer() -> None:
    text = np.arange(1000) % 50
    facts = Facts(text, length=128, seed=1)(2, 5)
    answers = facts.answers.nonzero().tolist()
    assert len(answers) == 2 * ASKED
    for row, distance, t in ((facts.tokens[b], facts.distance[b], t + 1) for b, t in answers):
        at = t - int(distance[t])
        key, value = int(row[t - 1]) - QUESTION, int(row[t]) - VALUE
        told = int(row[at]) == FACT + key * VALUES + value
        assert told or (int(row[at - 1]), int(row[at])) == (QUESTION + key, VALUE + value)
        between = row[at + 1 : t - 1].tolist()
        assert QUESTION + key not in between and FACT + key * VALUES + value not in between
    told = [row[row >= FACT] - FACT for row in facts.tokens]
    assert all(len(set((f // VALUES).tolist())) == len(f) == TOLD for f in told)
    assert not torch.equal(facts.tokens, Facts(text, length=128, seed=1)(2, 6).tokens)


def test_facts_take_the_last_places_of_a_batch() -> None:
    batches = Batches(tokens=np.arange(1000) % 50, batch_size=3, length=128, seed=1)
    tokens, weight = Strewn(batches, share=2, weight=4.0)(5)
    asked = Facts(batches.tokens, length=128, seed=1)(2, 5)
    assert torch.equal(tokens[1:], asked.tokens) and torch.equal(tokens[0], batches(5)[0])
    assert torch.equal(weight[1:] == 4, asked.answers) and (weight[0] == 1).all()


def test_what_studies_share_is_trained_once() -> None:
    settings = Sizes().settings(0)
    keys = {(s.name, v.name): v.trained.key(SHAPE, settings) for s in STUDIES.values() for v in s.variants}
    assert len({keys["k", name] for name in ("4", "8", "16", "32", "all")} | {keys["fp4", "from_start"]}) == 1
    assert keys["ced", "ced"] == keys["replay", "without"] != keys["replay", "with"]
    assert len({keys["mhc", name] for name in ("plain", "undelayed", "delayed")}) == 3
    assert len({keys["pool_training", name] for name in ("afterwards", "in_selection", "in_alignment")}) == 3


@torch.no_grad()
def test_a_plain_residual_is_one() -> None:
    """Each sublayer reads norm(x) and adds its output to x."""
    model, ids = tiny(hc_mult=1, engram_layer_ids=(), engram_num_embeddings=()), prompt(20)
    with changes.plain_residual():
        trace = model.trace(ids)
    x = model.embed(ids)
    for i, layer in enumerate(model.layers):
        for part in ("attn", "ffn"):
            norm = getattr(layer, f"{part}_norm")
            torch.testing.assert_close(trace[f"L{i}.{part}.x"], norm(x))
            x = x + trace[f"L{i}.{part}.out"]
    torch.testing.assert_close(trace["final.collapsed"], x)


@torch.no_grad()
def test_without_the_delay_a_sublayer_is_mixed_by_its_own_coefficients() -> None:
    model, ids = tiny(), prompt(20)
    delayed = model.trace(ids)
    with changes.undelayed():
        trace = model.trace(ids)
    layer, start = model.layers[0], model.start(Batch.equal(ids[None])).X
    mixed = ops.collapse(start, delayed["L0.attn.pre"])  # its streams are the same in both
    torch.testing.assert_close(trace["L0.attn.x"], layer.attn_norm(mixed))
    torch.testing.assert_close(trace["L0.attn.pre"], delayed["L0.attn.pre"])
    mixed = ops.collapse(trace["L3.stream_after_attn"], trace["L3.ffn.pre"])
    torch.testing.assert_close(trace["L3.ffn.x"], model.layers[3].ffn_norm(mixed))
    assert not torch.allclose(delayed["L3.ffn.x"], trace["L3.ffn.x"])


def test_late_rounding_begins_late() -> None:
    model = tiny(dtype=torch.float32)
    tokens = torch.from_numpy(babble().train.tokens[: 2 * 17].reshape(2, 17))
    objective, seen = Backbone(model, replay=0, align=1, seed=0), []
    settings = Sizes(steps=10).settings(0)
    with changes.rounding_late(settings):
        for step in range(10):
            objective.loss(tokens, step=step)
            seen.append(model.config.qat)
            assert model.layers[1].attn.indexer.qat == model.config.qat
    assert seen == [False] * 8 + [True] * 2


def test_alignment_within_the_pool_puts_all_mass_there() -> None:
    model, found = tiny(dtype=torch.float32, qat=False), []
    tokens = torch.from_numpy(babble().train.tokens[: 3 * 25].reshape(3, 25))
    config = model.config

    def alignment_loss(q, k, w, queries: Queries):
        found.append(queries)
        return q.sum() * 0

    caught = replaced(changes.objective, "alignment_loss", lambda _: alignment_loss)
    with changes.pool_in_alignment(Sizes().settings(0)), caught:
        Backbone(model, replay=0, align=2, seed=0).loss(tokens, step=0)
    by_layer = dict(zip(config.index_source_layer_ids, found, strict=True))
    reindex = next(i for i in by_layer if config.mode(i) == "reindex")
    source = by_layer.pop(config.candidate_source_layer_id)
    assert not hasattr(source, "inside")
    queries = by_layer.pop(reindex)
    assert queries.inside.shape == queries.hidden.shape == (2, 24, 24)
    assert (queries.inside.sum(-1) <= config.candidate_topk_blocks * config.candidate_block_size).all()
    mass = queries.mass()
    assert mass[queries.hidden].sum() == 0
    torch.testing.assert_close(mass.sum(-1), torch.ones(2, 24))


def learning(around: Callable[[], AbstractContextManager]) -> set[str]:
    """Parameters of the draft's heads that its loss reaches."""
    tokens = torch.from_numpy(babble().train.tokens[: 2 * 17].reshape(2, 17))
    objective = Draft(tiny(dtype=torch.float32), anchors=4, seed=0)
    with around():
        total = objective.loss(tokens, step=0).terms["total"]
    named = {name: p for name, p in objective.parameters() if p.requires_grad and "_head." in name}
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {n.split(".", 2)[2] for n, g in zip(named, gradients, strict=True) if g is not None and g.abs().any()}


def test_markov_and_confidence_can_be_left_out() -> None:
    markov, embed, confidence = "markov_head.head.weight", "markov_head.embed.weight", "confidence_head.proj.weight"
    assert learning(nullcontext) == {markov, embed, confidence}
    assert learning(changes.no_markov) == {embed, confidence}  # confidence reads the previous token
    assert learning(changes.no_confidence) == {markov, embed}
    assert learning(changes.drafts_alone) == set()


def test_overlap_counts_what_both_chose() -> None:
    free, pooled = torch.tensor([[0, 2, 5], [1, -1, -1]]), torch.tensor([[2, 5, 6], [0, -1, -1]])
    assert overlap(free, pooled, 7) == 2 / 4


def leave(folder: Path, name: str) -> None:
    if name == "bad":
        raise ValueError(name)
    (folder / name).touch()


def test_what_follows_a_failure_is_left_out(tmp_path: Path) -> None:
    def piece(name: str, *then: Piece) -> Piece:
        return Piece(name, leave, (tmp_path, name), list(then))

    done = list(side_by_side([piece("a", piece("a1"), piece("a2")), piece("bad", piece("never")), piece("b")], 1))
    assert [p.what for p in done] == ["a", "a1", "a2", "bad", "b"]
    assert [p.what for p in done if p.error] == ["bad"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a1", "a2", "b"]


@pytest.mark.slow
def test_a_study_leaves_a_record_and_repeats_nothing(tmp_path: Path) -> None:
    arguments = ["study", "pool", "--quick", "--seeds", "2", "--runs", str(tmp_path / "runs"), "--into", str(tmp_path)]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    record = json.loads((tmp_path / "study_pool.json").read_text(encoding="utf-8"))
    assert [(r["variant"], r["seed"]) for r in record["results"]] == [
        (v, s) for v in ("3", "6", "12", "all") for s in (0, 1)
    ]
    assert first.output.count("trained") == 2 and first.output.count("measured") == 8
    whole(STUDIES["pool"], record, seeds=2)
    again = CliRunner().invoke(app, arguments)
    assert "trained" not in again.output and "measured" not in again.output
    assert json.loads((tmp_path / "study_pool.json").read_text(encoding="utf-8"))["results"] == record["results"]


def test_the_list_names_every_variant_and_a_wrong_name_is_refused() -> None:
    listed = CliRunner().invoke(app, ["study", "list"]).output
    assert all(v.says in listed and s.question in listed for s in STUDIES.values() for v in s.variants)
    assert isinstance(CliRunner().invoke(app, ["study", "wrong"]).exception, StudyError)
    refused = CliRunner().invoke(app, ["study", "mhc", "--device", "tpu"]).exception
    assert isinstance(refused, StudyError) and "device = tpu" in str(refused)


def whole(study: Study, record: dict, *, seeds: int) -> None:
    """Every variant from as many seeds, all with the same finite measures."""
    runs: dict[str, list[int]] = {v.name: [] for v in study.variants}
    names = {frozenset(run["measures"]) for run in record["results"]}
    assert len(names) == 1 and {"bits_per_byte", "recall"} <= next(iter(names))
    for run in record["results"]:
        runs[run["variant"]].append(run["seed"])
        assert all(math.isfinite(value) for value in run["measures"].values())
        assert run["parameters"] == pytest.approx(parameters(SHAPE), rel=1e-3)
    assert all(sorted(found) == list(range(len(found))) and len(found) >= seeds for found in runs.values())


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_shipped_records_are_whole(study: Study) -> None:
    path = paths.records_dir() / f"study_{study.name}.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    whole(study, record, seeds=3)
    assert record["machine"]["date"] and record["machine"]["device"]
    settings = dict(record["settings"])
    assert settings.pop("variants") == {v.name: v.says for v in study.variants}
    assert settings.pop("question") == study.question
    assert settings.pop("facts") == {"keys": KEYS, "values": VALUES, "told": TOLD, "asked": ASKED}
    assert settings == asdict(Sizes(device="cuda"))
