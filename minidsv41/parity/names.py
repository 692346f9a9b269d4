"""What the names in a trace say."""

from __future__ import annotations

import re
from typing import NamedTuple

from torch import Tensor

INPUTS = {"ids", "image_mask", "positions", "next_ids", "prompt_lengths", "enc_cases", "enc_cases_noqat_extra"}


class ParityError(ValueError):
    """The folder does not have the expected layout."""


class Replay(NamedTuple):
    """A prompt of `length` tokens after a hit of `hit`; kind: enc, dec.late, dec.report, encdec or exact."""

    kind: str
    hit: int
    length: int


def drafted(reference: dict[str, Tensor]) -> list[int]:
    """Positions after which the reference drafts."""
    return sorted({int(found[1]) for name in reference if (found := re.match(r"p(\d+)\.", name))})


def replayed(reference: dict[str, Tensor]) -> dict[str, Replay]:
    """The replays of a reference: "encdec.H25.T28" -> hit 25, length 28. No hit and all ids where a name has none.

    Raises ParityError for other names and impossible lengths.
    """
    out, total = {}, len(reference["ids"])
    for name in sorted(reference.keys() - INPUTS):
        case, _, stage = name.rpartition(".")
        found = re.fullmatch(r"(enc|encdec|exact|dec\.report|dec\.late)(?:\.H(\d+))?(?:\.T(\d+))?", case)
        if not found or stage not in ("logits", "next_logits"):
            raise ParityError(f"{name}: not the name of a replay")
        out[case] = Replay(found[1], int(found[2] or 0), int(found[3] or total))
        if not out[case].hit < out[case].length <= total:
            raise ParityError(f"{name}: a prompt needs more tokens than its hit, and at most the {total} of ids")
    return out
