"""Things to look up: what is planted, where, and how it is counted."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from minidsv41.train.data import Batches, corpus
from minidsv41.train.recall import (
    CUE,
    FIRST,
    FORMS,
    HAN_FIRST,
    HAN_NAMES,
    HAN_SECOND,
    NAMES,
    PLANTED,
    SECOND,
    SPAN,
    Lookups,
    Mixed,
    recall,
    vocabulary,
)

TEXT = corpus().train.tokens


@pytest.mark.parametrize("length", [64, 256, 1024])
def test_each_answer_stands_where_its_distance_says(length: int) -> None:
    tokens, distance = Lookups(TEXT, length=length, seed=3)(8, step=5)
    assert tokens.shape == distance.shape == (8, length + 1)
    row, at = distance.nonzero(as_tuple=True)
    assert torch.equal(tokens[row, at], tokens[row, at - distance[row, at]])
    assert 0.05 < len(at) / tokens.numel() < PLANTED / 2


def test_most_distances_are_longer_than_a_window() -> None:
    asked = Lookups(TEXT, length=256, seed=0)(64, step=0)
    distance = asked.distance[asked.distance > 0]
    assert (distance > 32).double().mean() > 0.75
    assert distance.max() > 200


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_be_asked_for_alone(form: str) -> None:
    assert Lookups(TEXT, length=256, seed=0, forms=(form,))(2, step=0).answers.any(dim=1).all()


def test_sequences_depend_on_seed_and_step_alone() -> None:
    first, again = (Lookups(TEXT, length=128, seed=1)(4, step=7) for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, Lookups(TEXT, length=128, seed=1)(4, step=8).tokens)
    assert not torch.equal(first.tokens, Lookups(TEXT, length=128, seed=2)(4, step=7).tokens)


def test_tests_ask_for_names_that_training_never_does() -> None:
    train, test = (Lookups(TEXT, length=256, seed=0, held_out=side).words for side in (False, True))
    for names in ("names", "han_names"):
        assert not set(train[names]) & set(test[names])
        assert len(train[names]) > 3 * len(test[names]) > 0


@pytest.mark.parametrize("kind", ["names", "first", "second", "han_names", "han_first", "han_second"])
def test_every_word_of_a_fact_is_one_token_and_none_stands_twice(kind: str) -> None:
    lists = {"names": NAMES.split(), "first": FIRST.split(), "second": SECOND.split()}
    words = lists | {"han_names": HAN_NAMES, "han_first": HAN_FIRST, "han_second": HAN_SECOND}
    assert len(set(vocabulary()[kind])) == len(words[kind])


def test_repeats_are_told_by_the_copy_before() -> None:
    tokens, distance = Lookups(TEXT, length=256, seed=0).repeats(32, step=1)
    row, at = distance.nonzero(as_tuple=True)
    assert torch.equal(tokens[row, at], tokens[row, at - distance[row, at]])
    assert (distance[:, SPAN.stop + CUE :] > 0).all() and not distance[:, : SPAN.start + CUE].any()
    assert len(distance.max(dim=1).values.unique()) > 8


def test_what_is_to_be_learned_grows_at_equal_tokens_a_step() -> None:
    text = Batches(tokens=TEXT, batch_size=8, length=128, seed=0)
    mixed = Mixed(text, Lookups(TEXT, length=128, seed=0), share=6, weight=2.0, steps=100)
    batches = {step: mixed(step)[0] for step in (0, 30, 99)}
    assert [tuple(tokens.shape) for tokens in batches.values()] == [(16, 65), (16, 65), (8, 129)]
    halves = batches[30][:4].unflatten(0, (2, 2))
    assert torch.equal(torch.cat([halves[:, 0], halves[:, 1, 1:]], dim=1), text(30)[:2])


def test_recall_counts_what_can_be_looked_up_and_nothing_else() -> None:
    asked = Lookups(TEXT, length=256, seed=0)(8, step=0)
    near = asked.distance[:, 1:] <= 64

    def knows(answers: torch.Tensor):
        right = torch.where(answers, asked.tokens[:, 1:], 0)
        rows = iter(F.one_hot(right, 4096).float().split(4))
        return lambda tokens: next(rows)

    assert recall(knows(asked.answers), asked, batch=4)["recall"] == 1
    assert recall(knows(~asked.answers), asked, batch=4)["recall"] == 0
    some = recall(knows(near), asked, batch=4)
    assert (some["1-32"], some["33-64"], some["65-128"]) == (1, 1, 0)
    assert 0 < some["recall"] < 1


def test_a_mixed_batch_keeps_its_text_and_weighs_nothing_else_but_answers() -> None:
    text = Batches(tokens=TEXT, batch_size=4, length=64, seed=0)
    lookups = Lookups(TEXT, length=64, seed=0)
    tokens, weight = Mixed(text, lookups, share=3, weight=5.0)(2)
    assert torch.equal(tokens[:1], text(2)[:1])
    assert torch.equal(tokens[1:], lookups(3, 2).tokens)
    assert weight[0].eq(1).all()
    assert torch.equal(weight[1:], 5.0 * lookups(3, 2).answers)
    plain, none = Mixed(text, lookups, share=0, weight=5.0)(2)
    assert torch.equal(plain, text(2)) and none is None
