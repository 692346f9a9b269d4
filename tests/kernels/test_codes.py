"""Small floats inside kernels are those of `formats`, code for code."""

import pytest
import torch

pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from minidsv41.formats import E2M1, E4M3, UE8M0  # noqa: E402
from minidsv41.kernels import codes  # noqa: E402
from minidsv41.kernels.launch import launch, native_fp8, recorded  # noqa: E402


@triton.jit
def decode_kernel(codes_at, out, KIND: tl.constexpr, FP8: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    c = tl.load(codes_at + at)
    if KIND == "E2M1":
        value = codes.e2m1_decode(c).to(tl.float32)
    elif KIND == "E4M3":
        value = codes.e4m3_decode(c, FP8).to(tl.float32)
    else:
        value = codes.ue8m0_decode(c)
    tl.store(out + at, value)


@triton.jit
def encode_kernel(values, out, KIND: tl.constexpr, FP8: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(values + at)
    if KIND == "E4M3":
        code = codes.e4m3_encode(x, FP8)
    else:
        code = codes.ue8m0_encode(x)
    tl.store(out + at, code)


def decode(kind, given, device):
    out = torch.full((len(given),), torch.nan, device=device)
    launch(decode_kernel, (1,), codes_at=given, out=out, KIND=kind, FP8=native_fp8(given.device), N=len(given))
    return out


def encode(kind, values):
    out = torch.empty(len(values), dtype=torch.uint8, device=values.device)
    launch(encode_kernel, (1,), values=values, out=out, KIND=kind, FP8=native_fp8(values.device), N=len(values))
    return out


@pytest.mark.parametrize(("kind", "fmt", "count"), [("E2M1", E2M1, 16), ("E4M3", E4M3, 256), ("UE8M0", UE8M0, 256)])
def test_every_code_decodes_as_in_formats(kind, fmt, count, device):
    given = torch.arange(count, dtype=torch.uint8, device=device)
    torch.testing.assert_close(
        decode(kind, given, device), fmt.decode(given, torch.float32), rtol=0, atol=0, equal_nan=True
    )


def awkward(device) -> torch.Tensor:
    """4,096 numbers: every E4M3 value and the midpoints between neighbours, both one step up and down, and noise."""
    grid = E4M3.decode(torch.arange(127, dtype=torch.uint8), torch.float32)
    middle = (grid[1:] + grid[:-1]) / 2
    around = torch.cat([grid, middle, middle.nextafter(torch.tensor(torch.inf)), middle.nextafter(torch.tensor(0.0))])
    noise = torch.randn(2048 - len(around) - 4, generator=torch.Generator().manual_seed(0)) * 3
    positive = torch.cat([around, noise, torch.tensor([1e-30, 447.9, 464.1, 1e30])])
    return torch.cat([positive, -positive]).to(device)


def test_every_number_encodes_as_in_formats(device):
    x = awkward(device)
    assert torch.equal(encode("E4M3", x), E4M3.encode(E4M3.round(x)))


def test_power_of_two_scales_round_up_as_in_formats(device):
    x = torch.cat([awkward("cpu").abs().clamp(min=2.0**-126), torch.tensor([2.0**-126, 2.0**127, 1.5 * 2.0**127] * 4)])
    x = torch.cat([x, x.new_ones(8192 - len(x))]).to(device)
    assert torch.equal(encode("UE8M0", x), UE8M0.encode(UE8M0.round(x)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", ["E4M3", "UE8M0"])
def test_what_is_not_finite_becomes_nan(bad, kind, device):
    code = encode(kind, torch.full((16,), bad, device=device))
    assert decode(kind, code, device).isnan().all()


def test_a_launch_can_be_looked_at_instead_of_run():
    with recorded() as launches:
        encode("E4M3", torch.empty(16, device="meta"))
    assert [call.kernel for call in launches] == [encode_kernel]
