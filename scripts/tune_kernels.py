"""Try other tiles of every kernel on this GPU, on the cases of its benchmark; print the best beside the default.

A kernel file chooses its tile by a function whose result is annotated as a Tile. Candidates are TILES of that file
(shape class -> tiles), or else the default with one field changed. All are compiled first, in many processes; those
that spill, or do not fit the card, are not timed. Nothing is changed: the winners go into the files by hand.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

import minidsv41.kernels as package
from minidsv41.kernels.bench.case import Case
from minidsv41.kernels.bench.ceilings import Ceilings
from minidsv41.kernels.bench.run import Bench, cases
from minidsv41.kernels.bench.timing import GraphTimer, first_line
from minidsv41.kernels.bench.worker import prepare
from minidsv41.kernels.launch import recorded
from minidsv41.replaced import replaced

SPILLS = 100  # values that a thread may keep outside of its registers: window attention's own tile keeps 90 there
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


_built: dict[str, Any] = {}  # of a compiling process: its last case


def compiled(name: str, chooser: Chooser | None, tile: Any) -> dict[str, Any]:
    """Compile what one case starts with this tile, and load it; run nothing. -> registers and spills at most.

    Without a chooser: what the choosers choose by themselves.
    """
    if name not in _built:
        _built.clear()
        gc.collect()
        prepare()
        _built[name] = cases()[0][name].build(torch.device("cuda"), 0)
    with observed() as defaults, recorded() as launches, chooser.forced(tile) if chooser else nullcontext():
        _built[name].runs["kernel"]()
    made = []
    for call in launches:
        kernel = call.kernel.warmup(grid=call.grid, **call.args, **call.options)
        kernel._init_handles()
        made.append(kernel)
    out = {"registers": max(k.n_regs for k in made), "spills": max(k.n_spills for k in made)}
    return out | {"defaults": None if chooser else dict(defaults)}


def result(future: Future, seconds: float) -> dict[str, Any]:
    try:
        return future.result(timeout=seconds)
    except Exception as error:  # a tile that cannot be is one of the answers
        return {"error": first_line(error)}


@dataclass
class Sweep:
    """Compiles in `pool`, times here when that is over, until `end`."""

    pool: ProcessPoolExecutor
    end: float

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def compile(self, chosen: dict[str, Case]) -> dict[str, dict[Chooser, list[tuple[Any, Future]]]]:
        """Compile everything, in 60 % of the time at most: the defaults of each case, then what differs from them."""
        first, asked = {name: self.pool.submit(compiled, name, None, None) for name in chosen}, {}
        for name, future in first.items():
            found = result(future, self.left())
            if "error" in found:
                print(f"{name}: {found['error']}", flush=True)
            asked[name] = {
                chooser: [(t, self.pool.submit(compiled, name, chooser, t)) for t in candidates(chooser, default)]
                for chooser, default in (found.get("defaults") or {}).items()
                if default is not None
            }
        futures = [future for tiles in asked.values() for own in tiles.values() for _, future in own]
        late = wait(futures, timeout=0.6 * self.left()).not_done
        for future in late:
            future.cancel()
        print(f"{len(futures) - len(late)} of {len(futures)} tiles compiled, {self.left():.0f} s left", flush=True)
        return asked

    def time(self, case: Case, asked: dict[Chooser, list[tuple[Any, Future]]], bench: Bench) -> list[dict]:
        """Rows of one case: µs of the default and of each candidate that compiled well."""
        slots = bench.slots(case)
        calls, capture = [slot.runs["kernel"] for slot in slots], "kernel" not in slots[0].eager
        rows = [{"case": case.name, "tile": "default", "us": round(TIMER(calls, capture=capture).median, 3)}]
        for chooser, tiles in asked.items():
            for tile, future in tiles:
                row = {"case": case.name, "chooser": f"{chooser.file}.{chooser.name}", "tile": repr(tile)}
                rows.append(row | self.candidate(chooser, tile, future, calls, capture))
        self.check(case, asked, rows, slots[0])
        return rows

    def candidate(
        self, chooser: Chooser, tile: Any, future: Future, calls: list[Callable], capture: bool
    ) -> dict[str, Any]:
        found = result(future, 0)
        if "error" in found or found["spills"] > SPILLS or not self.left():
            return {"us": None} | {k: v for k, v in found.items() if k != "defaults"}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="parts of the names of cases or files; all cases with a target if none")
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1))
    parser.add_argument("--into", type=Path, default=Path("tuned.json"))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("tiles can be tuned on a machine with a GPU only")
    end = time.monotonic() + 60 * args.minutes
    chosen = {name: case for part in args.only or [""] for name, case in cases(part)[0].items()}
    if not args.only:
        chosen = {name: case for name, case in chosen.items() if case.target_us}
    device, rows = prepare(), []
    bench = Bench(device, TIMER, Ceilings(copy=1.0, read=1.0, pinned=1.0, matmul=1.0, launch_us=1.0))
    pool = ProcessPoolExecutor(args.processes, mp_context=multiprocessing.get_context("spawn"))
    sweep = Sweep(pool, end)
    for name, asked in sweep.compile(chosen).items():
        if not sweep.left():
            print(f"{name}: the time was up", flush=True)
            continue
        try:
            found = sweep.time(chosen[name], asked, bench)
        except Exception as error:
            print(f"{name}: {first_line(error)}", flush=True)
            torch.cuda.synchronize()
            continue
        rows += found
        print("\n".join(told(found)), flush=True)
        args.into.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n")
        gc.collect()
        torch.cuda.empty_cache()
    pool.shutdown(wait=False, cancel_futures=True)
    os._exit(0)  # what still compiles is of no use any more


if __name__ == "__main__":
    main()
