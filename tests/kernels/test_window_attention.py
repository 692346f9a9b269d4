"""Attention over window rows alone equals the plain version, whether queries are taken one by one or in runs."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from attention_problem import TOLERANCE, Problem, distance  # noqa: E402

from minidsv41.kernels.attention_split import Tile  # noqa: E402
from minidsv41.kernels.bench import window_attention as bench  # noqa: E402
from minidsv41.kernels.launch import Unsupported, recorded  # noqa: E402
from minidsv41.kernels.sparse_attention import sparse_attention  # noqa: E402
from minidsv41.kernels.window_attention import SPECIMENS, RunTile, run_tile_for, window_attention  # noqa: E402

RUNS = RunTile(8, 16, 4)
TILES = [RUNS, RunTile(4, 16, 4, 1, 32), RunTile(2, 16, 4, 2, 32, 1), Tile(16, 16, 1, 4, 1), Tile(16, 16, 2, 4, 1)]
RAGGED = dict(lengths=[5, 1, 9], starts=[0, 20, 3])


def answer(x: Problem, tile, **options):
    return window_attention(x.q, x.window, x.sink, x.span, tile=tile, **options)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tile", TILES)
def test_equals_the_plain_version(tile, dtype, packed, device):
    x = Problem(**RAGGED, packed=packed, dtype=dtype, device=device)
    out, lse = answer(x, tile, with_lse=True, rotation=x.float_rotation())
    want, want_lse = x.exact(entries=False)
    assert distance(out, x.turned_back(want)) < TOLERANCE[dtype]
    torch.testing.assert_close(lse.double(), want_lse, rtol=0, atol=1e-4)


@pytest.mark.parametrize("tile", TILES[:4])
def test_floors_may_rise_fall_and_leave_nothing(tile, device):
    floor = torch.tensor([0, 9, 99, 4, 11, 12, 12, 8])
    x = Problem([8], starts=[7], floor=floor, device=device)
    out = answer(x, tile)
    assert distance(out, x.exact(entries=False)[0]) < TOLERANCE[torch.float32]
    assert not out[2].any()


@pytest.mark.parametrize("window", [1, 5, 20])
def test_runs_of_any_window(window, device):
    x = Problem([11, 4], starts=[2, 30], window=window, page=3, heads=20, device=device)
    assert distance(answer(x, RUNS), x.exact(entries=False)[0]) < TOLERANCE[torch.float32]


def test_positions_that_jump_or_repeat_end_a_run(device):
    """A span need not come from a batch: the same sequence again, backwards, or far away."""
    x = Problem([10], starts=[40], device=device)
    order = torch.tensor([0, 1, 1, 9, 3, 4, 8, 2, 2, 5], device=device)
    for name in ("first", "last"):
        object.__setattr__(x.span, name, getattr(x.span, name)[order].contiguous())
    x.span.last[3] = 7  # a window of its own that ends far before its neighbours'
    x.span.first[3] = 7
    x.window.data.nan_to_num_(0.0)
    assert distance(answer(x, RUNS), Problem.exact(x, entries=False)[0]) < TOLERANCE[torch.float32]


def test_released_widths_in_runs(device):
    x = Problem(
        [5], starts=[200], heads=64, width=512, window=128, page=64, dims=64, dtype=torch.bfloat16, device=device
    )
    out = answer(x, RunTile(32, ahead=2), rotation=x.float_rotation())
    assert distance(out, x.turned_back(x.exact(entries=False)[0])) < TOLERANCE[torch.bfloat16]


def test_without_entries_sparse_attention_is_window_attention(device):
    x = Problem(**RAGGED, device=device)
    got = sparse_attention(x.q, x.window, None, None, x.sink, x.span)
    assert torch.equal(got, window_attention(x.q, x.window, x.sink, x.span))


def test_every_element_is_written(monkeypatch, device):
    x = Problem(**RAGGED, device=device)
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(torch.nan))
    out, lse = answer(x, RUNS, with_lse=True)
    assert out.isfinite().all() and lse.isfinite().all()


def test_runs_are_for_prompts():
    assert run_tile_for(4096, 64, 512, 1, torch.bfloat16) == RunTile(32, ahead=2)
    assert run_tile_for(1024, 64, 512, 1, torch.bfloat16) == RunTile(8)
    assert run_tile_for(1024, 64, 512, 1024, torch.bfloat16) is None
    assert run_tile_for(128, 64, 512, 1, torch.bfloat16) is None
    assert run_tile_for(4096, 64, 512, 1, torch.float32) is None


def test_only_shapes_decide_what_is_launched():
    with recorded() as launches:
        for specimen in SPECIMENS.values():
            specimen()
    assert [call.kernel.__name__ for call in launches] == ["runs", "by_query"]
    assert launches[0].grid == (128, 1)


def test_what_is_not_supported_is_refused():
    x = Problem([3])
    with pytest.raises(Unsupported, match="sink.shape = \\(1,\\): allowed is \\(4,\\), one a head"):
        window_attention(x.q, x.window, x.sink[:1], x.span)


def test_a_small_bench_case_is_right(device):
    contest = bench.contest(6, 2, 4, 64, 8, device, 1)
    assert contest.error() < contest.tolerance


@pytest.mark.parametrize("card", [(8, 9), (10, 0)])
def test_runs_are_refused_on_cards_that_they_were_not_made_for(card):
    """Compiled for Blackwell, `runs` would store nothing at all."""
    x = Problem([8], starts=[7], device="meta")
    with recorded(card), pytest.raises(Unsupported, match="queries in runs on"):
        answer(x, RUNS)
    with recorded(card) as launches:
        answer(x, Tile(16, 16, 1, 4, 1))
    assert launches
