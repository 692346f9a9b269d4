"""Why a kernel takes longer than was aimed at: one sentence each, with what was tried."""

from __future__ import annotations

LIMITERS: dict[str, str] = {}  # by how "operation shape" begins; the longest beginning that fits counts


def limiter(name: str) -> str:
    """The sentence for a kernel at a shape, such as "seam T=1"; empty if there is none."""
    return LIMITERS.get(max((begin for begin in LIMITERS if name.startswith(begin)), key=len, default=""), "")
