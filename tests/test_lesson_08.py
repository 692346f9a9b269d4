"""What lesson 08 says about tables of phrases: rows to the last digit, collisions, twins, knock-outs."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from minidsv41 import paths
from minidsv41.checkpoint import load
from minidsv41.config import ModelConfig
from minidsv41.course import figures
from minidsv41.course.lessons import l08
from minidsv41.course.lookup import Library, described, label
from minidsv41.course.phrases import Phrases, distinct, forgotten, hashing, read, rows_of, shared
from minidsv41.course.pictures import engram as pictures
from minidsv41.course.twins import differences, joined, twins
from minidsv41.ledger import params
from minidsv41.model import Model
from minidsv41.model.engram import Engram, multipliers
from minidsv41.replaced import replaced
from minidsv41.tokens import load_tokenizer

FLASH, TOY = ModelConfig.preset("flash"), ModelConfig.preset("toy")
GOLDEN = json.loads((Path(__file__).parent / "golden" / "engram" / "hash_vectors.json").read_text(encoding="utf-8"))
each_layer = pytest.mark.parametrize("layer", FLASH.engram_layer_ids)


@pytest.fixture(scope="module")
def model() -> Model:
    return load(paths.checkpoint_dir("toy"), dtype=torch.float64)


@pytest.fixture(scope="module")
def library(model: Model) -> Library:
    text = (paths.text_dir() / "plays" / "hamlet.txt").read_text(encoding="utf-8")
    tokenizer = load_tokenizer()
    return Library(model, tokenizer, model.token_map[tokenizer.encode(text[:30_000]).ids])


@each_layer
def test_rows_of_the_released_hash_to_the_last_digit(layer: int):
    gram = torch.tensor([[3, 1, 2, 99_091]])
    found = torch.cat([rows_of(hashing(FLASH, layer), gram[:, :n]) for n in (2, 3, 4)], 1)
    assert found[0].tolist() == GOLDEN["single"]["rows"][str(layer)]


def test_tables_are_more_than_a_quarter_of_the_parameters():
    tables, rest = int(params.engram_table_params(FLASH)), int(params.backbone_params(FLASH))
    assert round(tables / 1e9, 1) == 196.6
    assert round((tables + rest) / 1e9) == 748
    assert tables > (tables + rest) / 4


@each_layer
def test_different_mixes_meet_in_at_most_two_of_eight_heads(layer: int):
    for heads in hashing(FLASH, layer).primes:
        assert all(math.gcd(p, q) == 1 for p, q in combinations(heads, 2))
        assert heads[0] * heads[1] < 2**63 < heads[0] * heads[1] * heads[2]
    assert all(m * (FLASH.engram_compressed_vocab_size - 1) < 2**63 for m in multipliers(FLASH, layer))


@each_layer
def test_twins_meet_in_all_heads_of_their_order_and_nowhere_else(layer: int):
    pairs = torch.from_numpy(twins(multipliers(FLASH, layer), FLASH.engram_compressed_vocab_size))
    assert len(pairs)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert 0 <= int(pairs.min()) <= int(pairs.max()) < FLASH.engram_compressed_vocab_size
    for at in FLASH.engram_layer_ids:
        for n in (2, 3, 4):
            a, b = (rows_of(hashing(FLASH, at), pairs[:, side, :n]) for side in (0, 1))
            assert (a == b).all() if (at, n) == (layer, 4) else not (a == b).any()


def test_join_finds_every_pair_that_agrees():
    a, b = np.random.default_rng(0).integers(0, 2**12, (2, 300))
    i, j = joined(a, b, 5)
    assert set(zip(i.tolist(), j.tolist(), strict=True)) == {
        (i, j) for i in range(300) for j in range(300) if a[i] % 32 == b[j] % 32
    }
    pairs, xor = differences(12_345, 2**14 + 3)
    assert pairs.tolist() == [[0, 2**14], [1, 2**14 + 1], [2, 2**14 + 2]]
    assert (xor % 2**14 == 0).all()


def test_distinct_n_grams_are_those_of_the_text_newest_first():
    ids = np.array([5, 6, 5, 6, 7, 5, 6])
    assert {tuple(g) for g in distinct(ids, 2).tolist()} == {(6, 5), (5, 6), (7, 6), (5, 7)}
    assert [6, 5, 7] in distinct(ids, 3).tolist()


def test_collisions_are_as_many_as_birthdays():
    grams = torch.randperm(3_000 * 3_000, generator=torch.Generator().manual_seed(0))[:20_000]
    grams = torch.stack([grams // 3_000, grams % 3_000], 1)
    engram = hashing(ModelConfig.preset("geometry"), 1)
    company = shared(rows_of(engram, grams))
    load = len(grams) / engram.primes[0][0]
    assert company.double().mean(0).tolist() == pytest.approx([1 - math.exp(-load)] * 8, abs=0.02)
    assert float(company.all(1).double().mean()) == pytest.approx((1 - math.exp(-load)) ** 8, abs=0.01)


def test_shared_compares_rows_head_by_head():
    rows = torch.tensor([[1, 4], [1, 5], [2, 4]])
    assert shared(rows).tolist() == [[True, True], [True, False], [False, True]]


def test_known_phrases():
    phrases = Phrases(np.array([1, 2, 3, 4, 1, 3]), size=9)
    assert phrases.holds(np.array([1, 2, 3, 3, 4])).tolist() == [
        [False, False, False],
        [True, False, False],
        [True, True, False],
        [False, False, False],
        [True, False, False],
    ]
    assert phrases.length(np.array([8, 1, 2, 3, 4])).tolist() == [1, 1, 2, 3, 4]


def test_empty_tables_are_as_if_engram_were_not_there_and_come_back(model: Model):
    passage = torch.randint(5, TOY.vocab_size, (1, 40), generator=torch.Generator().manual_seed(0))
    before = {name: p.clone() for name, p in model.named_parameters() if "engram.embed" in name}
    usual = read(model, passage)[0]
    with forgotten(model):
        without = read(model, passage)[0]

    def nothing(original):
        return lambda self, X, rows, alive, note: original(self, X, rows, torch.zeros_like(alive), note)

    with replaced(Engram, "forward", nothing):
        assert torch.allclose(read(model, passage)[0], without, atol=1e-9)
    assert not torch.allclose(usual, without)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters() if name in before)


def test_one_order_can_be_forgotten_alone(model: Model):
    primes = model.layers[1].engram.primes
    with forgotten(model, (3,)):
        empty = (model.layers[1].engram.embed.weight == 0).all(1)
    first, last = sum(primes[0]), sum(primes[0]) + sum(primes[1])
    assert empty[first:last].all()
    assert not empty[:first].all()
    assert not empty[last:].all()


def test_exercise_pairs_are_judged_by_the_package():
    (engram, vocab), asked = l08.known()[2], l08.asked()[2]
    a, b = l08.meet(**asked)
    rows = rows_of(engram, torch.tensor([a, b]))
    assert (rows[0] == rows[1]).nonzero()[:, 0].tolist() == [asked["head"]]
    with pytest.raises(ValueError, match=f"2 ids below {vocab}"):
        l08.met(lambda *_: ((0, vocab), (1, 2)), **asked)


def test_labels_need_no_chinese_font(library: Library):
    names = [label(library.tokenizer, i) for i in range(TOY.vocab_size)]
    assert all(name.isascii() or name.strip("⏎…").isascii() for name in names)
    assert label(library.tokenizer, library.tokenizer.encode("李").ids[0]) == "U+674E"
    assert label(library.tokenizer, library.tokenizer.encode(" lord").ids[0]) == "lord"


def test_widget_follows_token_layer_and_text(library: Library):
    found = library.find("To be, or not to be <now>")
    assert found.rows[1].shape == found.crowd[1].shape == (len(found.names), 3, 4)
    said = [described(found, token, layer) for token, layer in ((1, 1), (2, 1), (1, 3))]
    assert len(set(said)) == 3
    assert "seen in training" in said[0]
    assert "<now>" not in described(found, 31, 1)
    pngs = [figures.png(pictures.looked_up(found, token, layer)) for token, layer in ((1, 1), (2, 1), (1, 3))]
    assert len(set(pngs)) == 3
    assert max(map(len, pngs)) < 20_000
    assert library.find("").names == ["space"]
    assert sum(int(library.crowds[1][a:b].sum()) for a, b in ((0, TOY.engram_primes[0][0][0]),)) == len(
        distinct(library.ids, 2)
    )


def test_figures_are_small():
    points = {n: [(0.1, 0.1, 0.0), (2.0, 0.9, 0.3)] for n in (2, 3, 4)}
    part = ([("my", 1), ("lord", 2)], torch.rand(3, 2), torch.tensor([1.0, -0.5, 2.0]))
    root = {"a": torch.sigmoid, "b": lambda s: s.sigmoid() / 2}
    for fig in (
        pictures.crowded(points, lambda load: (1 - torch.exp(-load), (1 - torch.exp(-load)) ** 8)),
        pictures.roots(root, torch.linspace(-2, 2, 50, dtype=torch.float64)),
        pictures.sentences([part, part], (1, 3)),
    ):
        assert len(figures.png(fig)) < 20_000
