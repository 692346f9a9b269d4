"""Small floats inside kernels: decode E2M1, E4M3 and UE8M0, encode the last two (`formats` has the plain versions).

Integer arithmetic works on every card and in the interpreter; FP8 asks a card that has E4M3 (sm_89 on) to do it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def e2m1_decode(codes):
    """4-bit codes (any integer type) -> float16. 2**14 lifts exponent and subnormal alike."""
    c = codes.to(tl.int16)
    bits = ((c & 8) << 12) | ((c & 7) << 9)
    return bits.to(tl.float16, bitcast=True) * 16384.0


@triton.jit
def e4m3_decode(codes, FP8: tl.constexpr):
    """uint8 codes -> float16, exact; codes 0x7f and 0xff are NaN."""
    if FP8:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    c = codes.to(tl.int16)
    bits = ((c & 0x80) << 8) | ((c & 0x7F) << 7)
    return tl.where((c & 0x7F) == 0x7F, float("nan"), bits.to(tl.float16, bitcast=True) * 256.0)


@triton.jit
def ue8m0_decode(codes):
    """uint8 codes -> float32, 2**(code - 127); code 0 is 2**-127, code 255 NaN."""
    c = codes.to(tl.int32)
    bits = tl.where(c == 0, 1 << 22, tl.where(c == 255, 0x7FC00000, c << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def round_half_even(x):
    """float32 of magnitude below 2**22 -> nearest whole number, ties to even."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def e4m3_encode(x, FP8: tl.constexpr):
    """float32 -> uint8 codes: nearest, ties to even; finite values saturate at 448, others become NaN."""
    bits = x.to(tl.int32, bitcast=True)
    a = bits & 0x7FFFFFFF
    if FP8:
        code = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32)
    else:
        held = tl.minimum(a, 0x43E00000)  # |x|, at most 448
        normal = ((held + 0x7FFFF + ((held >> 20) & 1)) >> 20) - (120 << 3)  # to three bits of mantissa
        small = round_half_even(held.to(tl.float32, bitcast=True) * 512.0).to(tl.int32)  # subnormal: steps of 2**-9
        code = tl.where(held < 0x3C800000, small, normal) | ((bits >> 24) & 0x80)
    return tl.where(a >= 0x7F800000, 0x7F, code).to(tl.uint8)


@triton.jit
def ue8m0_encode(x):
    """Positive float32 -> uint8 code of the smallest power of two >= x, from 2**-126 to 2**127; NaN if not finite."""
    bits = x.to(tl.int32, bitcast=True)
    code = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    return tl.where(bits >= 0x7F800000, 255, tl.minimum(tl.maximum(code, 1), 254)).to(tl.uint8)
