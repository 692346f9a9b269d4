"""Rows for a reader: one for each stage, layers and draft positions taken together."""

from __future__ import annotations

import json
from dataclasses import asdict

from minidsv41.ops import Versions
from minidsv41.parity.compare import Row


def by_stage(rows: list[Row]) -> list[Row]:
    """One row for each case, dtype and stage, layers and draft positions taken together."""
    merged: dict[tuple[str, str, str], Row] = {}
    rank = {"FAIL": 0, "flip": 1, "ok": 2, "not compared": 3}
    for row in rows:
        where, stage = split_stage(row.stage)
        key = row.case, row.dtype, stage
        first = f"{where} {row.first}".strip() if row.first else ""
        if key not in merged:
            merged[key] = Row(row.case, row.dtype, stage, row.verdict, row.error, first)
            continue
        kept = merged[key]
        kept.first = kept.first or first
        kept.verdict = min(kept.verdict, row.verdict, key=rank.__getitem__)
        if row.error is not None:
            kept.error = max(kept.error or 0.0, row.error)
    return list(merged.values())


def split_stage(name: str) -> tuple[str, str]:
    """ "L3.attn.q" -> ("L3", "attn.q"); "p23.trace.D0.attn.x" -> ("p23 D0", "attn.x");
    "enc.H4.T80.logits" -> ("H4 T80", "enc.logits")."""
    parts = name.split(".")
    if lengths := [p for p in parts if p[0] in "HT" and p[1:].isdigit()]:
        return " ".join(lengths), ".".join(p for p in parts if p not in lengths)
    where = []
    head, _, rest = name.partition(".")
    while rest and (head[0] in "LpD" and head[1:].isdigit() or head == "trace"):
        if head != "trace":
            where.append(head)
        head, _, rest = rest.partition(".")
    return " ".join(where), f"{head}.{rest}" if rest else head


def to_json(rows: list[Row]) -> str:
    return json.dumps([asdict(r) for r in rows], indent=1)


def ran(seen: Versions) -> str:
    """Which versions of the operations ran, and how often; why a kernel did not."""
    parts = []
    for name, found in seen.summary().items():
        calls = ", ".join(f"{found[version]} {version}" for version in ("kernel", "plain") if version in found)
        parts.append(f"{name} {calls}" + (f" (refused: {found['refused']})" if "refused" in found else ""))
    return "ran: " + "; ".join(parts)


def show(rows: list[Row], console) -> None:
    """Print one row for each stage, and the verdict."""
    from rich.table import Table

    table = Table("case", "dtype", "stage", "largest error", "verdict", "first beyond tolerance", box=None)
    colour = {"ok": "green", "FAIL": "bold red", "flip": "yellow", "not compared": "dim"}
    for row in by_stage(rows):
        error = "" if row.error is None else f"{row.error:.1e}"
        table.add_row(row.case, row.dtype, row.stage, error, f"[{colour[row.verdict]}]{row.verdict}[/]", row.first)
    console.print(table)
    counts = {v: sum(r.verdict == v for r in rows) for v in colour}
    console.print(", ".join(f"{n} {v}" for v, n in counts.items() if n))
    if counts["flip"]:
        console.print(
            "flip: float32 rounds or selects otherwise where the reference's margin is narrow; float64 agrees"
        )
