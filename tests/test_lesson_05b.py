"""Lesson 05b: six prompts, what a choice keeps, what it costs, and the slot for a selector of one's own."""

from __future__ import annotations

import pytest
import torch

from minidsv41 import paths
from minidsv41.config import ModelConfig
from minidsv41.course import dial, sparsity
from minidsv41.course.drowned import NEEDLE, POOL, drown
from minidsv41.course.lessons.l05b import groups, recalling
from minidsv41.course.mass import attention_mass
from minidsv41.course.sharing import keys_read
from minidsv41.course.sight import Sight, everything, scored
from minidsv41.course.tasks import LENGTH, QUESTION, tasks
from minidsv41.ledger import bytes as books
from minidsv41.ops.select import lowest_topk
from minidsv41.tokens import load_tokenizer


@pytest.fixture(scope="module")
def needle():
    model = recalling()
    return model, model.trace(tasks()["needle"].ids)


def test_every_prompt_tells_its_answers_before_it_asks():
    for name, task in tasks().items():
        assert len(task.ids) == LENGTH, name
        assert {int(task.ids[t]) for t in task.told} == set(task.answers), name
        assert task.asked.stop == LENGTH and (name == "text") == (not task.answers)
    decode = load_tokenizer().decode
    for name in ("needle", "sink", "tie"):
        assert decode(tasks()[name].ids.tolist()).endswith(QUESTION)
    assert tasks()["tie"].said == "dark or holy"


def test_the_network_answers_what_is_known():
    model = recalling()
    for name in ("needle", "copy", "sink", "periodic"):
        task = tasks()[name]
        assert model.trace(task.ids)["logits"][-1].argmax() in task.answers, name


def test_a_choice_of_every_entry_is_the_network_without_a_choice(needle):
    model, trace = needle
    own = model.config
    with sparsity.selecting(model, 999, LENGTH):
        every = model.trace(trace["ids"])
    assert model.config is own
    assert all(
        ((every[f"L{layer}.idx.topk"] >= 0).sum(1) == torch.arange(1, 257) // own.ratio(layer)).all()
        for layer in (1, 4, 6)
    )


def test_more_entries_never_keep_less_and_no_selector_beats_the_oracle():
    ks = [1, 4, 16, 64]
    curves = {name: sparsity.curve(groups(), select, ks) for name, select in sparsity.SELECTORS.items()}
    for points in curves.values():
        assert [p.recall for p in points] == sorted(p.recall for p in points)
        assert all(p.recall <= best.recall for p, best in zip(points, curves["oracle"], strict=True))
    entry, key = (int(rule(recalling().config)) for rule in (books.main_entry_bytes, books.index_entry_bytes))
    assert [p.size for p in curves["random"]] == [3 * k * entry for k in ks]
    assert curves["indexer"][0].size - curves["random"][0].size == pytest.approx(key * 117.3, rel=0.05)


def test_the_indexer_of_the_lab_chooses_as_the_network_does():
    model = recalling()
    for name, g in groups().items():
        trace = model.trace(g.task.ids)
        assert torch.equal(sparsity.indexer(g, model.config.index_topk), trace["L1.idx.topk"]), name


def test_recency_and_sink_reads_the_first_and_the_newest():
    g = groups()["text"]
    assert sparsity.recent(g, 8)[-1].tolist() == [0, 1, 2, 3, 124, 125, 126, 127]
    assert sparsity.recent(g, 2)[-1].tolist() == [0, 127]


def test_a_snapshot_replaces_weights_and_leaves_none_behind(needle):
    model, trace = needle
    folder = paths.checkpoint_dir("recall")
    before = trace["L1.idx.scores"]
    early = sparsity.scores_by(model, trace, 1, folder / "indexer-000.safetensors")
    assert early.shape == before.shape and (early.isinf() == before.isinf()).all()
    assert not torch.equal(lowest_topk(early, 8), lowest_topk(before, 8))
    assert torch.equal(model.trace(trace["ids"])["L1.idx.scores"], before)


def test_a_raised_sink_is_what_attention_would_compute(needle):
    model, trace = needle
    mass = attention_mass(model, trace, 6)
    asked = attention_mass(model, trace, 6, sink=model.layers[6].attn.attn_sink + 2)
    opened = sparsity.opened(mass, 2)
    for name in ("window", "entries", "sink"):
        assert torch.allclose(getattr(opened, name), getattr(asked, name), atol=1e-12)
    assert sparsity.needed(opened, 255, 0.05) <= sparsity.needed(mass, 255, 0.05)


def test_needed_leaves_no_more_than_the_tolerance(needle):
    model, trace = needle
    mass = attention_mass(model, trace, 6)
    k = sparsity.needed(mass, 255, 0.1)
    lost = lambda k: (mass.entries[255].sum() - mass.captured(mass.best(k))[255].sum()) / 4  # noqa: E731
    assert lost(k) <= 0.1 < lost(k - 1)


def test_lost_and_kept_are_all_that_a_head_has(needle):
    model, trace = needle
    mass, topk = attention_mass(model, trace, 3), trace["L1.idx.topk"]
    kept, whole = sparsity.kept(mass, topk, 200)
    lost = sparsity.lost(mass, topk, 200, 1, 128)
    assert not {e for e, _ in lost} & set(topk[200].tolist())
    assert kept[1] + sum(p for _, p in lost) == pytest.approx(whole[1].item())


def test_what_is_told_more_often_needs_more_entries():
    model, ks = recalling(), (3, 8, 16, 256)
    once, often = (dial.ask(model, dial.often(times), ks) for times in (1, 8))
    assert dial.enough(once) == 3 and dial.enough(often) == 16
    assert often[8].forgotten > once[8].forgotten and once[256].forgotten == 0


def test_what_crowds_the_answer_out_is_the_question_said_before():
    model, ids = recalling(), dial.often(8)
    with sparsity.selecting(model, 8, len(ids)):
        chosen = model.trace(ids)["L1.idx.topk"][-1]
    assert {load_tokenizer().decode(ids[2 * e : 2 * e + 2].tolist()) for e in chosen.tolist()} == {" Juliet is"}


def test_the_needle_leaves_the_pool_with_the_first_block_too_many():
    found = [drown(3.5, n) for n in range(20)]
    assert [d.rank for d in found] == list(range(1, 21))
    assert [d.later for d in found] == [d.block in d.pool for d in found] == [n + 1 < POOL.blocks for n in range(20)]
    assert all(d.wanted and d.block == NEEDLE // POOL.size and len(d.pool) == POOL.blocks for d in found)


def test_choosing_reads_thirty_times_what_it_gathers_at_a_million():
    flash = ModelConfig.preset("flash")
    gathered = 38 * flash.index_topk * int(books.main_entry_bytes(flash))
    assert keys_read(flash, 1_048_576) / gathered == pytest.approx(32.6, abs=0.05)
    assert keys_read(flash, 12_676) <= gathered < keys_read(flash, 12_680)


def test_a_key_is_paid_once_and_only_what_is_visible_may_be_read():
    seen = Sight(0, 3, 2, [], torch.tensor([1.0, 3.0, 2.0, -torch.inf]), set())
    assert seen.scores([0, 0, 1]) == {0: 1.0, 1: 3.0} and seen._opened == {0, 1}
    with pytest.raises(IndexError, match="entry 3: visible are 0 to 2"):
        seen.scores([3])
    assert everything(seen) == [1, 2]
    one = {"needle": groups()["needle"]}
    with pytest.raises(ValueError, match="3 entries chosen: at most 2"):
        scored(one, lambda s: [0, 1, 2], 2)
    with pytest.raises(IndexError, match="chosen: visible are"):
        scored(one, lambda s: [s.visible], 2)
    assert scored(one, lambda s: [], 2)["needle"] == sparsity.Point(0, 0)


def test_the_decoder_needs_no_entry_to_answer_and_the_encoder_does(needle):
    model, trace = needle
    word = tasks()["needle"].answers[0]
    for layers, knows in ((range(4, 8), True), (range(1, 4), False)):
        with sparsity.without_entries(layers):
            assert (model.trace(trace["ids"])["logits"][-1].argmax() == word) == knows
