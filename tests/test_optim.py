"""The three update rules against hand-computed cases."""

import math

import pytest
import torch
from torch import nn

from minidsv41.train import optim
from minidsv41.train.optim import Optimizer, lr_factor, newton_schulz, rule, sinkhorn_balance


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def drive(name: str, start: torch.Tensor, gradients: list[torch.Tensor], *, lr: float, stacks=None) -> torch.Tensor:
    """Weights after one step per gradient."""
    p = nn.Parameter(start.clone())
    optimizer = Optimizer([(name, p)], stacks=stacks or {})
    for g in gradients:
        p.grad = g.clone()
        optimizer.step(lr)
    return p.detach()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("embed.weight", "embedding"),
        ("head.weight", "embedding"),
        ("mtp.2.markov_head.embed.weight", "embedding"),
        ("layers.1.engram.embed.weight", "table"),
        ("layers.1.engram.wkv.weight", "matrix"),
        ("layers.1.engram.q_weight", "gain"),
        ("layers.0.attn.q_norm.weight", "gain"),
        ("norm.weight", "gain"),
        ("layers.0.attn.attn_sink", "scalar"),
        ("layers.0.hc_ffn_base", "scalar"),
        ("layers.0.hc_ffn_scale", "scalar"),
        ("layers.0.hc_ffn_fn", "matrix"),
        ("layers.0.ffn.gate.bias", "balance"),
        ("layers.0.ffn.gate.bias_vl", "balance"),
        ("layers.0.ffn.gate.weight", "matrix"),
        ("layers.0.ffn.experts.w1", "matrix"),
        ("layers.2.attn.indexer.weights_proj.weight", "matrix"),
    ],
)
def test_rule_by_name(name, kind):
    assert rule(name) == kind


def test_a_vector_without_a_rule_is_refused():
    with pytest.raises(ValueError, match=r"layers.0.attn.bias has shape \[3\]"):
        Optimizer([("layers.0.attn.bias", nn.Parameter(torch.zeros(3)))], stacks={})


@pytest.mark.parametrize("shape", [(5, 16, 24), (2, 24, 16), (1, 1, 7)])
def test_newton_schulz_orthogonalises(shape):
    x = newton_schulz(seeded(*shape).double())
    values = torch.linalg.svdvals(x)
    assert values.shape[-1] == min(shape[1:])
    assert (values - 1).abs().max() < 0.01


def test_newton_schulz_keeps_the_singular_vectors():
    m = seeded(3, 6, 9).double()
    u, _, vh = torch.linalg.svd(m, full_matrices=False)
    assert torch.allclose(newton_schulz(m), u @ vh, atol=0.02)


def test_newton_schulz_does_not_depend_on_the_cut(monkeypatch):
    m = seeded(5, 8, 8)
    whole = newton_schulz(m)
    monkeypatch.setattr(optim, "CACHED", 2 * 64)
    assert torch.allclose(newton_schulz(m), whole, atol=1e-6)


def test_newton_schulz_of_nothing_is_nothing():
    assert newton_schulz(torch.zeros(2, 4, 6)).abs().max() == 0


def test_muon_update_has_the_stated_size_and_decay():
    start, g, lr = seeded(16, 64), seeded(16, 64, seed=1), 0.01
    update = start * (1 - lr * optim.WEIGHT_DECAY) - drive("w.weight", start, [g], lr=lr)
    assert update.square().mean().sqrt().item() == pytest.approx(0.18 * lr, rel=0.01)
    assert torch.allclose(update @ update.mT / (lr**2 * 0.18**2 * 64), torch.eye(16), atol=0.02)


def test_muon_momentum_is_nesterov():
    """Second step: M = 0.95 g1 + g2, direction 0.95 M + g2."""
    g1, g2, lr = seeded(8, 8, seed=1), seeded(8, 8, seed=2), 0.1
    one, two = (drive("w.weight", seeded(8, 8), gs, lr=lr) for gs in ([g1], [g1, g2]))
    expected = newton_schulz((0.95 * (0.95 * g1 + g2) + g2)[None])[0] * lr * 0.18 * math.sqrt(8)
    assert torch.allclose(one * (1 - lr * 0.1) - two, expected, atol=1e-6)


def test_experts_and_heads_are_orthogonalised_apart():
    start, g, lr = seeded(3, 8, 8), seeded(3, 8, 8, seed=1), 0.1
    stacked = drive("ffn.experts.w1", start, [g], lr=lr)
    alone = torch.stack([drive("w.weight", s, [x], lr=lr) for s, x in zip(start, g, strict=True)])
    assert torch.allclose(stacked, alone, atol=1e-6)
    heads = drive("attn.wq_b.weight", start.flatten(0, 1), [g.flatten(0, 1)], lr=lr, stacks={"attn.wq_b.weight": 3})
    assert torch.allclose(heads, alone.flatten(0, 1), atol=1e-6)
    whole = drive("attn.wq_b.weight", start.flatten(0, 1), [g.flatten(0, 1)], lr=lr)
    assert not torch.allclose(whole, heads, atol=1e-3)


def test_sinkhorn_of_a_hand_computed_matrix():
    """[[3, 4], [0, 0]]: the columns have one entry each and become 1, so the row ends as (1, 1) / sqrt 2."""
    u = sinkhorn_balance(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert torch.allclose(u, torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, 0.0]]))


def test_sinkhorn_equals_the_plain_alternation():
    m = seeded(20, 6).double()
    m[3] = 0
    u = m.clone()
    for k in range(1, 12):
        axis = 1 if k % 2 else 0
        u = u / (u.norm(dim=axis, keepdim=True) + 1e-20)
    assert torch.allclose(sinkhorn_balance(m), u, atol=1e-12)


def test_sinkhorn_rows_below_the_threshold_are_dropped():
    m = torch.ones(4, 3)
    m[2] *= 1e-4
    norms = sinkhorn_balance(m).norm(dim=1)
    assert torch.allclose(norms, torch.tensor([1.0, 1.0, 0.0, 1.0]))


@pytest.mark.parametrize(("name", "speed"), [("embed.weight", 1), ("layers.1.engram.embed.weight", 5)])
def test_sinkhorn_momentum_moves_live_rows_by_gamma_lr(name, speed):
    start, g, lr = seeded(10, 4), seeded(10, 4, seed=1), 0.01
    g[7] = 0
    moved = start - drive(name, start, [g], lr=lr)
    rms = moved.square().mean(dim=1).sqrt()
    assert rms[7] == 0
    assert torch.allclose(rms[torch.arange(10) != 7], torch.tensor(0.18 * lr * speed), rtol=1e-3)


def test_a_row_hit_once_keeps_moving_at_full_size_for_a_while():
    """Momentum is re-normalised, so the row moves by 0.18 until its norm is 1e-3 of the mean norm.

    Row 0 is hit at step 0 only, row 1 at every later step, by a gradient of norm 2 each.
    """
    p = nn.Parameter(torch.zeros(2, 4))
    optimizer = Optimizer([("embed.weight", p)], stacks={})
    sizes = []
    for step in range(120):
        before = p.detach().clone()
        p.grad = torch.zeros(2, 4).index_fill(0, torch.tensor(min(step, 1)), 1.0)
        optimizer.step(1.0)
        sizes.append((p.detach() - before)[0].square().mean().sqrt().item())
    hit_once = [2 * 0.05 * 0.95 ** (t + 1) for t in range(120)]  # norm of the look-ahead momentum
    steady = [2 * (1 - 0.95 ** (t + 1)) for t in range(120)]
    stop = next(t for t in range(120) if hit_once[t] <= 1e-3 * (hit_once[t] + steady[t]) / 2)
    assert 80 < stop < 100
    assert sizes[:stop] == pytest.approx([0.18] * stop, rel=1e-3)
    assert not any(sizes[stop:])


def test_adamw_decays_gains_only():
    lr = 0.01
    ones, still = torch.ones(4), torch.zeros(4)
    assert torch.allclose(drive("norm.weight", ones, [still], lr=lr), ones * (1 - lr * 0.1))
    assert torch.equal(drive("hc_attn_base", ones, [still], lr=lr), ones)
    assert torch.allclose(drive("hc_attn_base", ones, [ones], lr=lr), ones - lr)


def test_balance_parameters_are_left_alone():
    p = nn.Parameter(torch.zeros(4))
    optimizer = Optimizer([("ffn.gate.bias", p), ("w.weight", nn.Parameter(torch.zeros(2, 2)))], stacks={})
    assert list(optimizer.master) == ["w.weight"]


def test_the_model_holds_the_rounded_value_and_the_master_the_exact_one():
    p = nn.Parameter(seeded(4, 4))
    optimizer = Optimizer([("w.weight", p)], stacks={})
    p.grad = seeded(4, 4, seed=1)
    optimizer.step(0.1, rounded=lambda name, master: master.round(decimals=1))
    assert torch.equal(p, optimizer.master["w.weight"].round(decimals=1))
    assert not torch.equal(p, optimizer.master["w.weight"])


def test_state_restores_the_identical_continuation():
    names = ["embed.weight", "w.weight", "norm.weight", "hc_attn_scale"]
    shapes = [(6, 4), (4, 4), (4,), (3,)]

    def steps(optimizer: Optimizer, first: int, last: int) -> None:
        for step in range(first, last):
            for i, p in enumerate(optimizer.parameters.values()):
                p.grad = seeded(*p.shape, seed=10 * step + i)
            optimizer.step(0.01)

    def fresh() -> Optimizer:
        return Optimizer([(n, nn.Parameter(seeded(*s))) for n, s in zip(names, shapes, strict=True)], stacks={})

    straight, first, second = fresh(), fresh(), fresh()
    steps(straight, 0, 5)
    steps(first, 0, 3)
    second.load({name: t.clone() for name, t in first.state().items()})
    steps(second, 3, 5)
    for name, p in straight.parameters.items():
        assert torch.equal(p, second.parameters[name]), name


def test_schedule():
    rates = [lr_factor(s / 900, warmup=0.01) for s in range(900)]
    assert rates[0] == 0 and rates[3] == pytest.approx(1 / 3) and rates[9] == 1 and rates[560] == 1
    assert rates[680] == pytest.approx(0.55, abs=0.01)
    assert rates[801:] == pytest.approx([0.1] * 99)
    assert all(a >= b for a, b in zip(rates[9:], rates[10:], strict=False))
