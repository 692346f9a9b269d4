"""Number formats against stored reference values, against ml_dtypes, and against themselves."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from minidsv41.formats import DENSE, E2M1, E4M3, EXPERT, INDEX, MAIN, TABLE, UE8M0, WINDOW

GOLDEN = Path(__file__).parent / "golden" / "formats"
CACHE = {"main_kv_fp4_g16_e4m3": MAIN, "mxfp4_g32_ue8m0": INDEX, "fp8_g32_ue8m0": WINDOW}
SMALL = {"e2m1": E2M1, "e4m3": E4M3}
ORACLE = {"e2m1": ml_dtypes.float4_e2m1fn, "e4m3": ml_dtypes.float8_e4m3fn}
every_format = pytest.mark.parametrize("fmt", [MAIN, INDEX, WINDOW], ids=lambda f: f.name)
every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)


def golden(name: str) -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / f"{name}.safetensors")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal including dtype and the sign of zero."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


def test_code_tables():
    table = golden("code_tables")
    nibbles, codes = torch.arange(16, dtype=torch.uint8), torch.arange(256, dtype=torch.uint8)
    assert same_bits(E2M1.decode(nibbles, torch.float32), table["e2m1_values"])
    assert torch.equal(E2M1.encode(table["e2m1_values"]), nibbles)
    assert torch.allclose(E4M3.decode(codes, torch.float32), table["e4m3_values"], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(E4M3.encode(table["e4m3_values"]), codes)
    powers = UE8M0.decode(codes, torch.float64)
    assert torch.allclose(powers, table["e8m0_values_f64"], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(UE8M0.encode(powers), codes)


@pytest.mark.parametrize("name", SMALL)
def test_rounding_golden(name):
    table, small = golden("rounding"), SMALL[name]
    for dtype in (torch.float32, torch.float64):
        rounded = small.round(table[f"{name}_in"].to(dtype))
        assert same_bits(rounded, table[f"{name}_out"].to(dtype))
        assert torch.equal(small.encode(rounded), table[f"{name}_code"])


def test_e4m3_saturates():
    table = golden("rounding")
    assert torch.equal(E4M3.round(table["e4m3_saturate_in"]), table["e4m3_saturate_out"])


@pytest.mark.parametrize("name", SMALL)
def test_rounding_equals_ml_dtypes(name):
    """Every half-precision value inside the range: all binades, all ties, subnormals, both zeros."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16).float()
    x = x[x.abs() <= SMALL[name].largest]
    expected = x.numpy().astype(ORACLE[name])
    rounded = SMALL[name].round(x)
    assert np.array_equal(SMALL[name].encode(rounded).numpy(), expected.view(np.uint8))
    assert same_bits(rounded, torch.from_numpy(expected.astype(np.float32)))


@pytest.mark.parametrize("name", SMALL)
def test_float64_is_rounded_once(name):
    """A hair above a tie goes up; through float32 it would become the tie and go to the even code."""
    tie = {"e2m1": 2.5, "e4m3": 17.0}[name]
    x = torch.tensor([tie, tie * (1 + 2.0**-40), -tie * (1 + 2.0**-40)], dtype=torch.float64)
    low, high = {"e2m1": (2.0, 3.0), "e4m3": (16.0, 18.0)}[name]
    assert SMALL[name].round(x).tolist() == [low, high, -high]
    assert SMALL[name].round(x.float()).tolist() == [low, low, -low]


def test_float64_scale_is_computed_in_float64():
    just_above = 6.0 * (1 + 2.0**-40)  # float32 takes it for 6 and keeps scale 1
    x = torch.full((32,), 0.5, dtype=torch.float64)
    x[0] = just_above
    assert UE8M0.decode(INDEX.encode(x)[1], torch.float64).tolist() == [2.0]
    assert UE8M0.decode(INDEX.encode(x.float())[1], torch.float32).tolist() == [1.0]


@pytest.mark.parametrize("name", CACHE)
def test_cache_format_golden(name):
    data, fmt = golden(name), CACHE[name]
    codes, scales = fmt.encode(data["x"])
    assert torch.equal(codes, data.get("packed", data["codes"]))
    assert torch.equal(fmt.values.unpack(codes), data["codes"])
    assert torch.equal(scales, data.get("scale_e4m3", data.get("scale_e8m0")))
    assert torch.equal(fmt.scales.decode(scales, torch.float32), data["scale"])
    assert same_bits(fmt.decode(codes, scales), data["dequant"])
    assert same_bits(fmt.fake_quant(data["x"]), data["dequant"])


def test_main_scale_saturates():
    data = golden("main_kv_fp4_g16_e4m3")
    assert same_bits(MAIN.fake_quant(data["over_x"]), data["over_dequant"])
    assert data["over_dequant"].abs().max() == 2688


def test_cache_records():
    data = golden("cache_records")
    records = {"main": (MAIN, data["x"]), "swa": (WINDOW, data["x"]), "index": (INDEX, data["index_x"])}
    for name, (fmt, x) in records.items():
        codes, scales = fmt.encode(x)
        assert torch.equal(codes, data[f"{name}_data"])
        assert torch.equal(scales, data[f"{name}_scale"])
        assert same_bits(fmt.fake_quant(x), data[f"{name}_dequant"])
        assert fmt.row_bytes(x.shape[-1]) == data[f"{name}_record_bytes"].item()
        assert (codes[0].nbytes + scales[0].nbytes) == data[f"{name}_record_bytes"].item()


magnitudes = st.floats(-60, 12).map(lambda e: 2.0**e) | st.sampled_from([0.0, 6.0, 448.0, 1e-4, 6 * 2.0**-9, 2.5, 17.0])
numbers = st.tuples(magnitudes, st.sampled_from([-1.0, 1.0])).map(lambda p: p[0] * p[1])


@every_dtype
@every_format
@settings(max_examples=40, deadline=None)
@given(row=st.lists(numbers, min_size=64, max_size=64))
def test_fake_quant_is_decode_of_encode(fmt, dtype, row):
    x = torch.tensor(row, dtype=torch.float64).to(dtype).nan_to_num(posinf=6e4, neginf=-6e4)
    once = fmt.fake_quant(x)
    assert same_bits(fmt.decode(*fmt.encode(x), dtype), once)
    wide = fmt.fake_quant(x.double() if dtype == torch.float64 else x.float())
    assert same_bits(wide.to(dtype), once)


@every_format
def test_fake_quant_of_its_own_result_changes_nothing(fmt):
    x = torch.randn(200, 64, generator=torch.Generator().manual_seed(1))
    once = fmt.fake_quant(x)
    assert same_bits(fmt.fake_quant(once), once)


@every_format
def test_gradient_passes_straight_through(fmt):
    x = torch.randn(3, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    weight = torch.arange(192.0, dtype=torch.float64).reshape(3, 64)
    y = fmt.fake_quant(x)
    (y * weight).sum().backward()
    assert not torch.equal(y, x)
    assert torch.equal(x.grad, weight)


@every_format
def test_no_rows_are_fine(fmt):
    x = torch.zeros(0, 64)
    assert fmt.fake_quant(x).shape == fmt.decode(*fmt.encode(x)).shape == (0, 64)


@every_format
def test_input_is_left_alone(fmt):
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(3))
    before = x.clone()
    fmt.fake_quant(x), fmt.encode(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@every_format
def test_nan_and_infinity_never_become_numbers(fmt, bad):
    x = torch.ones(2, 64)
    x[0, 5] = bad
    y = fmt.fake_quant(x)
    assert y[0, : fmt.group].isnan().all()
    assert torch.equal(y[1], fmt.fake_quant(x[1]))
    assert torch.equal(y[0, fmt.group :], y[1, fmt.group :])
    assert torch.equal(fmt.decode(*fmt.encode(x)).isnan(), y.isnan())
    for small in SMALL.values():
        assert small.round(torch.tensor([bad])).isnan().all()


def test_width_and_dtype_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="width 40: main rows have one scale per 16"):
        MAIN.fake_quant(torch.zeros(40))
    with pytest.raises(TypeError, match="int64"):
        MAIN.encode(torch.zeros(16, dtype=torch.int64))


@pytest.mark.parametrize("shape", ["full", "ragged"])
def test_dense_weight_golden(shape):
    data = golden("fp8_weight_32x32")
    codes, scales = DENSE.encode(data[f"{shape}.w"])
    assert torch.equal(codes, data[f"{shape}.weight_e4m3"])
    assert torch.equal(scales, data[f"{shape}.scale_e8m0"])
    assert same_bits(DENSE.decode(codes, scales), data[f"{shape}.dequant"])
    assert scales.shape == DENSE.scale_shape(*codes.shape)


def test_expert_weight_golden():
    data = golden("expert_fp4_g32_e8m0")
    packed, scales = EXPERT.encode(data["w"])
    assert torch.equal(packed.view(torch.int8), data["packed_int8"])
    assert torch.equal(E2M1.unpack(packed), data["codes"])
    assert torch.equal(scales, data["scale_e8m0"])
    assert same_bits(EXPERT.decode(packed, scales), data["dequant"])
    stacked = EXPERT.encode(torch.stack([data["w"], -data["w"]]))
    assert torch.equal(stacked[0][0], packed) and torch.equal(stacked[1][1], scales)


@pytest.mark.parametrize("fmt", [DENSE, EXPERT, TABLE], ids=["dense", "expert", "table"])
def test_weight_blocks(fmt):
    w = torch.randn(40, 70 if fmt is not EXPERT else 96, generator=torch.Generator().manual_seed(4))
    w[:32, :32] = 0
    codes, scales = fmt.encode(w)
    block = fmt.decode(codes, scales)
    assert scales[0, 0] == 127, "an all-zero block has scale 1"
    half = 2.0 ** -(fmt.values.mantissa + 1)
    spread = fmt.spread(UE8M0.decode(scales, torch.float32), *w.shape)
    smallest = 2.0 ** (fmt.values.lowest - fmt.values.mantissa)
    assert ((block - w).abs() <= torch.maximum(w.abs() * half, spread * smallest / 2)).all()
    assert ((w / spread).abs() <= fmt.values.largest).all()
    double = fmt.encode(w.double())
    assert torch.equal(double[0], codes) and torch.equal(double[1], scales)
    assert torch.equal(fmt.decode(codes, scales, torch.bfloat16).float(), block)


@pytest.mark.parametrize("fmt", [DENSE, EXPERT, TABLE], ids=["dense", "expert", "table"])
def test_known_scales_are_kept_only_where_they_lose_nothing(fmt):
    w = torch.ones(64, 64)
    codes, scales = fmt.encode(w)
    known = scales + 1  # twice the scale, half the codes: the same weights, and not what the rule gives
    again, kept = fmt.encode(w, known)
    assert torch.equal(kept, known) and not torch.equal(again, codes)
    assert torch.equal(fmt.decode(again, kept), w)
    w[0, 0] = 1000
    again, mixed = fmt.encode(w, known)
    assert mixed[0, 0] == fmt.encode(w)[1][0, 0] != known[0, 0]
    assert torch.equal(mixed.flatten()[1:], known.flatten()[1:])


def test_table_rows_have_their_own_scales():
    w = torch.tensor([[1.0], [1000.0]]).expand(2, 64)
    assert UE8M0.decode(TABLE.encode(w)[1], torch.float32).tolist() == [[2.0**-8] * 2, [4.0] * 2]


def test_packing_puts_the_even_column_low():
    codes = torch.arange(16, dtype=torch.uint8)
    assert E2M1.pack(codes)[:2].tolist() == [0x10, 0x32]
    assert torch.equal(E2M1.unpack(E2M1.pack(codes)), codes)
