"""Lesson 07: Sinkhorn's exact side, gain through depth, who waits for whom, and what a seam moves."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

from minidsv41 import ops
from minidsv41.config import ModelConfig
from minidsv41.course import figures
from minidsv41.course.dye import Node, above, direct_needs, levels, reductions
from minidsv41.course.lessons import l07
from minidsv41.course.mixing import EPS, by_round, described, drawn, errors, gains, handed_on, received
from minidsv41.course.pictures import mhc as pictures
from minidsv41.course.records import by_variant, record
from minidsv41.course.seams import (
    Memory,
    NotOnChip,
    Seam,
    counting,
    executed,
    multi_kernel,
    single_pass,
    two_pass,
    undelayed,
)
from minidsv41.ledger import traffic
from minidsv41.ops.seam import coefficients, products, sinkhorn
from minidsv41.replaced import replaced
from tests.tiny import prompt, tiny

FLASH = ModelConfig.preset("flash")
WIDTH, TILES = 12, 3


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("spread", [1, 3, 8])
def test_20_rounds_are_exact_on_the_receiving_side_only(spread: int) -> None:
    comb = sinkhorn(spread * normal(1000, 4, 4), 20, EPS)
    got, gave = (e.max() for e in errors(comb))
    assert got < 2e-6
    assert (gave > 1e-2) == (spread > 1)
    assert gave < 0.0851
    assert torch.equal(received(comb), comb.sum(1))
    assert torch.equal(handed_on(comb), comb.sum(2))


def test_a_search_finds_no_worse_matrix_than_the_public_note() -> None:
    assert l07.handed_on_error(l07.worst) == pytest.approx(0.0850, abs=1e-4)


def test_errors_by_round_are_those_of_sinkhorn() -> None:
    logits = drawn(5, 3)
    found = by_round(logits, 20)
    for rounds in (1, 2, 20):
        torch.testing.assert_close(found[rounds - 1], torch.stack(errors(sinkhorn(logits, rounds, EPS))))
    assert described(logits, 1).startswith("after 1 round<br>each destination receives 1.0000")
    assert drawn(5, 3, 2.0)[0, 0] == logits[0, 0] + 2


def test_gain_is_bounded_by_sums_of_one_and_by_nothing_else() -> None:
    noise = normal(80, 4, 4)
    free, _ = gains(torch.eye(4).double() + 0.1 * noise)
    signal, gradient = gains(sinkhorn(4 * torch.eye(4).double() + noise, 20, EPS))
    assert free[-1] > 5
    assert (signal - 1).abs().max() < 1e-3
    assert (gradient < 4).all()
    lopsided = torch.zeros(3, 2, 2, dtype=torch.float64)
    lopsided[:, 0] = 1  # both destinations receive all from source 0
    assert [g.tolist() for g in gains(lopsided)] == [[1, 1, 1], [2, 2, 2]]


def test_constant_coefficients_make_a_plain_transformer() -> None:
    """Every sublayer's input is the norm of the plain sum of all outputs before it."""
    model, n = tiny(), 4
    fixed = torch.eye(n).double()[0], torch.ones(n).double(), torch.eye(n).double()

    def constants(m: torch.Tensor, into: ops.Next) -> tuple[torch.Tensor, ...]:
        return tuple(part.expand(len(m), *part.shape) for part in fixed)

    with replaced(importlib.import_module("minidsv41.ops.seam"), "coefficients", lambda _: constants):
        trace = model.trace(prompt(20))
    total, checked = model.embed(prompt(20)), 0
    for name, value in trace.items():
        if name.endswith("stream_after_engram"):
            total = value[:, 0]
        elif name.endswith((".attn.x", ".ffn.x")):
            norm = model.get_submodule(f"layers.{name[1:-2]}_norm")
            torch.testing.assert_close(norm(total), value, rtol=0, atol=1e-12)
            checked += 1
        elif name.endswith((".attn.out", ".ffn.out")):
            total = total + value
    assert checked == 2 * model.config.num_hidden_layers


def test_the_mix_is_one_sublayer_old() -> None:
    model = tiny()
    trace = model.trace(prompt(20))
    X, x, norm = trace["L2.stream_after_ffn"], trace["L3.attn.x"], model.layers[3].attn_norm
    off = [(norm(ops.collapse(X, trace[f"{who}.pre"])) - x).abs().max() for who in ("L2.attn", "L2.ffn", "L3.attn")]
    assert off[1] < 1e-12
    assert min(off[0], off[2]) > 1e-3


def graph(delayed: bool) -> set[tuple[Node, Node]]:
    at = l07.example(4, seed=1, width=WIDTH)

    def program(hook) -> None:
        X, before = hook("X", at.X), hook("before", at.pre)
        X = hook("X'", ops.update(X, at.F, at.post, at.comb))
        m = hook("sums", products(X, at.into))
        pre, *_ = (hook(n, v) for n, v in zip(("pre", "post", "comb"), coefficients(m, at.into), strict=True))
        hook("mix", ops.collapse(X, before if delayed else pre))

    return direct_needs(program, width=WIDTH, tiles=TILES)


@pytest.mark.parametrize("delayed", [False, True])
def test_the_dye_finds_every_direct_need_and_no_other(delayed: bool) -> None:
    tiles, sums, pre = range(TILES), Node("sums"), Node("pre")
    wanted = {(Node("X", k), Node("X'", k)) for k in tiles} | {(Node("X'", k), Node("mix", k)) for k in tiles}
    wanted |= {(Node("X'", k), sums) for k in tiles} | {(sums, Node(name)) for name in ("pre", "post", "comb")}
    wanted |= {(Node("before") if delayed else pre, Node("mix", k)) for k in tiles}
    needs = graph(delayed)
    assert needs == wanted
    assert reductions(needs) == {sums}
    assert (sums in above(needs, "mix")) is not delayed
    assert levels(needs)[Node("mix", 0)] == (2 if delayed else 4)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize(
    ("form", "program", "ways"),
    [
        ("multi_kernel", multi_kernel, ({"delayed": False}, {"delayed": True})),
        ("two_pass", two_pass, ({"delayed": False}, {"delayed": True})),
        ("single_pass", single_pass, ({},)),
    ],
)
def test_every_order_gives_the_same_and_moves_what_the_ledger_says(n: int, form: str, program, ways) -> None:
    at = l07.example(n, seed=n)
    rows = traffic.mhc_rows_per_sublayer(replace(FLASH, hc_mult=n), form).value
    for how in ways:
        found, memory = executed(program, at, tiles=4, **how)
        right = ops.seam(*at) if how.get("delayed", True) else undelayed(*at)
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        assert memory.moved == rows


def test_fusion_alone_saves_six_rows_and_the_delay_four_more() -> None:
    assert [traffic.mhc_rows_per_sublayer(FLASH, form).value for form in traffic.FORMS] == [20, 14, 10]
    whole, half = (traffic.mhc_bytes_per_token(FLASH, form).value for form in ("multi_kernel", "single_pass"))
    assert whole == 2 * half == 2 * 80 * 10 * 5120 * 2


def test_memory_holds_one_tile_and_names_what_is_missing() -> None:
    memory = Memory({"X": normal(2, 3, 8)}, tiles=4)
    first = memory.read("X", 0)
    memory.read("X", 1)
    with pytest.raises(NotOnChip, match="the chip holds tile 1, so read tile 0 again"):
        memory.write("u", 0, first)
    memory.write("u", 1, first)
    assert (memory.reads, memory.writes) == (1.5, 0.75)
    assert memory.row("u").isnan().sum() == 3 * 2 * 3 * 2
    with pytest.raises(KeyError, match="no F; it has X, u"):
        memory.read("F", 0)


def test_a_whole_model_runs_in_one_visit_a_seam() -> None:
    model, ids = tiny(), prompt(20)
    right = model.trace(ids)["logits"]
    with counting(single_pass, tiles=4) as moved:
        found = model.trace(ids)["logits"]
    torch.testing.assert_close(found, right, rtol=0, atol=1e-9)
    assert moved
    assert set(moved) == {10.0}


def test_an_undelayed_seam_is_another_network() -> None:
    at = l07.example(4, seed=2)
    assert torch.equal(undelayed(*at)[0], ops.seam(*at)[0])
    assert (undelayed(*at)[1] - ops.seam(*at)[1]).abs().max() > 0.1
    assert isinstance(at, Seam)


def test_the_recorded_study_compares_equal_parameters() -> None:
    study = record("study_mhc")
    sizes = [run["parameters"] for run in study["results"]]
    assert max(sizes) / min(sizes) < 1.001
    bits = by_variant(study, "bits_per_byte")
    assert list(bits) == ["plain", "undelayed", "delayed"]
    assert max(bits["undelayed"] + bits["delayed"]) < min(bits["plain"])


def test_pictures_are_of_one_width_and_small() -> None:
    line = torch.linspace(1, 3, 16)
    names = {name: name for name in ("X", "X'", "before", "sums", "pre", "post", "comb", "mix")}
    for fig in (
        pictures.mixing(drawn(5, 3), 4),
        pictures.gains({"a": line, "b": line, "c": line}, {"d": line, "e": line}),
        pictures.waiting({"one": graph(False), "two": graph(True)}, goal="mix", labels=names),
        pictures.dots({"m": {"with": [1.0, 2.0], "without": [1.5]}, "k": {"with": [1.0], "without": [2.0]}}),
    ):
        data = figures.png(fig)
        assert int.from_bytes(data[16:20], "big") == figures.WIDTH
        assert len(data) < 22_000
