"""What lesson 09 says about drafts: honest for any draft, caught when it lies, pairs that no independent draft gets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.course import figures
from minidsv41.course.drafting import (
    Drafted,
    Overlap,
    best_alone,
    chi_square,
    described,
    distance,
    drafted,
    outgoing,
    pooled,
    reliability,
)
from minidsv41.course.faults import f09
from minidsv41.course.pictures import drafting as pictures
from minidsv41.course.sabotage import sabotage
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.serve.generate import generate
from minidsv41.serve.speculative import Sampling, accept


def dice(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=dice(seed), dtype=torch.float64).mul(2).softmax(-1)


TWO = Overlap(torch.tensor([0.7, 0.3]).double(), torch.tensor([0.5, 0.5]).double())


@pytest.mark.parametrize("seed", range(5))
def test_any_draft_is_honest_and_keeps_the_overlap(seed: int):
    target, draft = random(2, 9, seed=seed)
    found, (out, share) = Overlap(target, draft), outgoing(target, draft, draft)
    assert distance(out, target) < 1e-12
    assert share == pytest.approx(1 - distance(target, draft), abs=1e-12)
    assert float(found.kept.sum()) == pytest.approx(share, abs=1e-12)
    assert float(found.rejected.sum()) == pytest.approx(float(found.residual.sum()), abs=1e-12)


def test_equal_distributions_keep_everything():
    p = random(6)
    out, share = outgoing(p, p, p)
    assert distance(out, p) < 1e-12 and share == pytest.approx(1, abs=1e-12)


def test_exact_sums_are_what_the_package_does():
    drawn, assumed = TWO.draft, torch.tensor([0.2, 0.8]).double()
    out, _ = outgoing(TWO.target, drawn, assumed)
    sampling, n = Sampling(temperature=1.0, generator=dice(1)), 4000
    said = torch.zeros(2)
    for _ in range(n):
        token = sampling.draw(drawn)[None]
        said[accept(TWO.target.expand(2, -1), assumed[None], token, sampling)[0]] += 1
    assert distance(out, TWO.target) > 0.05
    assert chi_square(said, out)[1] > 0.01
    assert chi_square(said, TWO.target)[1] < 1e-6


def test_chi_square_of_a_known_case():
    statistic, chance = chi_square(torch.tensor([60.0, 40.0]).double(), torch.tensor([0.5, 0.5]).double())
    assert statistic == pytest.approx(4.0) and chance == pytest.approx(0.0455, abs=1e-4)


def test_best_alone_is_found_by_no_search():
    weights, following = random(5, seed=3), random(5, 4, seed=4)
    best = best_alone(weights, following)

    def kept(p: Tensor) -> Tensor:
        return torch.minimum(following, p[:, None]).sum(-1) @ weights

    tried = kept(random(20_000, 4, seed=5))
    assert 0 <= best - float(tried.max()) < 0.01
    assert best >= float(kept((weights @ following)[None]))


def test_best_alone_of_two_exclusive_pairs():
    halves, cities = torch.tensor([0.5, 0.5]).double(), torch.eye(2).double()
    assert best_alone(halves, cities) == pytest.approx(0.5)
    assert best_alone(halves, cities[[0, 0]]) == pytest.approx(1.0)
    assert best_alone(torch.tensor([0.8, 0.2]).double(), cities) == pytest.approx(0.8)


def test_pooled_keeps_the_sum():
    found = pooled(p := random(9), torch.tensor([1, 5]))
    assert found[:2].tolist() == p[[1, 5]].tolist() and float(found.sum()) == pytest.approx(1.0, abs=1e-12)


def test_reliability_bins_by_forecast():
    p = torch.tensor([0.05] * 20 + [0.95] * 20 + [1.0, 0.5])
    happened = torch.tensor([False] * 20 + [True] * 10 + [False] * 10 + [True, True])
    low, high = reliability(p, happened)
    assert low == pytest.approx((0.05, 0.0, 20))
    assert high == pytest.approx(((20 * 0.95 + 1) / 21, 11 / 21, 21))


@pytest.fixture(scope="module")
def toy() -> tuple[Model, Tensor, Drafted]:
    model, _ = f09.subject()
    rows = torch.randint(5, model.config.vocab_size, (2, 24), generator=dice(6))
    return model, rows, drafted(model, rows, first=9, every=4)


def test_drafted_agrees_with_a_draft_of_one_place(toy):
    model, rows, many = toy
    assert many.last.tolist() == [9, 13, 17] * 2 and many.seq.tolist() == [0] * 3 + [1] * 3
    batch = Batch.equal(rows[1:, :14])
    keys = SequenceKeys(model.config, batch)
    with torch.no_grad():
        model.mtp.remember(model(batch, keys).features, batch, keys)
        words = iter(rows[1, 15:].tolist())
        one = model.mtp.draft(
            rows[1, 14:15],
            torch.tensor([0]),
            torch.tensor([13]),
            model.embed,
            model.head,
            keys,
            choose=lambda logits: torch.tensor([next(words)]),
        )
        whole = model(Batch.equal(rows[1:]), SequenceKeys(model.config, Batch.equal(rows[1:])))
    torch.testing.assert_close(many.base[4], one.base_logits[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(many.corrected[4], one.logits[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(many.confidence[4], one.confidence[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(many.target[4], model.logits(whole.hidden)[14:19], rtol=0, atol=1e-9)
    assert many.previous[4].tolist() == rows[1, 14:19].tolist()


def test_shares_are_overlaps(toy):
    _, _, many = toy
    for markov, logits in ((True, many.corrected), (False, many.base)):
        found = many.overlap(3, 2, markov=markov)
        assert float(many.shares(logits)[3, 2]) == pytest.approx(float(found.kept.sum()), abs=1e-12)
    cold = many.overlap(3, 2, temperature=0.01)
    assert cold.target.max() > many.overlap(3, 2).target.max()


def test_readout_and_pictures_change_with_the_place(toy):
    _, _, many = toy
    words = [str(i) for i in range(many.base.shape[-1])]
    one, two = many.overlap(0, 0), many.overlap(1, 0)
    assert described(one, words) != described(two, words)
    assert described(TWO, ["a", "b"]) == (
        "kept 80.0% · rejected 20.0% · residual 20.0%<br>target's favourite a, draft's a"
    )
    assert figures.png(pictures.overlap(one, words)) != figures.png(pictures.overlap(two, words))


def test_small_pictures():
    bins = reliability(torch.linspace(0, 0.99, 200), torch.arange(200) % 3 == 0)
    runs = {"tokens": {"both": [1.0, 2.0], "neither": [1.0, 1.5]}, "error": {"both": [0.1], "neither": [0.2]}}
    for fig in (pictures.reliability({"before": bins, "after": bins}), pictures.dots(runs)):
        assert figures.png(fig)[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", ["09.deaf_draft", "09.late_features", "09.uncorrected_draft", "09.whole_target"])
def test_greedy_text_survives_every_fault(name: str):
    model, ids = f09.subject()
    with sabotage(name):
        text, _ = f09.gained(0.0)
    assert text == list(generate(model, ids, max_new=9))


def test_faults_of_honesty_show_only_when_sampling():
    before = f09.gained(0.0)[1]
    with sabotage("09.whole_target"):
        assert torch.equal(f09.gained(0.0)[1], before)
        biased = f09.spoken()
    assert chi_square(torch.tensor(f09.spoken()).double(), TWO.target)[1] > 0.01
    assert chi_square(torch.tensor(biased).double(), TWO.target)[1] < 0.01


def test_the_release_drafts_five_from_the_inputs_of_its_last_three_layers():
    c = ModelConfig.preset("flash")
    assert (c.num_nextn_predict_layers, c.dspark_block_size, c.dspark_markov_rank) == (3, 5, 256)
    assert c.dspark_target_layer_ids == (37, 38, 39) and c.num_hidden_layers == 40
    assert 2 * c.vocab_size * c.dspark_markov_rank == 66_191_360


def test_features_are_streams_where_a_layer_begins():
    model, ids = f09.subject()
    trace = model.trace(ids)
    widths = trace["dspark.main_hidden"].unflatten(-1, (3, -1))
    for part, layer in enumerate(model.config.dspark_target_layer_ids):
        before = trace[f"L{layer - 1}.stream_after_ffn"].mean(1)
        torch.testing.assert_close(widths[:, part], before, rtol=0, atol=1e-9)
