"""A state that cannot be cut: the delta step, the two-part memory, and how far a hit reaches."""

from __future__ import annotations

import pytest
import torch

from minidsv41.course import figures
from minidsv41.course.claims.states import repeated
from minidsv41.course.faults import f01b
from minidsv41.course.lessons import l01b
from minidsv41.course.pictures import twoparts as pictures
from minidsv41.course.sabotage import sabotage
from minidsv41.course.snapshots import (
    at_branches,
    at_the_end,
    common,
    cut,
    evenly,
    reusable,
    serve,
    traffic,
)
from minidsv41.course.twoparts import TwoParts, added, described
from minidsv41.families import Heads, State, delta
from minidsv41.ledger.deployed import qwen35

AT = dict(tokens=13, state_layers=45, heads=64, dtype="FP32")


@pytest.mark.parametrize(
    ("dtype", "size", "state", "even"), [("BF16", 2, 94_371_840, 3_072), ("FP32", 4, 188_743_680, 6_144)]
)
def test_rows_catch_up_with_the_state(dtype: str, size: int, state: int, even: int):
    m, plain = TwoParts(dtype=dtype), TwoParts(state_layers=0)
    assert (m.state, m.per_token, m.crossover) == (state, 30_720, even)
    assert m.state == int(qwen35(size).parts[1].matrices)
    n = int(m.pays)
    assert n == even // 3
    assert m.held(n) == plain.held(n)
    assert m.held(n - 1) > plain.held(n - 1)
    assert m.held(n + 1) < plain.held(n + 1)


def test_a_memory_of_one_part_never_crosses():
    assert TwoParts(state_layers=60).crossover is None
    assert TwoParts(state_layers=0).pays is None
    assert "never" in described(**AT | {"state_layers": 60})


def test_a_key_stored_with_full_weight_reads_back_and_with_a_misplaced_decay_does_not():
    given = l01b.tokens()[1]
    given["beta"] = torch.ones_like(given["beta"])
    S, k, v = given["S"], given["k"], given["v"]
    wrong = l01b.otherwise(early=True)(**given)[1]
    right = l01b.kda_step(**given)[1]
    reads = [torch.einsum("hkv,hk->hv", state, k) for state in (right, wrong)]
    assert torch.allclose(reads[0], v, atol=1e-12)
    lost = torch.einsum("hkv,hk->hv", S - S * given["g"].exp()[:, :, None], k)
    assert torch.allclose(reads[1], v - lost, atol=1e-12)


def test_fading_alone_bounds_the_norm():
    v = torch.randn(100, 2_000, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bound = (32 / (1 - 0.9**2)) ** 0.5
    norms = [float(added(v[:n], 0.9).norm(dim=-1).mean()) for n in (12, 100)]
    assert norms[0] == pytest.approx(12.5, abs=0.2)
    assert norms[0] < norms[1] < bound
    assert added(v).norm(dim=-1).mean() > 4 * bound


@pytest.mark.parametrize("alpha", [1.0, 0.9])
def test_added_is_what_the_claims_page_repeats(alpha: float):
    g = torch.Generator().manual_seed(0)
    v = torch.randn(50, 12, 32, generator=g, dtype=torch.float64)
    assert torch.allclose(added(v.transpose(0, 1), alpha).norm(dim=-1), repeated(50, alpha=alpha, beta=None))


def test_two_pasts_can_end_in_one_state():
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    decay, weight = one[..., 0] * -0.1, one[..., 0]
    middles = [delta.recurrent(one, one, past * one, decay, weight, 0 * one)[1] for past in (1, 7)]
    ends = [delta.recurrent(one, one, 3 * one, decay, weight, S)[1] for S in middles]
    assert not torch.equal(*middles)
    assert torch.allclose(*ends, atol=1e-12)


def test_rows_can_be_cut_and_a_fold_cannot():
    x = torch.randn(9, 16, generator=torch.Generator().manual_seed(0))
    layer = Heads(hidden=16, heads=2, kv_heads=1, head_dim=8, rope=8).requires_grad_(False)
    whole = layer(x, state := layer.new())
    assert torch.allclose(layer(x[5:], cut(state, 5)), whole[5:], atol=1e-5)
    with pytest.raises(ValueError, match="nothing can be cut off"):
        cut(State(length=9, fixed={"S": x}), 5)


def test_a_hit_reaches_to_the_last_state_inside_it():
    assert reusable(1_801, [2_000]) == 0
    assert reusable(1_801, range(512, 2_001, 512)) == 1_536
    assert reusable(1_801, range(64, 2_001, 64)) == 1_792
    assert reusable(512, [512]) == 512
    assert common((1, 2, 3), (1, 2, 4)) == 2
    assert common((1, 2), (1, 2, 4)) == 2


def test_states_are_saved_only_where_a_prompt_is_run():
    prompts = [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 5)]
    assert serve(lambda *_: [], prompts).run == 11
    assert serve(at_the_end, prompts).run == 7
    late = serve(lambda prompt, seen, hit: [2] if seen else [len(prompt)], prompts)
    assert late.run == 7  # the second prompt was not run at block 2
    with pytest.raises(ValueError, match="at most 2, from 1 to 4"):
        serve(lambda *_: [5], prompts)
    with pytest.raises(ValueError, match="at most 2"):
        serve(lambda *_: [1, 2, 3], prompts)


@pytest.mark.parametrize("seed", range(4))
def test_forks_and_middles_together_beat_either(seed: int):
    prompts = traffic(seed=seed)
    ours = serve(l01b.where, prompts).run
    assert ours < min(serve(p, prompts).run for p in (at_the_end, evenly, at_branches))


def test_serving_in_pieces_is_one_prompt_and_each_fault_spoils_the_place_that_it_must():
    net, x = f01b.layer()
    right = f01b.served()
    assert torch.allclose(right, net(x, net.new()), atol=1e-12)
    first = {"misplaced_decay": 16, "from_nothing": 10, "matrix_alone": 16, "no_fading": 16}
    for name, row in first.items():
        with sabotage(f"01b.{name}"):
            off = (f01b.served() - right).abs().amax(-1) > 1e-6
        assert int(off.nonzero()[0]) == row


def test_each_control_changes_picture_and_readout():
    text, picture = described(**AT), figures.png(pictures.at(**AT))
    for change in (dict(tokens=14), dict(state_layers=30), dict(heads=32), dict(dtype="BF16")):
        assert described(**AT | change) != text
        assert figures.png(pictures.at(**AT | change)) != picture


def test_the_open_exercise_asks_for_less_than_its_text_says():
    assert l01b.PLACES.reference() == 715
    assert sum(map(len, traffic())) == 3_488
