"""Recorded measurements, as lessons read them: `data/records/NAME.json`."""

from __future__ import annotations

import json
from typing import Any

from minidsv41.paths import records_dir

MAKERS = {  # records that only a GPU can make, and how
    "kernels_h200": "minidsv41 bench kernels",
    "bench_model": "minidsv41 bench model",
    "bench_train_gpu": "minidsv41 bench train-gpu",
    "bench_absorption_gpu": "minidsv41 bench absorption --device cuda --heads 128",
}


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


def from_gpu(name: str) -> dict[str, Any] | None:
    """A record of MAKERS, or None as long as nobody has made it."""
    try:
        return record(name)
    except RecordError:
        return None


def origin(name: str) -> str:
    """The machine and the date of a record of MAKERS, or how to make it."""
    found = from_gpu(name)
    return provenance(found) if found else f"not measured yet: `{MAKERS[name]}` does it, on a GPU"


def provenance(found: dict[str, Any]) -> str:
    """One line: the machine and the date of a record, or of each of its runs."""
    machines = [run["machine"] for run in found.get("runs", [found])]
    devices = (machine.get("device") or machine["processor"] for machine in machines)
    said = (f"{device}, torch {m['torch']}, {m['date']}" for device, m in zip(devices, machines, strict=True))
    return " and ".join(dict.fromkeys(said))


def by_variant(found: dict[str, Any], measure: str) -> dict[str, list[float]]:
    """A study's values of one measure, a list over seeds for each variant, in the order of the record."""
    out: dict[str, list[float]] = {}
    for run in found["results"]:
        if measure in run["measures"]:
            out.setdefault(run["variant"], []).append(run["measures"][measure])
    return out
