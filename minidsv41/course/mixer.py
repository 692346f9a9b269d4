"""Two tokens become one entry: where a gate can put it, in two of its channels."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

Point = tuple[float, float]


@dataclass(frozen=True)
class Mix:
    """Two tokens in two channels, and the entry that the gates made of them."""

    first: Point
    second: Point
    shares: Point  # of the first token, in each channel

    @property
    def entry(self) -> Point:
        return tuple(s * a + (1 - s) * b for s, a, b in zip(self.shares, self.first, self.second, strict=True))

    @property
    def off_segment(self) -> float:
        """Distance of the entry from the segment between the tokens, in lengths of that segment."""
        d = [b - a for a, b in zip(self.first, self.second, strict=True)]
        e = [p - a for a, p in zip(self.first, self.entry, strict=True)]
        squared = d[0] ** 2 + d[1] ** 2
        return abs(d[0] * e[1] - d[1] * e[0]) / squared if squared else 0.0


def mixed(first: Point, second: Point, leads: Point, *, one_gate: bool = False) -> Mix:
    """leads: by how much the first token's gate score exceeds the second's, in each channel.

    one_gate: the first channel's lead counts for both, as if the gate were one number a token.
    """
    leads = (leads[0], leads[0]) if one_gate else leads
    return Mix(tuple(first), tuple(second), tuple(1 / (1 + exp(-lead)) for lead in leads))


def described(mix: Mix) -> str:
    """One line of HTML."""
    shares = " and ".join(f"{s:.0%}" for s in mix.shares)
    off = mix.off_segment
    where = "on the segment" if off < 1e-9 else f"off the segment by {off:.2f} of its length"
    return f"the first token's share {shares} · entry ({mix.entry[0]:.2f}, {mix.entry[1]:.2f}) {where}"
