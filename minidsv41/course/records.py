"""Recorded measurements, as lessons read them: `data/records/NAME.json`."""

from __future__ import annotations

import json
from typing import Any

from minidsv41.paths import records_dir


class RecordError(ValueError):
    """A record that is not there."""


def record(name: str) -> dict[str, Any]:
    """The record of that name. Raises RecordError with the names that exist."""
    path = records_dir() / f"{name}.json"
    if not path.exists():
        raise RecordError(
            f"no record {name!r}; there are {', '.join(sorted(p.stem for p in records_dir().glob('*.json')))}"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def provenance(found: dict[str, Any]) -> str:
    """One line: the machine and the date of a record."""
    machine = found["machine"]
    device = machine.get("device") or machine["processor"]
    return f"{device}, torch {machine['torch']}, {machine['date']}"


def by_variant(found: dict[str, Any], measure: str) -> dict[str, list[float]]:
    """A study's values of one measure, a list over seeds for each variant, in the order of the record."""
    out: dict[str, list[float]] = {}
    for run in found["results"]:
        if measure in run["measures"]:
            out.setdefault(run["variant"], []).append(run["measures"][measure])
    return out
