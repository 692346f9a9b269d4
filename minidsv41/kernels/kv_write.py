"""Norm, rotation and packing of new keys in one pass, straight into the cache: twins of `ops.kv_write`.

A program takes a few rows; a warp holds a row of 512 in registers, 16 channels a thread, and meets other threads only
in sums and maxima. A row is read once and stored once, bf16: 1,024 B in, 256 B of angles, and 288 B (main), 528 B
(window) out. Device memory limits it, barely: main needs about 20 instructions an element, as no card before
Blackwell rounds to E2M1 by itself. Rounding goes through bits: |x / s| times 2**-126 has its E2M1 code in its top
exponent and mantissa bits. x / s is x times 1 / s; what lies within 8 float32 steps of a tie counts as a tie.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.formats import INDEX, MAIN, WINDOW, Format
from minidsv41.kernels import launch as launching
from minidsv41.kernels.codes import e4m3_decode, e4m3_encode, ue8m0_decode, ue8m0_encode
from minidsv41.kernels.launch import launch, native_fp8, require
from minidsv41.ops import Rows

INTERPRETED = tl.constexpr(launching.INTERPRETED)
ACTIVATIONS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


class Tile(NamedTuple):
    """Rows that a program writes one after the other, and its warps."""

    rows: int
    warps: int = 1


def tile_of(rows: int) -> Tile:
    """About as many programs as an H200 holds at once, 132 x 32 of one warp."""
    return Tile(rows=max(1, min(16, rows // 4096)))


@triton.jit
def rounded(x, TYPE: tl.constexpr):
    """float32 -> the nearest number of TYPE, ties to even, as float32. The interpreter's own cast cuts bits off."""
    if tl.float32 == TYPE:
        return x
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return tl.inline_asm_elementwise(  # two at a time; `x.to(TYPE)` would convert one by one, on a slow unit
        "{.reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; shl.b32 $0, t, 16; and.b32 $1, t, 0xffff0000;}",
        "=r,=r,r,r", [x], tl.float32, True, 2,
    )  # fmt: skip


@triton.jit
def over(x, N: tl.constexpr):
    """x / N for a small whole N, exact where the quotient is short, without the branches of a true division."""
    ONE: tl.constexpr = 1.0 / N
    near = ((x * ONE).to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)  # near * N is exact
    return near + (x - near * N) * ONE


@triton.jit
def halves(low, high):
    """float32 pairs, scaled by 2**-14 and cut at 6 -> their float16 bits, both in one int32."""
    if INTERPRETED:
        low, high = tl.clamp(low, -6 * 2.0**-14, 6 * 2.0**-14), tl.clamp(high, -6 * 2.0**-14, 6 * 2.0**-14)
        low, high = low.to(tl.float16).to(tl.int16, bitcast=True), high.to(tl.float16).to(tl.int16, bitcast=True)
        return (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)
    return tl.inline_asm_elementwise(
        """{.reg .b32 t, m; cvt.rn.f16x2.f32 t, $2, $1; mov.b32 m, 0x0E000E00; min.f16x2 t, t, m;
        mov.b32 m, 0x8E008E00; max.f16x2 $0, t, m;}""",
        "=r,r,r", [low, high], tl.int32, True, 1,
    )  # fmt: skip


@triton.jit
def nibbles(x, inverse, N: tl.constexpr, TYPE: tl.constexpr):
    """x [N * 8] times inverse, of the same shape -> E2M1 codes, eight in an int32 [N], the first lowest.

    x times a small power of two, as a float, has its code in the lowest exponent bit or two and the first of the
    mantissa. For bfloat16, float16 is enough to tell a tie (quotients differ by 2**-8 or not at all), and two fit.
    """
    if tl.bfloat16 == TYPE:
        low, high = (x * (inverse * 2.0**-14)).reshape(N, 2, 4).permute(0, 2, 1).split()  # channels k and k + 4
        bits = halves(low, high)
        bits += 0xFF00FF + ((bits >> 9) & 0x10001)  # up where beyond a half, or at it and odd
        codes = ((bits >> 9) & 0x70007) | ((bits >> 12) & 0x80008)
        return tl.sum(codes << (tl.arange(0, 4) * 4)[None, :], 1)
    x *= inverse
    bits = tl.minimum(tl.abs(x) * 2.0**-126, 6 * 2.0**-126).to(tl.int32, bitcast=True)
    codes = (bits + 0x1FFFF8 + ((bits >> 18) & 16)) >> 22  # what is within 8 steps of a tie counts as one
    codes = (codes | ((x.to(tl.int32, bitcast=True) >> 28) & 8)).reshape(N, 8)
    return tl.sum(codes << (tl.arange(0, 8) * 4)[None, :], 1)


@triton.jit
def packed(
    x, WIDE: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr
):  # fmt: skip
    """x [WIDE] -> int32 words [WIDE * bits / 32] and uint8 scale codes [WIDE / GROUP]."""
    FLOOR: tl.constexpr = 6 * 2.0**-9 if FORM == "main" else 1e-4 if FORM == "window" else 6 * 2.0**-126
    LARGEST: tl.constexpr = 448.0 if FORM == "window" else 6.0
    largest = tl.max(tl.abs(x).reshape(WIDE // GROUP, GROUP), 1)
    scale = over(tl.maximum(largest, FLOOR, propagate_nan=tl.PropagateNan.ALL), LARGEST)
    if FORM == "main":
        scales = e4m3_encode(scale, FP8)
        inverse = 1.0 / e4m3_decode(scales, FP8).to(tl.float32)
    else:
        scales = ue8m0_encode(scale)
        inverse = ue8m0_decode(254 - scales.to(tl.int32))
    inverse = inverse.expand_dims(1).broadcast_to(WIDE // GROUP, GROUP).reshape(WIDE)
    if FORM == "window":
        x *= inverse
        codes = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True) if FP8 else e4m3_encode(x, FP8)
        words = tl.sum(codes.to(tl.int32).reshape(WIDE // 4, 4) << (tl.arange(0, 4) * 8)[None, :], 1)
    else:
        words = nibbles(x, inverse, WIDE // 8, TYPE)
    return words, scales


@triton.jit
def placed(
    x, at, data, scales, FIRST: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr,
    WORD: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Pack x [WIDE] and store it as the channels from FIRST on of physical row `at`; -1: not at all."""
    words, groups = packed(x, WIDE, GROUP, FORM, TYPE, FP8)
    tl.store(data + at * (D // WORD) + (FIRST // WORD) + tl.arange(0, WIDE // WORD), words, at >= 0)
    tl.store(scales + at * (D // GROUP) + (FIRST // GROUP) + tl.arange(0, WIDE // GROUP), groups, at >= 0)


@triton.jit
def turned(x, angles, cos, sin, WIDE: tl.constexpr, R: tl.constexpr, TYPE: tl.constexpr):
    """Turn the last R channels of x [WIDE] by row `angles` of cos and sin."""
    p = tl.arange(0, WIDE // 2) - (WIDE - R) // 2
    c = tl.load(cos + angles * (R // 2) + p, p >= 0, 1.0)
    s = tl.load(sin + angles * (R // 2) + p, p >= 0, 0.0)
    a, b = x.reshape(WIDE // 2, 2).split()
    first = tl.where(p >= 0, rounded(a * c - b * s, TYPE), a)
    second = tl.where(p >= 0, rounded(a * s + b * c, TYPE), b)
    return tl.join(first, second).reshape(WIDE)


@triton.jit
def inverse_rms(total, D: tl.constexpr, eps):
    """Of a row with `total` as its sum of squares; NaN if that is not finite."""
    return tl.rsqrt(total / D + eps) + (total - total)


@triton.jit
def physical(table, seq, index, pages, PAGE: tl.constexpr):
    """Row `index` of sequence `seq` by the page table, -1 for -1."""
    page = tl.load(table + seq.to(tl.int64) * pages + index // PAGE, index >= 0, 0).to(tl.int64)
    return tl.where(index >= 0, page * PAGE + index % PAGE, -1)


@triton.jit
def write(
    x, norm, cos, sin, seq, index, table, data, scales, n, stride, pages, eps,
    D: tl.constexpr, R: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr,
    GROUP: tl.constexpr, WORD: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    REST: tl.constexpr = D - WIDE
    d = tl.arange(0, WIDE)
    row = tl.program_id(0).to(tl.int64) * ROWS
    gain, rest_gain = tl.load(norm + REST + d).to(tl.float32), tl.load(norm + d).to(tl.float32)
    here = x + row * stride + d
    ahead, rest_ahead = tl.load(here + REST, row < n, 0.0), tl.load(here, row < n, 0.0)
    for _ in range(ROWS):
        last, rest = ahead.to(tl.float32), rest_ahead.to(tl.float32)
        here += stride
        ahead, rest_ahead = tl.load(here + REST, row + 1 < n, 0.0), tl.load(here, row + 1 < n, 0.0)
        at = physical(table, tl.load(seq + row, row < n, 0), tl.load(index + row, row < n, -1), pages, PAGE)
        squares = last * last
        if REST:
            squares += rest * rest
        factor = inverse_rms(tl.sum(squares), D, eps)
        last = turned(rounded(last * factor * gain, TYPE), row, cos, sin, WIDE, R, TYPE)
        if REST:
            rest = rounded(rest * factor * rest_gain, TYPE)
            placed(rest, at, data, scales, 0, D, WIDE, GROUP, WORD, FORM, TYPE, FP8)
        placed(last, at, data, scales, REST, D, WIDE, GROUP, WORD, FORM, TYPE, FP8)
        row += 1


def kv_write(
    x: Tensor,
    norm: Tensor,
    eps: float,
    rotation_cos: Tensor,
    rotation_sin: Tensor,
    into: Rows,
    seq: Tensor,
    index: Tensor,
    *,
    tile: Tile | None = None,
) -> None:
    """As the plain twin."""
    require(x.dim() == 2 and x.stride(1) == 1, f"x {tuple(x.shape)}, strides {x.stride()}: allowed are rows [n, D]")
    require(x.dtype in ACTIVATIONS, f"x {x.dtype}: allowed are float32 and bfloat16")
    n, D = x.shape
    shared = arguments(norm, rotation_cos, rotation_sin, into, seq, index, n, D)
    tile = tile or tile_of(n)
    launch(
        write, (triton.cdiv(n, tile.rows),), x=x, n=n, stride=x.stride(0), eps=eps, ROWS=tile.rows,
        TYPE=ACTIVATIONS[x.dtype], num_warps=tile.warps, **shared,
    )  # fmt: skip


def arguments(
    norm: Tensor, cos: Tensor, sin: Tensor, into: Rows, seq: Tensor, index: Tensor, n: int, D: int
) -> dict[str, object]:
    """What kernels are given of norm, rotation and place. Raises Unsupported where something does not fit."""
    require(into.format is not None, f"into: rows of {into.data.dtype}: allowed are packed rows, codes with scales")
    form, R = into.format, 2 * cos.shape[-1]
    require(form in (MAIN, INDEX, WINDOW), f"into: {form}: allowed are the formats main, index and window")
    require(D in (32, 64, 128, 256, 512, 1024), f"D = {D}: allowed are powers of two from 32 to 1024")
    require(0 < R <= D, f"cos {tuple(cos.shape)}: allowed are 1 to {D // 2} angles for rows of {D}")
    word = 32 // form.values.bits
    shapes = dict(norm=(norm, (D,)), cos=(cos, (n, R // 2)), sin=(sin, (n, R // 2)), seq=(seq, (n,)))
    shapes |= dict(index=(index, (n,)), data=(into.data, (len(into.data), D * 4 // word)))
    shapes |= dict(scales=(into.scales, (len(into.data), D // form.group)))
    for name, (x, shape) in shapes.items():
        require(x.shape == shape, f"{name} {tuple(x.shape)}: allowed is {shape}")
        require(x.is_contiguous(), f"{name}: strides {x.stride()}: allowed are contiguous tensors")
    require(cos.dtype == sin.dtype == torch.float32, f"cos {cos.dtype}, sin {sin.dtype}: allowed is float32")
    wide = D // 2 if D > 256 and 2 * R <= D else D  # the half that is turned, or the whole
    return dict(
        norm=norm, cos=cos, sin=sin, seq=seq, index=index, table=into.table.contiguous(), scales=into.scales,
        data=into.data.view(torch.int32), pages=into.table.shape[1], D=D, R=R, WIDE=wide, PAGE=into.page,
        GROUP=form.group, WORD=word, FORM=form.name, FP8=native_fp8(into.data.device),
    )  # fmt: skip


def specimen(form: Format, D: int, T: int = 32768, R: int = 64) -> None:
    """A call without data at released widths."""
    on = dict(device="meta")
    x, norm, angles = torch.empty(T, D, dtype=torch.bfloat16, **on), torch.empty(D, **on), torch.empty(T, R // 2, **on)
    codes = D * form.values.bits // 8
    data, scales = (torch.empty(T, width, dtype=torch.uint8, **on) for width in (codes, D // form.group))
    place = torch.empty(T, dtype=torch.int64, **on)
    into = Rows(data, torch.empty(1, T // 64, dtype=torch.int64, **on), 64, scales, form, torch.bfloat16)
    kv_write(x, norm, 1e-20, angles, angles, into, place, place)


SPECIMENS = {
    "main": lambda: specimen(MAIN, 512),
    "window": lambda: specimen(WINDOW, 512),
    "index": lambda: specimen(INDEX, 128),
}
