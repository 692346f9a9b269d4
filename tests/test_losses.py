"""The losses, by hand and against plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from minidsv41.train import losses
from minidsv41.train.losses import Queries, alignment_loss, balance_loss, draft_loss, update_bias
from tests.babble import seeded


def test_balance_loss_is_one_when_even_and_the_number_of_experts_when_one_gets_all():
    even = torch.tensor([[[0, 1], [2, 3]]])
    assert balance_loss(torch.ones(1, 2, 4), even).item() == pytest.approx(1)
    scores = torch.tensor([[[1.0, 0, 0, 0]]]).expand(1, 8, 4)
    assert balance_loss(scores, torch.zeros(1, 8, 1, dtype=torch.int64)).item() == pytest.approx(4)


def test_balance_loss_is_taken_within_each_sequence():
    """Two sequences that each use one expert only are unbalanced, although the batch is even."""
    ids = torch.tensor([[[0]] * 3, [[1]] * 3])
    scores = torch.nn.functional.one_hot(ids[..., 0], 2).float()
    assert balance_loss(scores, ids).item() == pytest.approx(2)


def test_bias_follows_the_sign_of_the_load():
    bias = torch.zeros(4)
    update_bias(bias, torch.tensor([[0, 1], [0, 1], [0, 2]]))  # loads 3, 2, 1, 0, mean 1.5
    assert bias.tolist() == pytest.approx([-1e-3, -1e-3, 1e-3, 1e-3])


def attention_of(seed: int = 0, *, ratio: int = 2, window: int = 3) -> Queries:
    """Two sequences of 8 tokens, two heads; the second sequence reads no window row before 4 from row 4 on."""
    at = torch.arange(8)
    first = (at - window + 1).clamp(min=0)
    return Queries(
        q=seeded(2, 8, 2, 4, seed=seed).double(),
        entries=seeded(2, 8 // ratio, 4, seed=seed + 1).double(),
        window=seeded(2, 8, 4, seed=seed + 2).double(),
        sink=seeded(2, seed=seed + 3).double(),
        visible=(at + 1) // ratio,
        first=torch.stack([first, torch.where(at >= 4, first.clamp(min=4), first)]),
    )


def test_attention_mass_equals_a_loop():
    queries = attention_of()
    mass = queries.mass()
    for b in range(2):
        for t in range(8):
            entries, rows = queries.entries[b, : queries.visible[t]], queries.window[b, queries.first[b, t] : t + 1]
            total = torch.zeros(len(entries), dtype=torch.float64)
            for q, sink in zip(queries.q[b, t], queries.sink, strict=True):
                scores = torch.cat([entries @ q / 2, rows @ q / 2, sink[None]])
                total += scores.softmax(0)[: len(entries)]
            expected = torch.zeros(4, dtype=torch.float64)
            if len(entries):
                expected[: len(entries)] = total / total.sum()
            assert torch.allclose(mass[b, t], expected, atol=1e-12), (b, t)


def test_alignment_loss_equals_a_loop_and_is_least_where_scores_match():
    queries = attention_of()
    p = queries.mass()
    q, k, w = seeded(2, 8, 3, 4, seed=9).double(), seeded(2, 4, 4, seed=10).double(), seeded(2, 8, 3, seed=11).double()
    total = 0.0
    for b in range(2):
        for t in range(1, 8):  # row 0 sees no complete pair
            n = queries.visible[t]
            scores = (w[b, t, :, None] * (q[b, t] @ k[b, :n].T).relu()).sum(0)
            total += (p[b, t, :n] * (p[b, t, :n].log() - scores.log_softmax(0))).sum()
    assert alignment_loss(q, k, w, queries).item() == pytest.approx(float(total) / 14, abs=1e-12)
    # One key axis for each entry lets the scores be log p + 40 exactly.
    q, k, w = (p.clamp(min=1e-12).log() + 40)[:, :, None], torch.eye(4).double().expand(2, 4, 4), torch.ones(2, 8, 1)
    assert alignment_loss(q, k, w.double(), queries).item() == pytest.approx(0, abs=1e-9)


def test_draft_loss_by_hand():
    """One anchor, two drafts, two tokens: the draft is uniform, the target (0.75, 0.25)."""
    logits = torch.zeros(1, 2, 2)
    target = torch.tensor([[[math.log(3), 0.0]] * 2])
    terms = draft_loss(logits, torch.zeros(1, 2), target, torch.tensor([[0, 1]]))
    assert terms["ce"].item() == pytest.approx(math.log(2))
    assert terms["l1"].item() == pytest.approx(0.5)
    assert terms["confidence"].item() == pytest.approx(math.log(2))
    assert terms["total"].item() == pytest.approx(1.1 * math.log(2) + 0.9 * 0.5)


def test_draft_loss_weighs_early_drafts_more_and_labels_the_overlap():
    logits, target = torch.zeros(1, 2, 2), torch.zeros(1, 2, 2)
    target[0, 0, 0] = math.log(3)
    early = draft_loss(logits, torch.full((1, 2), 30.0), target, torch.zeros(1, 2, dtype=torch.int64))
    weight = 1 / (1 + math.exp(-1 / losses.DRAFT_DECAY))
    assert early["l1"].item() == pytest.approx(0.5 * weight)
    assert early["confidence"].item() == pytest.approx(30 * 0.25 * weight)  # label 0.75 at draft 1, 1 at draft 2
