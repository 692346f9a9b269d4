"""Times of this package's kernels on a GPU: as recorded, as points under the roof, and against their targets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from minidsv41.config import ModelConfig
from minidsv41.course.limiters import limiter
from minidsv41.course.limits import Card
from minidsv41.course.peers import Point
from minidsv41.course.records import from_gpu, origin
from minidsv41.ledger import operations
from minidsv41.ledger.flops import label
from minidsv41.ledger.operations import Work

RECORD = "kernels_h200"
Row = dict[str, Any]
Made = Callable[[ModelConfig, int], Work]

FORMS: tuple[tuple[str, str, Made], ...] = (  # operation, shape with T tokens and n entries, its work
    ("seam", r"T=(?P<T>[\d,]+)", lambda c, n: operations.seam(c)),
    ("kv_write", r"main T=(?P<T>[\d,]+)", lambda c, n: operations.kv_write(c)),
    ("index_select", r"(?P<T>\d+) x (?P<n>\d+[KM])", operations.index_select),
    (
        "index_select",
        r"prefill (?P<T>[\d,]+) x (?P<n>\d+[KM])",
        lambda c, n: operations.index_select(c, n, prompt=True),
    ),
    ("sparse_attention", r"B=(?P<T>\d+) L=(?P<n>[\d,]+) .*", operations.attention),
    (
        "sparse_attention",
        r"T=(?P<T>[\d,]+) L=(?P<n>[\d,]+) .*",
        lambda c, n: operations.attention(c, n, prompt=True),
    ),
    ("window_attention", r"T=(?P<T>[\d,]+) .*", lambda c, n: operations.window_attention(c)),
    ("engram_read", r"device table T=(?P<T>[\d,]+)", lambda c, n: operations.engram_read(c)),
    ("gated_delta", r"T=(?P<T>[\d,]+) heads=16/32 .*", lambda c, n: operations.gated_delta()),
)


def rows(operation: str = "", contestant: str = "kernel") -> dict[str, Row]:
    """What was timed of an operation (of all if not named), by shape; empty as long as there is no record."""
    found = (from_gpu(RECORD) or {"rows": []})["rows"]
    timed = (row for row in found if row["contestant"] == contestant and row["median_us"])
    return {row["shape"] if operation else name(row): row for row in timed if operation in ("", row["operation"])}


def name(row: Row) -> str:
    return f"{row['operation']} {row['shape']}"


def number(text: str | None) -> int:
    """ "1M" -> 1048576, "32,768" -> 32768; none -> 0"""
    text = (text or "0").replace(",", "")
    unit = {"K": 2**10, "M": 2**20}.get(text[-1], 1)
    return int(text.rstrip("KM")) * unit


def point(row: Row, c: ModelConfig) -> Point | None:
    """A recorded time beside the work of the ledger; None if lesson 12 draws no such operation."""
    for operation, pattern, made in FORMS:
        found = re.fullmatch(pattern, row["shape"]) if operation == row["operation"] else None
        if found:
            parts = found.groupdict()
            tokens, n = number(parts["T"]), number(parts.get("n"))
            shape = label(tokens) + (f" × {label(n)}" if operation == "index_select" else "")
            return Point(work=made(c, n), tokens=tokens, us=row["median_us"], label=shape, who="this package")
    return None


def points(c: ModelConfig) -> list[Point]:
    return [p for row in rows().values() if (p := point(row, c))]


def floor(row: Row, on: Card, c: ModelConfig) -> float:
    """µs at least; rows of a table in host memory come over its bus, at the rate that the record has for it."""
    least = on.floor(row["bytes"], row["flops"])
    if not row["shape"].startswith("host table"):
        return least
    tokens = number(row["shape"].partition("=")[2])
    stored = operations.engram_read(c).bytes(tokens) - row["bytes"]
    pinned = from_gpu(RECORD)["runs"][row["run"]]["ceilings"]["pinned"]
    return max(least, stored / pinned / 1e3)


def short(us: float | None) -> str:
    return "–" if us is None else f"{us:,.0f}" if us >= 100 else f"{us:.3g}"


def crossings(peers: list[Point], on: Card) -> dict[str, dict[int, float]]:
    """µs of a seam by tokens: its floor, this package's one pass and its three, and the best of others."""
    others = [p for p in peers if p.work.name == "seam"]
    lines = {"floor": {p.tokens: p.floor(on) for p in others}, "best peer": {p.tokens: p.us for p in others}}
    for name, contestant in (("one pass", "kernel"), ("three passes", "three_step")):
        lines[name] = {number(shape[2:]): row["median_us"] for shape, row in rows("seam", contestant).items()}
    return {name: dict(sorted(line.items())) for name, line in lines.items() if line}


def targets() -> list[Row]:
    """The rows for which a time was aimed at, measured or not."""
    found = (from_gpu(RECORD) or {"rows": []})["rows"]
    return [row for row in found if row.get("target_us")]


def table(on: Card, c: ModelConfig) -> str:
    """Markdown: each target, what was measured, and what limits the kernel where the target is missed."""
    found = targets()
    if not found:
        return origin(RECORD)
    lines = [f"{counted(found)}; {ceilings()}", ""]
    lines += ["| operation | shape | µs | floor | aim | |", "|---|---|--:|--:|--:|---|"]
    for row in found:
        times = " | ".join(map(short, (row["median_us"], floor(row, on, c), row["target_us"])))
        verdict = "met" if row["met"] else f"**missed** {limiter(name(row))}".strip()
        shape = row["shape"].partition(" heads=")[0]
        lines.append(f"| {row['operation']} | {shape} | {times} | {row.get('note') or verdict} |")
    return "\n".join(lines)


def counted(found: list[Row]) -> str:
    return f"{sum(bool(row['met']) for row in found)} of {len(found)} aims met"


def ceilings() -> str:
    """What the card itself reached, run by run, to be held against the ceilings of the peers' record."""
    runs = from_gpu(RECORD)["runs"]
    reached = (
        f"copy {run['ceilings']['copy']:,.0f} GB/s, BF16 {run['ceilings']['matmul']:.0f} TFLOP/s" for run in runs
    )
    return "in the same run: " + "; ".join(dict.fromkeys(reached))
