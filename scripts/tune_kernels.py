"""Try other tiles of every kernel on this GPU, on the cases of its benchmark; print the best beside the default.

A kernel file chooses its tile by a function whose result is annotated as a Tile. Candidates are TILES of that file
(shape class -> tiles), or else the default with one field changed. All are compiled first, in many processes, which
hold no inputs; those that spill, or do not fit the card, are not timed. A tile that changes no launch of the timed
call is not tried. Nothing is changed: the winners go into the files by hand.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

import minidsv41.kernels as package
from minidsv41.kernels.bench.ahead import Call, compiled, compilers, dismiss, waited
from minidsv41.kernels.bench.case import Case
from minidsv41.kernels.bench.ceilings import Ceilings
from minidsv41.kernels.bench.run import Bench, cases
from minidsv41.kernels.bench.timing import GraphTimer, first_line
from minidsv41.kernels.bench.worker import prepare
from minidsv41.kernels.launch import recorded
from minidsv41.replaced import replaced

SPILLS = 100  # values that a thread may keep outside of its registers: window attention's own tile keeps 90 there
LONGEST = 1 << 30  # bytes of a case that is tried without its name being given in full
TIMER = GraphTimer(span_us=1000.0, patience_us=40_000.0, repeats=9, budget_us=100_000.0)


@dataclass(frozen=True)
class Chooser:
    """A function of a kernel file that chooses a tile from shapes."""

    file: str
    name: str

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(import_module(f"{package.__name__}.{self.file}"), self.name)

    @contextmanager
    def instead(self, make: Callable[[Callable], Callable]) -> Iterator[None]:
        """Put `make(function)` in its place, wherever a kernel file has it."""
        function = self.function
        new = make(function)
        with ExitStack() as stack:
            for name, module in list(sys.modules.items()):
                if name.startswith(package.__name__):
                    for attribute, value in list(vars(module).items()):
                        if value is function:
                            stack.enter_context(replaced(module, attribute, lambda _: new))
            yield

    def forced(self, tile: Any):
        return self.instead(lambda function: lambda *args, **kwargs: tile)


def choosers() -> list[Chooser]:
    found = []
    for module in iter_modules(package.__path__):
        own = import_module(f"{package.__name__}.{module.name}")
        for name, value in vars(own).items():
            if inspect.isfunction(value) and value.__module__ == own.__name__:
                kind = str(inspect.signature(value).return_annotation)
                if kind.removesuffix(" | None").endswith("Tile"):
                    found.append(Chooser(module.name, name))
    return found


@contextmanager
def observed() -> Iterator[dict[Chooser, Any]]:
    """What each chooser chose last within the block."""
    seen: dict[Chooser, Any] = {}

    def watched(chooser: Chooser) -> Callable[[Callable], Callable]:
        def make(function: Callable) -> Callable:
            def choose(*args, **kwargs):
                seen[chooser] = function(*args, **kwargs)
                return seen[chooser]

            return choose

        return make

    with ExitStack() as stack:
        for chooser in choosers():
            stack.enter_context(chooser.instead(watched(chooser)))
        yield seen


def neighbours(tile: Any) -> list[Any]:
    """The tile with one number doubled or halved, stages one more or less; also inside of tiles that it holds."""
    found = []
    for name, value in tile._asdict().items():
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            found += [tile._replace(**{name: inner}) for inner in neighbours(value)]
        elif isinstance(value, int) and not isinstance(value, bool):
            others = (value - 1, value + 1) if "stages" in name else (value // 2, 2 * value)
            found += [tile._replace(**{name: other}) for other in others if other >= 1]
    return found


def candidates(chooser: Chooser, default: Any) -> list[Any]:
    """Other tiles of the default's type, none twice."""
    listed = getattr(import_module(f"{package.__name__}.{chooser.file}"), "TILES", {})
    own = [tile for tiles in listed.values() for tile in tiles if type(tile) is type(default)]
    return [tile for tile in dict.fromkeys(own or neighbours(default)) if tile != default]


def calls_of(run: Callable[[], object]) -> list[Call]:
    """What it would launch."""
    with recorded() as launches:
        run()
    return [Call.of(made) for made in launches]


def asked(run: Callable[[], object]) -> tuple[list[Call], dict[Chooser, list[tuple[Any, list[Call]]]]]:
    """What a run launches; of each chooser, the tiles that change that, with what they launch. Runs nothing.

    The first run, which may do what others need not repeat, does not count.
    """
    calls_of(run)
    with observed() as defaults:
        own = calls_of(run)
    found: dict[Chooser, list[tuple[Any, list[Call]]]] = {}
    for chooser, default in defaults.items():
        for tile in candidates(chooser, default) if default is not None else []:
            with chooser.forced(tile):
                try:
                    calls = calls_of(run)
                except Exception as error:
                    print(f"    {tile}: {first_line(error)}", flush=True)
                    continue
            if calls != own:
                found.setdefault(chooser, []).append((tile, calls))
    return own, found


def stop(reason: str, status: int = 0) -> None:
    """End this process and its children, whatever they do."""
    print(reason, flush=True)
    dismiss()
    os._exit(status)


Asked = dict[Chooser, list[tuple[Any, Future]]]  # tiles with what came of compiling them


def result(future: Future) -> dict[str, Any]:
    try:
        return future.result(timeout=0)
    except Exception as error:  # a tile that cannot be is one of the answers
        return {"error": first_line(error)}


def freed() -> None:
    """Give back what nobody holds any more."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()


@dataclass
class Sweep:
    """Compiles in `pool`, times here when that is over, until `end`; what it finds is at once in the file `into`."""

    pool: ProcessPoolExecutor
    end: float
    into: Path
    found: dict[str, list[dict]] = field(default_factory=dict)  # of each case: µs of the default and of each candidate

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def compile(self, chosen: dict[str, Case], device: torch.device) -> dict[str, Asked]:
        """Compile all tiles of all cases, in 60 % of the time at most."""
        late = time.monotonic() + 0.6 * self.left()
        found: dict[str, Asked] = {}
        for name, case in chosen.items():
            try:
                own, tiles = asked(case.build(device, 0).runs["kernel"])
            except Exception as error:
                print(f"{name}: {first_line(error)}", flush=True)
                continue
            finally:
                freed()
            self.pool.submit(compiled, own)
            found[name] = {
                chooser: [(tile, self.pool.submit(compiled, calls)) for tile, calls in others]
                for chooser, others in tiles.items()
            }
            print(f"{name}: {sum(map(len, tiles.values()))} tiles, {self.left():.0f} s left", flush=True)
        futures = [future for tiles in found.values() for own in tiles.values() for _, future in own]
        for done in waited(futures, late):
            print(f"{done} of {len(futures)} tiles compiled, {self.left():.0f} s left", flush=True)
        self.pool.shutdown(wait=False, cancel_futures=True)
        dismiss()  # they would take time and memory from what is measured
        return found

    def run(self, chosen: dict[str, Case]) -> int:
        """Do both, and tell what was found -> its number of rows."""
        device = prepare()
        bench = Bench(device, TIMER, Ceilings(copy=1.0, read=1.0, pinned=1.0, matmul=1.0, launch_us=1.0))
        for name, tiles in self.compile(chosen, device).items():
            if found := self.timed(chosen[name], tiles, bench):
                print("\n".join(told(found)), flush=True)
            freed()
        return sum(map(len, self.found.values()))

    def keep(self, case: Case, row: dict) -> None:
        """Add a row to the file, which is a whole one at any time."""
        self.found.setdefault(case.name, []).append(row)
        self.write()

    def write(self) -> None:
        rows = [row for own in self.found.values() for row in own]
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        part = self.into.with_name(self.into.name + ".part")
        part.write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n")
        part.replace(self.into)

    def time(self, case: Case, asked: Asked, bench: Bench) -> list[dict]:
        """Rows of one case: µs of the default and of each candidate that compiled well."""
        self.found.pop(case.name, None)  # of a try that failed
        slots = bench.slots(case)
        calls, capture = [slot.runs["kernel"] for slot in slots], "kernel" not in slots[0].eager
        self.keep(case, {"case": case.name, "tile": "default", "us": round(TIMER(calls, capture=capture).median, 3)})
        for chooser, tiles in asked.items():
            for tile, future in tiles:
                row = {"case": case.name, "chooser": f"{chooser.file}.{chooser.name}", "tile": repr(tile)}
                self.keep(case, row | self.candidate(chooser, tile, future, calls, capture))
        rows = self.found[case.name]
        self.check(case, asked, rows, slots[0])
        self.write()
        return rows

    def timed(self, case: Case, asked: Asked, bench: Bench) -> list[dict]:
        """The rows, none if there cannot be any. What finds no memory is tried again when all is given back."""
        reason, tries = "the time was up", 2
        while tries and self.left():
            try:
                return self.time(case, asked, bench)
            except Exception as error:
                reason, tries = first_line(error), tries - 1 if isinstance(error, torch.OutOfMemoryError) else 0
            freed()
        print(f"{case.name}: {reason}", flush=True)
        return []

    def candidate(
        self, chooser: Chooser, tile: Any, future: Future, calls: list[Callable], capture: bool
    ) -> dict[str, Any]:
        found = result(future)
        if "error" in found or found["spills"] > SPILLS or not self.left():
            return {"us": None} | found
        try:
            with chooser.forced(tile):
                us = round(TIMER(calls, capture=capture).median, 3)
        except Exception as error:
            torch.cuda.synchronize()
            return {"us": None, "error": first_line(error)}
        return {"us": us, "registers": found["registers"]}

    def check(self, case: Case, asked: dict, rows: list[dict], contest: Any) -> None:
        """A tile that is wrong wins nothing: those faster than the default are checked, the fastest first, till one
        is right."""
        tiles = {(f"{c.file}.{c.name}", repr(t)): (c, t) for c, found in asked.items() for t, _ in found}
        for row in sorted((r for r in rows[1:] if r["us"] and r["us"] < rows[0]["us"]), key=lambda r: r["us"]):
            chooser, tile = tiles[row["chooser"], row["tile"]]
            with chooser.forced(tile):
                row["error"] = float(contest.error())
            row["right"] = row["error"] <= contest.tolerance
            if row["right"]:
                return


def told(rows: list[dict]) -> Iterator[str]:
    """The default, then the best tile of each chooser that is right or slower."""
    yield f"{rows[0]['case']}: default {rows[0]['us']:g} µs"
    for name in dict.fromkeys(r["chooser"] for r in rows[1:]):
        own = [r for r in rows[1:] if r["chooser"] == name]
        timed = sorted((r for r in own if r["us"] and r.get("right") is not False), key=lambda r: r["us"])
        for row in timed[:2]:
            yield f"    {row['us']:g} µs  {row['us'] / rows[0]['us'] - 1:+.0%}  {row['tile']}  {name}"
        yield f"    {len(timed)} of {len(own)} tiles timed, {sum(r.get('spills', 0) > SPILLS for r in own)} spill"


def named(only: list[str]) -> dict[str, Case]:
    """Cases by their names in full, or of LONGEST bytes at most by a part of it or of their file; those with a target
    where nothing is asked for."""
    every, chosen = cases()[0], {}
    for part in only:
        chosen |= {part: every[part]} if part in every else cases(part)[0]
    if not only:
        chosen = {name: case for name, case in every.items() if case.target_us}
    long = [name for name, case in chosen.items() if case.bytes > LONGEST and name not in only]
    if long:
        print(f"only if named in full, for their size: {'; '.join(long)}", flush=True)
    return {name: case for name, case in chosen.items() if name not in long}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="names of cases, or parts of theirs or of files'; none: with a target")
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1))
    parser.add_argument("--into", type=Path, default=Path("tuned.json"))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("tiles can be tuned on a machine with a GPU only")
    watch = threading.Timer(60 * args.minutes, stop, ["the time was up"])
    watch.daemon = True
    watch.start()
    end = time.monotonic() + 60 * args.minutes - 5
    sweep = Sweep(compilers(args.processes), end, args.into)
    try:
        stop(f"{sweep.run(named(args.only))} rows in {args.into}")
    except BaseException as error:
        stop(first_line(error), 1)


if __name__ == "__main__":
    main()
