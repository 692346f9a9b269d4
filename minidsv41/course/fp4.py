"""What happens to a row that is stored in few bits: scales, codes, errors, and which channels become zero."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41.formats import Format


@dataclass(frozen=True)
class Stored:
    """One row of float64 before and after its format.

    before, after [width]; codes [width] uint8, one an element; scales [width / group] and their bytes.
    """

    fmt: Format
    before: Tensor
    after: Tensor
    codes: Tensor
    scales: Tensor
    scale_bytes: Tensor

    @classmethod
    def of(cls, row: Tensor, fmt: Format) -> Stored:
        """row [width], a multiple of the format's group."""
        packed, scale_bytes = fmt.encode(row.double())
        return cls(
            fmt=fmt,
            before=row.double(),
            after=fmt.decode(packed, scale_bytes, torch.float64),
            codes=fmt.values.unpack(packed),
            scales=fmt.scales.decode(scale_bytes, torch.float64),
            scale_bytes=scale_bytes,
        )

    @property
    def dead(self) -> Tensor:
        """[width] channels that were something and are stored as zero."""
        return (self.after == 0) & (self.before != 0)

    @property
    def relative(self) -> Tensor:
        """[width] |after - before| / |before|: 0 is exact, 1 is dead."""
        return ((self.after - self.before).abs() / self.before.abs()).nan_to_num(0.0)

    @property
    def lines(self) -> Tensor:
        """[width / group] what does not exceed its group's line dies: half of the smallest value, times the scale."""
        smallest = self.fmt.values.decode(torch.tensor([1], dtype=torch.uint8), torch.float64)
        return smallest / 2 * self.scales


def with_outlier(row: Tensor, channel: int, times: float) -> Tensor:
    """The row with one channel at `times` the root mean square of all, its sign kept."""
    out = row.clone()
    out[channel] = torch.copysign(times * row.square().mean().sqrt(), row[channel])
    return out


def described(found: Stored) -> str:
    """HTML, for each group: scale and its byte, who died, the error, and lines of codes in hexadecimal."""
    lines, digits = [], found.fmt.values.bits // 4
    for n, group in enumerate(found.codes.split(found.fmt.group)):
        at = slice(n * found.fmt.group, (n + 1) * found.fmt.group)
        error = (found.after[at] - found.before[at]).norm() / found.before[at].norm()
        lines += [
            f"channels {at.start}–{at.stop - 1}: scale {found.scales[n]:.5g} (byte {int(found.scale_bytes[n]):02x}), "
            f"{int(found.dead[at].sum())} of {found.fmt.group} dead, error {error:.1%} of the norm",
            *textwrap.wrap("codes " + " ".join(f"{int(code):0{digits}x}" for code in group), 70 if digits == 1 else 54),
        ]
    return "<br>".join(lines)
