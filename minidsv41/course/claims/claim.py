"""One statement of a background article, what became of it, and the value that this run finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Verdict = Literal["right", "imprecise", "wrong", "sourced", "no source found"]
EXECUTED = ("right", "imprecise", "wrong")


class Found(NamedTuple):
    """What a computation printed, and whether it bears the verdict out."""

    value: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Claim:
    """number: article and row; said: the statement in our words; instead: what is so, where it is not that.

    proof: the test or lesson that proves it at length, or the source. A claim that rests on sources alone has no
    `compute`; every other has one, which runs in well under a second or two.
    """

    number: str
    said: str
    verdict: Verdict
    instead: str = ""
    proof: str
    compute: Callable[[], Found] | None = None

    def __post_init__(self) -> None:
        assert (self.compute is not None) == (self.verdict in EXECUTED), self.number
