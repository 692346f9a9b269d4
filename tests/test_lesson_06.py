"""What lesson 06 says about four bits: bounds, deaths, bias, bytes."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

from minidsv41.config import ModelConfig
from minidsv41.course import figures
from minidsv41.course.fp4 import Stored, described, with_outlier
from minidsv41.course.lessons import l06
from minidsv41.course.pictures import fp4 as pictures
from minidsv41.formats import E2M1, INDEX, MAIN, WINDOW
from minidsv41.ledger import bytes as books

FLASH = ModelConfig.preset("flash")
each_format = pytest.mark.parametrize("fmt", [MAIN, INDEX, WINDOW], ids=lambda f: f.name)


@pytest.fixture
def row() -> torch.Tensor:
    return torch.randn(32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_grids_of_the_lesson_are_those_of_ml_dtypes():
    codes = np.arange(127, dtype=np.uint8)
    assert codes[:8].view(ml_dtypes.float4_e2m1fn).astype(float).tolist() == l06.VALUES
    assert codes.view(ml_dtypes.float8_e4m3fn).astype(float).tolist() == l06.SCALES


@pytest.mark.parametrize("name", ["VALUES", "SCALES"])
def test_nearest_rounds_as_ml_dtypes(name: str):
    grid = getattr(l06, name)
    x = np.concatenate([grid, [(a + b) / 2 for a, b in zip(grid, grid[1:], strict=False)], [0.26, 2.51, 4.99]])
    oracle = ml_dtypes.float4_e2m1fn if name == "VALUES" else ml_dtypes.float8_e4m3fn
    assert [grid[l06.nearest(v, grid)] for v in x] == x.astype(oracle).astype(float).tolist()


def test_no_normed_latent_reaches_the_limit():
    limit = MAIN.scales.largest * MAIN.values.largest
    assert limit == 2_688
    assert limit / FLASH.head_dim**0.5 == pytest.approx(118.79, abs=0.01)
    worst = torch.zeros(FLASH.head_dim, dtype=torch.float64)
    worst[3] = FLASH.head_dim**0.5  # the whole norm in one channel
    assert MAIN.fake_quant(118 * worst)[3] == pytest.approx(118 * FLASH.head_dim**0.5, rel=1 / 16)
    assert MAIN.fake_quant(200 * worst)[3] == limit


@pytest.mark.parametrize("largest", [0.1, 1.0, 3.3, 22.6, 2_000.0])
def test_a_channel_dies_up_to_a_24th_of_the_largest(largest: float):
    group = torch.zeros(3, 16, dtype=torch.float64)
    group[:, 0] = largest
    group[:, 1] = largest / 24 * torch.tensor([16 / 17, 1, 16 / 15 + 1e-9], dtype=torch.float64)
    found = Stored.of(group.flatten(), MAIN)
    assert found.dead.view(3, 16)[[0, 2], 1].tolist() == [True, False]
    assert found.lines[0] == found.scales[0] / 4
    assert found.lines[0] == pytest.approx(largest / 24, rel=1 / 16)
    at_the_line = torch.cat([group[0, :1], found.lines[:1], torch.zeros(14)])
    assert Stored.of(at_the_line, MAIN).dead[1], "a tie goes to the even code, which is zero"


def test_the_floor_keeps_zeros_and_takes_what_is_tiny():
    assert MAIN.floor == 6 * 2.0**-9
    assert MAIN.fake_quant(torch.zeros(16)).tolist() == [0.0] * 16
    assert MAIN.fake_quant(torch.full((16,), 2.0**-11)).tolist() == [0.0] * 16
    assert MAIN.fake_quant(torch.full((16,), 2.0**-11 * 1.01)).tolist() == [2.0**-10] * 16
    assert replace(MAIN, floor=0.0).fake_quant(torch.zeros(16)).isnan().all()


def test_scale_and_group_each_pay():
    x = torch.randn(4_000, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def error(**other) -> float:
        return float((replace(MAIN, **other).fake_quant(x) - x).norm() / x.norm())

    powers = {"scales": INDEX.scales, "floor": INDEX.floor}
    assert error() < error(group=32) < error(**powers) < error(**powers, group=32)


def test_ties_to_even_lean_to_no_side_and_ties_up_do():
    x = torch.randint(0, 128, (100_000,), generator=torch.Generator().manual_seed(2)).double() / 64
    z = [float((r - x).mean() / (r - x).std() * len(x) ** 0.5) for r in (E2M1.round(x), (2 * x + 0.5).floor() / 2)]
    assert abs(z[0]) < 4
    assert z[1] > 10


def test_bytes_of_a_token_where_the_rows_are_stored_and_where_not():
    assert MAIN.row_bytes(FLASH.head_dim) == 288
    assert WINDOW.row_bytes(FLASH.head_dim) == 528
    assert INDEX.row_bytes(FLASH.index_head_dim) == 68
    assert int(books.kv_bytes_per_token(FLASH)) == 890
    assert int(books.kv_bytes_per_token(FLASH, books.V4_RECORD)) == 1_630
    with_fp8_keys = replace(books.V4_RECORD, index=books.FP8.index)
    assert int(books.kv_bytes_per_token(FLASH, with_fp8_keys)) == 1_790


def test_eight_bits_do_not_hold_a_four_bit_entry():
    entry = torch.full((64,), 1.5 * 1.875, dtype=torch.float64)
    entry[::16] = 6 * 1.875  # scale 1.875 in each group: 1.5 x 1.875 has six significant bits
    assert torch.equal(MAIN.fake_quant(entry), entry)
    assert not torch.equal(WINDOW.fake_quant(entry), entry)


@each_format
def test_stored_row_is_what_the_format_does(fmt, row: torch.Tensor):
    found = Stored.of(row, fmt)
    assert torch.equal(found.after, fmt.fake_quant(row))
    assert torch.equal(
        fmt.values.decode(found.codes, torch.float64) * found.scales.repeat_interleave(fmt.group), found.after
    )
    assert torch.equal(found.dead, found.after == 0)
    assert torch.equal(found.dead, row.abs() <= found.lines.repeat_interleave(fmt.group))
    assert torch.equal(found.relative, (found.after - row).abs() / row.abs())


def test_an_outlier_kills_in_its_own_group_only(row: torch.Tensor):
    dead = [Stored.of(with_outlier(row, 5, times), MAIN).dead.view(2, 16).sum(-1) for times in (1, 10, 30, 60)]
    first, second = torch.stack(dead).T.tolist()
    assert first == sorted(first)
    assert first[-1] == 15
    assert second == [second[0]] * 4
    assert with_outlier(row, 5, 3)[5].abs() == pytest.approx(3 * row.square().mean().sqrt())
    assert with_outlier(row, 5, 3)[5].sign() == row[5].sign()


@each_format
def test_readout_names_every_group(fmt, row: torch.Tensor):
    said = described(Stored.of(row, fmt)).replace("<br>", " ").split("channels ")[1:]
    assert len(said) == len(row) // fmt.group
    for n, group in enumerate(said):
        heading, codes = group.split(" codes ")
        assert heading.startswith(f"{n * fmt.group}–{(n + 1) * fmt.group - 1}: scale ")
        assert len(codes.split()) == fmt.group


@each_format
def test_figures_are_small_and_move(fmt, row: torch.Tensor):
    pictured = [figures.png(pictures.one_row(Stored.of(with_outlier(row, 5, t), fmt), "main")) for t in (2, 40)]
    assert pictured[0] != pictured[1]
    assert max(map(len, pictured)) < 20_000


def test_static_figures_are_small(row: torch.Tensor):
    grown = [Stored.of(with_outlier(row[:16], 5, t), MAIN) for t in (2, 6, 18, 54)]
    dead = torch.eye(16, dtype=torch.bool)
    for fig in (pictures.growing(grown, 5), pictures.deaths(dead, torch.ones(16), torch.linspace(0, 1, 16))):
        assert len(figures.png(fig)) < 20_000


def test_rounding_before_rope_is_as_good_but_not_the_same():
    latents = l06.latents().unflatten(0, (-1, 4))[:, -1]  # the toy's last group, which RoPE turns
    a, b = latents.unflatten(-1, (-1, 2)).unbind(-1)
    angle = torch.linspace(0, 3, len(latents) * 8, dtype=torch.float64).view(-1, 8)

    def turned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten(-2)

    want = turned(a, b)
    assert torch.allclose(want.norm(dim=-1), latents.norm(dim=-1), rtol=1e-12)
    before = turned(*MAIN.fake_quant(latents).unflatten(-1, (-1, 2)).unbind(-1))
    errors = [float((got - want).norm() / want.norm()) for got in (MAIN.fake_quant(want), before)]
    assert errors[0] != errors[1]
    assert errors[0] == pytest.approx(errors[1], rel=0.03)
    assert not torch.equal(MAIN.fake_quant(want) == 0, MAIN.fake_quant(latents) == 0)
