"""The record of a measurement: written after each case, and read as a table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from minidsv41.kernels.bench.case import Case
from minidsv41.kernels.bench.ceilings import Ceilings
from minidsv41.kernels.bench.run import UNFINISHED, Row


class Lost(RuntimeError):
    """The measuring process died or did not answer in time."""


@dataclass
class Record:
    """The record: machines with their ceilings in `runs`, and rows, each with the number of its run."""

    path: Path
    content: dict

    @classmethod
    def begin(cls, folder: Path, settings: dict, machine: dict, ceilings: Ceilings) -> Record:
        """A new run in the record of this card, kernels_CARD.json; rows of earlier runs stay until measured again."""
        path = folder / f"kernels_{short(machine['device'])}.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"kind": "kernels", "runs": []}
        run = {"machine": machine, "settings": settings, "ceilings": asdict(ceilings)}
        return cls(path, old | {"runs": [*old["runs"], run], "rows": old.get("rows", [])})

    def latest(self) -> list[Row]:
        """The rows of this run."""
        return [row for row in self.content["rows"] if row["run"] == len(self.content["runs"]) - 1]

    def put(self, row: Row) -> None:
        """Add a row in place of the one of the same operation, shape and contestant."""
        new = row | {"run": len(self.content["runs"]) - 1}
        rows = self.content["rows"]
        place = next((i for i, old in enumerate(rows) if key(old) == key(row)), len(rows))
        rows[place : place + 1] = [new]

    def save(self) -> None:
        """Write it in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        new.replace(self.path)


def short(device: str) -> str:
    """A card's name in a file name: "NVIDIA H200" -> "h200"."""
    return "_".join(word for word in device.lower().split() if word not in ("nvidia", "geforce", "tesla"))


def key(row: Row) -> tuple[str, str, str]:
    return row["operation"], row["shape"], row["contestant"]


def measure(
    chosen: dict[str, Case],
    record: Record,
    rows: Callable[[str], Iterator[Row]],
    *,
    seconds: float,
    say: Callable[[str], None] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Put the rows of all cases into the record; those that begin after `seconds` are noted as not measured."""
    end = clock() + seconds
    for name, case in chosen.items():
        got: dict[tuple, Row] = {}
        try:
            if clock() > end:
                raise Lost("not measured: the time was up")
            for row in rows(name):
                got[key(row)] = row
        except Lost as lost:
            waiting = [row for row in got.values() if row["note"] == UNFINISHED]
            for row in waiting if got else [failed(case, "")]:
                got[key(row)] = row | {"note": str(lost)}
        for row in got.values():
            record.put(row)
        record.save()
        say(line(case, list(got.values())))


def line(case: Case, rows: list[Row]) -> str:
    """What was found about a case, to be read while others run."""
    told = [f"{r['contestant']} {r['median_us']:g}" if r["median_us"] else f"{r['contestant']}: {why(r)}" for r in rows]
    return f"{case.name}: " + ", ".join(told)


def why(row: Row) -> str:
    return f"wrong, error {row['error']:.1e}" if row.get("wrong") else row.get("note", "")


def failed(case: Case, note: str) -> Row:
    """The row of a kernel that was not measured."""
    names = {"operation": case.operation, "shape": case.shape, "contestant": "kernel", "median_us": None}
    return names | {"bytes": case.bytes, "flops": case.flops, "target_us": case.target_us, "met": None, "note": note}


def table(rows: list[Row]) -> Table:
    """The kernels of a record, each with its floor, its target and its best peer."""
    made = Table(title="µs of GPU time", caption="floor: bytes or products at the ceilings of the same run")
    for heading in ("operation", "shape"):
        made.add_column(heading)
    for heading in ("kernel", "rounds", "floor", "ratio", "target", "", "best peer", "error"):
        made.add_column(heading, justify="right")
    for row in (r for r in rows if r["contestant"] == "kernel"):
        peers = [r for r in rows if key(r)[:2] == key(row)[:2] and r is not row and r["median_us"]]
        best = min(peers, key=lambda r: r["median_us"], default=None)
        peer = f"{best['contestant']} {best['median_us']:,.4g}" if best else ""
        target = f"{row['target_us']:,g}" if row["target_us"] else ""
        verdict = {True: "met", False: "missed", None: ""}[row["met"]]
        if row["median_us"]:
            spread = " ".join(f"{each['median']:,.4g}" for each in row["rounds"])
            cells = f"{row['median_us']:,.4g}", spread, f"{row['floor_us']:,.3g}", f"{row['ratio']:.2f}"
            made.add_row(*key(row)[:2], *cells, target, verdict, peer, f"{row['error']:.1e}")
        else:
            made.add_row(*key(row)[:2], why(row), "", "", "", target, verdict, peer, "")
    return made


def counted(rows: list[Row]) -> str:
    """How many targets are met."""
    kernels = [r for r in rows if r["contestant"] == "kernel" and r.get("target_us")]
    return f"{sum(bool(r['met']) for r in kernels)} of {len(kernels)} targets met"
