"""The two forms of MLA against the clock: what a record of `minidsv41 bench absorption` says."""

from __future__ import annotations

from typing import Any


def break_even(results: dict[str, Any]) -> str:
    """From how many new queries the expanded form is the quicker one, as far as the record goes."""
    rows = results["seconds"]
    if results["crossing"]:
        return f"{results['crossing']:.0f} queries"
    if rows[-1]["absorbed"] < rows[-1]["naive"]:
        return f"more than {rows[-1]['queries']} queries"
    return f"fewer than {rows[0]['queries'] + 1} queries"


def climb(results: dict[str, Any], form: str, *, start: int = 64) -> float:
    """µs for one query more, from `start` queries to the most that were timed."""
    first, last = next(row for row in results["seconds"] if row["queries"] >= start), results["seconds"][-1]
    return 1e6 * (last[form] - first[form]) / (last["queries"] - first["queries"])


def written(settings: dict[str, Any], queries: int) -> int:
    """Bytes of keys and values that the expanded form writes out for all heads, and reads again."""
    size = 2 if settings.get("device") == "cuda" else 4
    width = settings["nope"] + settings["rope"] + settings["v"]
    return (settings["prefix"] + queries) * settings["heads"] * width * size
