"""Lesson 12: floors and what binds, recorded peers beside them, step kernels, races in any order, the tile model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product

import pytest
import torch

from minidsv41 import ops
from minidsv41.config import ModelConfig
from minidsv41.course import crossing, figures, limits, peers, races, recorded, tiling
from minidsv41.course.lessons import l12
from minidsv41.course.pictures import roofline as pictures
from minidsv41.course.records import record
from minidsv41.course.sabotage import sabotage
from minidsv41.formats import INDEX, MAIN, WINDOW
from minidsv41.ledger import operations

FLASH = ModelConfig.preset("flash")
FOUND = record("peers_h200")
ON = limits.card(FOUND)
WORK = limits.released()


def row(name: str, shape: str) -> dict:
    return peers.best(FOUND, name, shape)


@pytest.mark.parametrize("tokens", [1, 32, 128, 4096, 32768])
def test_the_record_counted_the_same_bytes_of_a_seam(tokens: int):
    assert row("^mHC V4 seam", rf"^T={tokens} ")["bytes"] == WORK["seam"].bytes(tokens)
    assert limits.floor(WORK["seam"], tokens, ON) == pytest.approx(
        row("V4 seam", rf"^T={tokens} ")["floor_us"], abs=0.02
    )


def test_the_record_counted_the_same_products():
    assert WORK["sparse attention, prompt"].products(4096) == row("^sparse attention prefill", "T=4096")["flops"]
    assert WORK["sparse attention, decode"].products(32) == row("^sparse attention decode", "B=32,")["flops"]
    assert WORK["window attention, prompt"].products(4096) == row("^SWA prefill", "T=4096,")["flops"]
    assert WORK["index, prompt"].products(4096) == row("^indexer logits", "4096q x 32768k")["flops"]
    assert WORK["index, decode"].products(32) == row("^indexer logits", "B=32 L=131072")["flops"]


def test_rows_have_the_sizes_of_the_formats():
    entry, key, window = MAIN.row_bytes(512), INDEX.row_bytes(128), WINDOW.row_bytes(512)
    assert (entry, key, window) == (288, 68, 528)
    ends = 2 * 64 * 512 * 2 + 8 * 512
    assert WORK["sparse attention, decode"].each.value == ends + 512 * entry + 128 * window
    assert WORK["sparse attention, prompt"].once.value == 32_768 * entry + 128 * window
    assert WORK["index, decode"].each.value - WORK["index, prompt"].each.value == 131_072 * key
    assert WORK["Engram read"].each.value == 24 * (264 + 512)


def test_floors_are_those_of_the_benchmark():
    pytest.importorskip("triton")
    from minidsv41.kernels.bench import engram, gated_delta, kv_write, seam, sparse_attention, window_attention

    cases = (
        ("seam", 4096, seam.forward(4096)),
        ("kv_write", 4096, kv_write.case(MAIN, 4096)),
        ("sparse attention, decode", 32, sparse_attention.case("", 32, 32, 131_072, 64, 512, 128, 512)),
        ("sparse attention, prompt", 4096, sparse_attention.case("", 4096, 1, 32_768, 64, 512, 128, 512)),
        ("window attention, prompt", 4096, window_attention.case("", 4096, 1, 64, 512, 128)),
        ("Engram read", 4096, engram.read_case(4096)),
        ("gated delta", 4096, gated_delta.case(4096, 16, 32, 128)),
    )
    for name, tokens, case in cases:
        assert WORK[name].bytes(tokens) == pytest.approx(case.bytes, rel=0.01), name
        if name != "seam":  # its kernel multiplies by weights in two parts
            assert WORK[name].products(tokens) == case.flops, name


def test_the_three_limits_meet_at_the_ridge():
    moved = 1e9
    times = ON.limits(moved, moved * ON.ridge)
    assert times["memory"] == pytest.approx(times["arithmetic"])
    assert ON.binds(moved, 1.01 * moved * ON.ridge) == "arithmetic"
    assert ON.binds(moved, 0.99 * moved * ON.ridge) == "memory"
    assert ON.binds(1, 1) == "launch" and ON.floor(1, 1) == ON.launch
    assert limits.card(FOUND, start="Python").launch > 20 * ON.launch


def test_small_batches_are_bound_by_launches_and_prompts_by_products():
    assert sum(limits.binds(work, 1, ON) == "launch" for work in WORK.values()) == 5
    assert limits.binds(WORK["seam"], 1, limits.h200("Python")) == "launch"
    assert {limits.binds(WORK["seam"], T, ON) for T in (2, 4096, 32768)} == {"memory"}
    for name in ("sparse attention, prompt", "index, prompt", "gated delta"):
        assert limits.binds(WORK[name], 4096, ON) == "arithmetic"


def test_the_best_peer_of_the_seam_is_slow_at_one_token():
    points = peers.points(FOUND, FLASH)
    by_tokens = {p.tokens: p for p in points if p.work.name == "seam"}
    assert by_tokens[1].us == 24.606 and 49 < by_tokens[1].times(ON) < 50
    assert by_tokens[32].us / by_tokens[1].us < 1.01
    assert all(p.times(ON) > 1 for p in points)
    assert len({p.work.name for p in points}) == 7
    flat = [row("^Sinkhorn 4x4", rf"^T={T} ")["us"] for T in (1, 4096)]
    assert flat[1] < 1.1 * flat[0]


def test_a_shape_without_a_row_is_an_error():
    with pytest.raises(LookupError, match="no row 'mHC' of shape 'T=77 '"):
        row("mHC", "T=77 ")


def test_the_widget_says_what_binds_and_its_pictures_differ():
    few = dict(power=0, operation="seam", start="a graph")
    many = few | dict(power=12)
    assert limits.described(**few).endswith("bound by launch")
    assert limits.described(**many).endswith("bound by memory")
    assert figures.png(pictures.moved(**few)) != figures.png(pictures.moved(**many))
    for operation, start in product(WORK, limits.STARTS):
        assert figures.png(pictures.moved(power=7, operation=operation, start=start))[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", crossing.COMPUTED)
def test_recorded_text_is_what_the_interpreter_says(name: str):
    pytest.importorskip("triton")
    if not recorded.interpreter():
        pytest.skip("kernels run on a GPU in this process")
    text = crossing.COMPUTED[name]()
    assert text.endswith("as the plain version: True")
    assert text == record(recorded.RECORD)["texts"][name], "record again: python -m scripts.kernels_cpu"


def test_without_an_interpreter_the_recorded_text_is_shown(monkeypatch: pytest.MonkeyPatch):
    def compute() -> str:
        raise AssertionError("nothing can be computed")

    monkeypatch.setattr(recorded, "interpreter", lambda: False)
    assert set(record(recorded.RECORD)["texts"]) == set(crossing.COMPUTED)
    assert recorded.shown("in_one", compute) == record(recorded.RECORD)["texts"]["in_one"]
    monkeypatch.setattr(recorded, "interpreter", lambda: True)
    assert recorded.shown("in_one", lambda: "computed") == "computed"


def test_sources_are_shown_where_triton_is_not():
    code = "from minidsv41.course import recorded; print(recorded.interpreter()); print(recorded.source('collapse'))"
    environment = os.environ | {"MINIDSV41_WITHOUT": "triton"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False\n@triton.jit\ndef collapse(")


def test_step_kernels_cross_wider_seams_of_more_tokens():
    pytest.importorskip("triton")
    if not recorded.interpreter():
        pytest.skip("kernels run on a GPU in this process")
    from minidsv41.kernels.lesson import steps

    at = crossing.example(tokens=5, width=128)
    wanted = ops.seam(*at)
    for cross in (steps.in_three, steps.in_one):
        for found, right in zip(cross(*at), wanted, strict=True):
            torch.testing.assert_close(found, right, rtol=0, atol=1e-12)


def spills(row: dict) -> bool:
    """Whether a Hopper thread of a seam kernel keeps values outside of its registers."""
    return row["card"] == 90 and "seam" in row["kernel"] and row["stack"] > 0


@pytest.mark.slow
def test_recorded_machine_code_has_the_facts_of_the_compiler_here():
    """Tensor cores on each card, no spills in the seam, and the kinds of instruction; counts may differ."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "minidsv41.kernels.lesson.listing"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    here, kept = json.loads(done.stdout), record(recorded.RECORD)["compiled"]

    def facts(content: dict) -> list:
        return [(r["kernel"], r["card"], r["unit"], spills(r)) for r in content["rows"]]

    assert facts(here) == facts(kept), "record again: python -m scripts.kernels_cpu"
    assert [r["kind"] for r in here["ptx"]] == [r["kind"] for r in kept["ptx"]]


def test_recorded_machine_code_uses_tensor_cores_and_hardly_spills_on_hopper():
    rows = record(recorded.RECORD)["compiled"]["rows"]
    assert all(r["unit"] for r in rows)
    assert not any(spills(r) for r in rows)
    assert all(r["stack"] <= 64 for r in rows if r["card"] == 90)


def test_every_order_of_a_lost_update_is_found():
    lost = races.outcomes(races.VARIANTS["shared row"])
    assert {out[0] for out in lost} == {3, 5, 7, 3 + 5, 3 + 7, 5 + 7, 3 + 5 + 7}
    assert races.outcomes(races.VARIANTS["atomic add"]) == {(15, 0, 0)}
    assert races.outcomes(races.VARIANTS["own row"]) == {(3, 5, 7)}
    assert {out[0] for out in races.outcomes(races.VARIANTS["largest so far"])} == {3, 5, 7}
    assert not races.race(races.VARIANTS["the last one adds"])
    assert races.race(races.VARIANTS["counts, then writes"])


def test_the_number_of_orders_is_the_multinomial():
    assert len(list(races.ends(("t = p", "out[p] = t")))) == 90  # 6! / 2!³
    assert len(list(races.ends(("t = p",)))) == 6


def test_each_limit_is_drawn_twice_and_clearly():
    shapes = l12.drawn()
    assert sorted(l12.bound(**s) for s in shapes) == sorted(2 * ["memory", "arithmetic", "launch"])
    for s in shapes:
        moved, flops = s["once"] + s["tokens"] * s["each"], s["tokens"] * s["flops"]
        times = limits.Card(copy=ON.copy, products=ON.products, launch=s["launch"]).limits(moved, flops)
        *_, second, first = sorted(times.values())
        assert first > 1.25 * second


def test_a_learner_may_return_any_collection_of_names():
    assert l12.RACE.use(lambda: sorted(l12.racing())) == l12.RACE.reference()


def test_the_tile_model_knows_idle_machines_repeated_reads_and_room():
    assert tiling.microseconds(1, tiling.Tile(16, 1)) > 30 * tiling.microseconds(1, tiling.Tile(16, 80))
    assert tiling.microseconds(32768, tiling.Tile(16, 1)) > 1.5 * tiling.microseconds(32768, tiling.Tile(64, 1))
    assert tiling.microseconds(8449, tiling.Tile(64, 1)) > 1.9 * tiling.microseconds(8448, tiling.Tile(64, 1))
    with pytest.raises(tiling.NoRoom, match="352 registers a thread"):
        tiling.microseconds(1, tiling.Tile(256, 1))
    with pytest.raises(tiling.NoRoom, match="splits 1 to 80"):
        tiling.microseconds(1, tiling.Tile(16, 81))
    for T in l12.SHAPES:
        tile, time = tiling.best(T)
        assert time >= limits.floor(operations.seam(FLASH), T, ON)
        assert all(time <= tiling.microseconds(T, tiling.Tile(16, splits)) for splits in (1, 8, 80))


def test_a_sum_in_bfloat16_spoils_coefficients_and_nothing_else():
    right = ops.seam(*crossing.example())
    with sabotage("12.bf16_sum"):
        wrong = ops.seam(*crossing.example())
    assert all(torch.equal(a, b) for a, b in zip(right[:2], wrong[:2], strict=True))
    assert all(1e-4 < (a - b).abs().max() < 0.02 for a, b in zip(right[2:], wrong[2:], strict=True))


def test_late_ties_show_only_where_scores_are_equal():
    from minidsv41.ops import select

    scores = torch.randn(5, 37, generator=torch.Generator().manual_seed(0))
    right = select.lowest_topk(scores, 9)
    with sabotage("12.late_ties"):
        assert torch.equal(select.lowest_topk(scores, 9), right)
