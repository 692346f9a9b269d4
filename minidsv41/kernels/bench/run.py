"""The measurement of one case: right first, then timed, the kernel and everything beside it, round after round."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from statistics import median
from typing import Any

import torch

import minidsv41.kernels.bench as package
from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.kernels.bench.ceilings import Ceilings
from minidsv41.kernels.bench.timing import Timer, first_line

ROTATED = 120_000_000  # bytes of all slots together: twice the L2 of an H200
SLOTS, BUILDING = 512, 3.0  # most slots of a case, most seconds to build them
UNFINISHED = "unfinished"
Row = dict[str, Any]


def cases(only: str = "") -> tuple[dict[str, Case], list[str]]:
    """The cases by name, those with targets first, and what cannot be imported.

    only: a part of the name of a case or of its file.
    """
    found, missing = {}, []
    for module in iter_modules(package.__path__):
        try:
            own = getattr(import_module(f"{package.__name__}.{module.name}"), "CASES", [])
        except Exception as error:  # one file that is not right must not keep the others from being measured
            missing.append(f"{module.name}: {first_line(error)}")
            continue
        found |= {case.name: case for case in own if only in module.name or only in case.name}
    return dict(sorted(found.items(), key=lambda pair: pair[1].target_us is None)), missing


@dataclass(frozen=True)
class Bench:
    """How cases are measured. On the CPU only with a timer that does not look at a GPU."""

    device: torch.device
    timer: Timer
    ceilings: Ceilings
    rounds: int = 2
    compiled: bool = True  # whether runs named "compile…" take part

    def case(self, case: Case) -> Iterator[Row]:
        """Rows of one case; a row that comes again, known by its contestant, replaces the one before."""
        slots = self.slots(case)
        names = [name for name in slots[0].runs if self.compiled or not name.startswith("compile")]
        for name in sorted(names, key=lambda name: name.startswith("compile")):  # these may take long: last
            row = self.blank(case, slots[0], name) | {"note": UNFINISHED}
            yield row
            try:
                yield (row := row | self.measured(case, slots, name) | {"note": ""})
            except Exception as error:
                yield row | {"note": first_line(error)}
                self.check()
                continue
            for _ in range(self.rounds - 1):
                if row["rounds"]:
                    yield (row := row | self.timed(case, slots, name, row["rounds"]))

    def slots(self, case: Case) -> list[Contest]:
        """Inputs of which all together do not fit in the L2 cache twice."""
        if self.device.type == "cuda":
            torch._dynamo.reset()  # beyond its limit of recompilations it would run uncompiled
        wanted = max(1, min(SLOTS, -(-ROTATED // max(1, case.bytes)))) if self.device.type == "cuda" else 2
        built = [case.build(self.device, 0)]  # which may make what all share, a table of gigabytes
        began = time.monotonic()
        while len(built) < wanted and time.monotonic() - began < BUILDING:
            built.append(case.build(self.device, len(built)))
        return built

    def blank(self, case: Case, contest: Contest, name: str) -> Row:
        floor = round(self.ceilings.floor_us(case.bytes, case.flops), 3)
        row = {"operation": case.operation, "shape": case.shape, "contestant": name, "median_us": None, "rounds": []}
        row |= {"bytes": case.bytes, "flops": case.flops, "floor_us": floor, "ratio": None}
        if name == "kernel":
            row |= {"target_us": case.target_us, "met": None, "error": None, "tolerance": contest.tolerance}
            row |= {"workspace": contest.workspace}
        return row

    def measured(self, case: Case, slots: list[Contest], name: str) -> Row:
        """The kernel's error, and unless it is too large, the first round."""
        out: Row = {}
        if name == "kernel":
            error = float(slots[0].error())
            out = {"error": error}
            if not error <= slots[0].tolerance:
                return out | {"wrong": True}
        return out | self.timed(case, slots, name, [])

    def timed(self, case: Case, slots: list[Contest], name: str, before: list[dict]) -> Row:
        """One more round, and what follows from all of them."""
        timing = self.timer([slot.runs[name] for slot in slots], capture=name not in slots[0].eager)
        samples = sorted(timing.samples)
        quartiles = [samples[len(samples) * k // 4] for k in (1, 3)]
        times = {"median": timing.median, "quartiles": quartiles, "min": samples[0], "max": samples[-1]}
        rounds = [*before, {k: rounded(v) for k, v in times.items()}]
        us = median(each["median"] for each in rounds)
        row = {"median_us": rounded(us), "rounds": rounds, "method": timing.method, "calls": timing.calls}
        row |= {
            "slots": timing.slots,
            "ratio": round(us / max(1e-9, self.ceilings.floor_us(case.bytes, case.flops)), 2),
        }
        if timing.why:
            row |= {"not_captured": timing.why}
        return row | ({"met": us <= case.target_us} if name == "kernel" and case.target_us else {})

    def check(self) -> None:
        """Raises if the GPU of this process is beyond use; frees what a failed run may have left."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def rounded(value: float | list[float]) -> float | list[float]:
    """Times to four significant digits."""
    return [rounded(v) for v in value] if isinstance(value, list) else float(f"{value:.4g}")
