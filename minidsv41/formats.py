"""Number formats: small floats, the scales that go with them, and the rows and weights stored in them.

Rounding is to nearest, ties to the even code; finite values beyond the range saturate; the sign of zero is kept.
NaN and infinity come out as NaN, never as a number. All arithmetic is done in the dtype of the input
(half precision is widened to float32), so a float64 value is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EXPONENT_BITS = {torch.float32: (torch.int32, 0x7F80_0000), torch.float64: (torch.int64, 0x7FF0_0000_0000_0000)}


def widened(x: Tensor) -> Tensor:
    """float32 and float64 as they are, narrower floats as float32. Raises TypeError for anything else."""
    if x.dtype in EXPONENT_BITS:
        return x
    if x.dtype in (torch.bfloat16, torch.float16):
        return x.float()
    raise TypeError(f"dtype {x.dtype}: allowed are float64, float32, bfloat16, float16")


def binade(x: Tensor) -> Tensor:
    """The largest power of two <= |x|; 0 for subnormal x, infinity for NaN and infinity."""
    integer, mask = EXPONENT_BITS[x.dtype]
    return (x.view(integer) & mask).view(x.dtype)


@dataclass(frozen=True)
class SmallFloat:
    """A sign, a few exponent bits (from 2**`lowest` on, subnormal below) and `mantissa` bits."""

    name: str
    bits: int
    mantissa: int
    lowest: int
    largest: float

    def round(self, x: Tensor) -> Tensor:
        """Nearest value of this format; float32 or float64 in, the same out."""
        step = binade(x).clamp_min_(2.0**self.lowest).mul_(2.0**-self.mantissa)
        return (x / step).round_().mul_(step).clamp_(-self.largest, self.largest)

    def encode(self, values: Tensor) -> Tensor:
        """Values on this format's grid -> one uint8 code each."""
        if self.bits == 8:
            return values.to(torch.float8_e4m3fn).view(torch.uint8)
        a = values.abs().nan_to_num_(0.0)
        codes = (2 * a).minimum(a + 2).minimum(a / 2 + 4)  # 0 0.5 1 1.5 2 3 4 6 -> 0..7
        return codes.to(torch.uint8) | (values.signbit().to(torch.uint8) << 3)

    def decode(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        if self.bits == 8:
            return codes.view(torch.float8_e4m3fn).to(dtype)
        c = (codes & 7).to(dtype)
        a = (c / 2).maximum(c - 2).maximum(2 * c - 8)
        return torch.where(codes > 7, -a, a)

    def pack(self, codes: Tensor) -> Tensor:
        """One code an element -> bytes; of two 4-bit codes the even column is the low nibble: [..., n * bits / 8]."""
        return codes if self.bits == 8 else codes[..., ::2] | (codes[..., 1::2] << 4)

    def unpack(self, packed: Tensor) -> Tensor:
        return packed if self.bits == 8 else torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


@dataclass(frozen=True)
class PowerOfTwo:
    """E8M0: 2**(byte - 127); byte 255 is NaN. Rounds up, so that a group's largest value never saturates."""

    name: str = "UE8M0"

    def round(self, x: Tensor) -> Tensor:
        low = binade(x)
        up = torch.where(x > low, 2 * low, low).clamp_(2.0**-126, 2.0**127)
        return up + (x - x)  # NaN for what is not finite

    def encode(self, values: Tensor) -> Tensor:
        return values.to(torch.float8_e8m0fnu).view(torch.uint8)

    def decode(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        return codes.view(torch.float8_e8m0fnu).to(dtype)


E2M1 = SmallFloat("E2M1", bits=4, mantissa=1, lowest=0, largest=6.0)
E4M3 = SmallFloat("E4M3", bits=8, mantissa=3, lowest=-6, largest=448.0)
UE8M0 = PowerOfTwo()


@dataclass(frozen=True)
class Format:
    """How one row of a cache is stored: small floats in groups of `group` columns, each group with its scale.

    `floor` bounds a group's largest magnitude from below (official code).
    """

    name: str
    values: SmallFloat
    scales: SmallFloat | PowerOfTwo
    group: int
    floor: float

    def __str__(self) -> str:
        return f"{self.name}: {self.values.name} per {self.group} with {self.scales.name} scale"

    def row_bytes(self, width: int) -> int:
        """Bytes of one stored row: values, then scales."""
        return width * self.values.bits // 8 + width // self.group

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [..., width] -> bytes [..., width * bits / 8] and scale bytes [..., width / group], both uint8."""
        values, scales = self._rounded(widened(x))
        return self.values.pack(self.values.encode(values).flatten(-2)), self.scales.encode(scales.squeeze(-1))

    def decode(self, codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Undoes `encode`: -> [..., width] of `dtype`."""
        values = self.values.decode(self.values.unpack(codes), dtype).unflatten(-1, (-1, self.group))
        return (values * self.scales.decode(scales, dtype).unsqueeze(-1)).flatten(-2)

    def fake_quant(self, x: Tensor) -> Tensor:
        """decode(encode(x)) without the bytes; the gradient passes as if nothing had happened."""
        return StraightThrough.apply(x, self)

    def _rounded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [..., width] -> grid values [..., n, group] and their scales [..., n, 1]."""
        if x.shape[-1] % self.group:
            raise ValueError(f"width {x.shape[-1]}: {self.name} rows have one scale per {self.group} columns")
        x = x.unflatten(-1, (-1, self.group))  # [..., n, group]
        largest = x.abs().amax(-1, keepdim=True).clamp_min_(self.floor)
        scales = self.scales.round(largest / self.values.largest)
        return self.values.round(x / scales), scales


class StraightThrough(torch.autograd.Function):
    """Rounds on the way forward, does nothing on the way back."""

    @staticmethod
    def forward(ctx, x: Tensor, fmt: Format) -> Tensor:
        values, scales = fmt._rounded(widened(x))
        return values.mul_(scales).flatten(-2).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


MAIN = Format("main", E2M1, E4M3, group=16, floor=6 * 2.0**-9)
INDEX = Format("index", E2M1, UE8M0, group=32, floor=6 * 2.0**-126)
WINDOW = Format("window", E4M3, UE8M0, group=32, floor=1e-4)


@dataclass(frozen=True)
class WeightFormat:
    """How a matrix is stored: blocks of `rows` x 32 small floats, each with a power-of-two scale.

    Blocks at the right and lower edge may be incomplete. An all-zero block has scale 1.
    """

    values: SmallFloat
    rows: int
    columns: int = 32

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        return -(-rows // self.rows), -(-columns // self.columns)

    def largest(self, w: Tensor) -> Tensor:
        """w [..., out, in] -> the largest magnitude of each block [..., ceil(out / rows), ceil(in / 32)]."""
        out, columns = w.shape[-2:]
        padded = torch.nn.functional.pad(w.abs(), (0, -columns % self.columns, 0, -out % self.rows))
        return padded.unflatten(-1, (-1, self.columns)).unflatten(-3, (-1, self.rows)).amax((-3, -1))

    def spread(self, scales: Tensor, out: int, columns: int) -> Tensor:
        """One scale a block -> one scale an element: [..., out, columns]."""
        wide = scales.repeat_interleave(self.rows, -2).repeat_interleave(self.columns, -1)
        return wide[..., :out, :columns]

    def encode(self, w: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """w [..., out, in] -> uint8 codes (packed along `in` if 4-bit) and one uint8 scale a block.

        Several scales can hold the same weights: `known` ones are kept where they lose nothing.
        """
        w = widened(w)
        largest = self.largest(w)
        scales = torch.where(largest == 0, 1.0, UE8M0.round(largest / self.values.largest))
        if known is not None:
            kept = UE8M0.decode(known.to(w.device), w.dtype)
            lost = self._rounded(w, kept) * self.spread(kept, *w.shape[-2:]) != w
            scales = torch.where(self.largest(lost.to(w.dtype)) == 0, kept, scales)
        return self.values.pack(self.values.encode(self._rounded(w, scales))), UE8M0.encode(scales)

    def _rounded(self, w: Tensor, scales: Tensor) -> Tensor:
        return self.values.round(w / self.spread(scales, *w.shape[-2:]))

    def decode(self, codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Undoes `encode`: -> [..., out, in] of `dtype`."""
        values = self.values.decode(self.values.unpack(codes), dtype)
        return values * self.spread(UE8M0.decode(scales, dtype), *values.shape[-2:])


DENSE = WeightFormat(E4M3, rows=32)
EXPERT = WeightFormat(E2M1, rows=1)
TABLE = WeightFormat(E4M3, rows=1)
