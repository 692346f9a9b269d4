"""`minidsv41 kernels` and the benches of a GPU: what the Triton kernels are made of, and how long they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from minidsv41.cli.allowed import require_device, require_versions


def bench_kernels(
    only: Annotated[str, typer.Option(help="A part of the name of an operation, or of OPERATION SHAPE.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is timed, to show drift.")] = 2,
    minutes: Annotated[float, typer.Option(min=0.1, help="No case begins after that.")] = 7.5,
    compile_peers: Annotated[bool, typer.Option(help="Also time the plain versions under torch.compile.")] = True,
    processes: Annotated[
        int | None, typer.Option(min=0, help="That compile beforehand; one a core, at most 14.")
    ] = None,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Check and time every kernel and its peers on this GPU; floors from ceilings of the same run. Eight minutes."""
    import time

    from rich.console import Console

    from minidsv41.paths import records_dir

    require_device("cuda")
    from minidsv41.kernels.bench import record as records
    from minidsv41.kernels.bench.run import cases
    from minidsv41.kernels.bench.worker import Worker, warm

    began, (chosen, missing) = time.monotonic(), cases(only)
    for text in missing:
        typer.echo(f"cannot be imported: {text}", err=True)
    if not chosen:
        raise typer.BadParameter(f"{only}: no case has a name with it", param_hint="--only")
    processes = min(14, os.cpu_count() or 1) if processes is None else processes
    if processes:
        warm(list(chosen), processes=processes, seconds=20 * minutes, compiled=compile_peers)
    typer.echo(f"compiled in {time.monotonic() - began:.0f} s")
    worker = Worker(rounds=rounds, compiled=compile_peers)
    try:
        worker.begin()
        settings = {"only": only, "rounds": rounds, "compile_peers": compile_peers}
        record = records.Record.begin(into or records_dir(), settings, worker.machine, worker.ceilings)
        left = 60 * minutes - (time.monotonic() - began)
        records.measure(chosen, record, worker.rows, seconds=left, say=typer.echo)
    finally:
        worker.end()
    rows = record.latest()
    Console(width=None if Console().is_terminal else 160).print(records.table(rows))
    typer.echo(f"{records.counted(rows)}; {record.path}; {time.monotonic() - began:.0f} s")


def compiled_rows(part: str, cards: list[int], *, once: bool = False) -> Iterator[dict]:
    """Rows of minidsv41.kernels.compiled, from a process that does not interpret. Raises CompileError.

    once: each kernel in one specimen only.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "minidsv41.kernels.compiled", part, *map(str, cards)]
    command += ["--once"] if once else []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise CompileError(f"{' '.join(command[1:])} failed; its last words are above")


class CompileError(RuntimeError):
    """Kernels that do not compile."""


def kernels(
    part: Annotated[str, typer.Argument(help="A part of the name of a kernel's specimen; all if not given.")] = "",
    card: Annotated[list[int] | None, typer.Option(help="80, 90 or 100, for sm_80 and so on; may repeat.")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON line a kernel.")] = False,
) -> None:
    """Compile every kernel at the released widths, for cards that need not be here: registers, spills, tensor cores."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        caption="stack: bytes a thread keeps outside its registers (spills); matrix: tensor core instructions"
    )
    for name in ("specimen", "kernel"):
        table.add_column(name)
    for name in ("card", "registers", "stack", "shared", "matrix"):
        table.add_column(name, justify="right")
    for row in compiled_rows(part, card or [90]):
        if json_lines:
            typer.echo(json.dumps(row))
        numbers = (f"{row[name]:,}" for name in ("registers", "stack", "shared", "matrix"))
        table.add_row(row["specimen"], row["kernel"], f"sm_{row['capability']}", *numbers)
    if not json_lines:
        Console(width=None if Console().is_terminal else 120).print(table)


def bench_train_gpu(
    preset: Annotated[str, typer.Option(help="toy or small.")] = "small",
    steps: Annotated[int, typer.Option(min=2, help="Of each run.")] = 80,
    seeds: Annotated[int, typer.Option(min=1, help="How many, from 0 on.")] = 3,
    contenders: Annotated[
        list[str] | None, typer.Option("--contender", help="kernels, plain or compile; may repeat. All if not given.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a step.")] = 32,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 512,
    minutes: Annotated[float, typer.Option(min=0.05, help="No run begins that would not be done by then.")] = 4.0,
    device: Annotated[str, typer.Option(help="cuda, in bfloat16; or cpu.")] = "cuda",
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Train with the kernels, on plain operations and on these compiled: tokens a second, and losses over seeds."""
    from minidsv41.paths import records_dir
    from minidsv41.train import bench, bench_gpu
    from minidsv41.train.data import corpus

    require_device(device)
    names = tuple(contenders or bench_gpu.CONTENDERS)
    if unknown := set(names) - set(bench_gpu.CONTENDERS):
        raise typer.BadParameter(f"{min(unknown)}: allowed are {', '.join(bench_gpu.CONTENDERS)}")
    sizes = dict(steps=steps, warm=min(10, steps // 2), batch=batch, length=length, minutes=minutes)
    config = bench_gpu.TrainGpuConfig(
        preset=preset, contenders=names, seeds=tuple(range(seeds)), device=device, **sizes
    )
    folder = into or records_dir()
    results = bench_gpu.measure(
        corpus(), config, save=lambda found: bench.write(bench.record("train_gpu", config, found), folder)
    )
    for text in bench_gpu.lines(results):
        typer.echo(text)
    typer.echo(folder / "bench_train_gpu.json")


def bench_model(
    preset: Annotated[str, typer.Option(help="geometry has the released widths.")] = "geometry",
    contexts: Annotated[list[int] | None, typer.Option("--context", min=16, help="Tokens; may repeat.")] = None,
    batches: Annotated[list[int] | None, typer.Option("--batch", min=1, help="Sequences; may repeat.")] = None,
    parts: Annotated[list[str] | None, typer.Option("--part", help="verify, no_pool, float; may repeat.")] = None,
    chunk: Annotated[int, typer.Option(min=64, help="Rows of a prompt fed at once.")] = 8192,
    repeats: Annotated[int, typer.Option(min=1, help="Timed steps of each kind.")] = 20,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Random records instead of any prefill.")] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds that one prefill may take.")] = 150,
    limit: Annotated[float, typer.Option(min=0, help="Seconds after which nothing new begins.")] = 480,
    versions: Annotated[str, typer.Option(help="auto, plain or kernels.")] = "auto",
    device: Annotated[str, typer.Option(help="cuda (in bfloat16) or cpu (in float32).")] = "cuda",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    processes: Annotated[
        int | None, typer.Option(min=0, help="That compile beforehand; one a core, at most 14.")
    ] = None,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Take prompts in and decode behind them at each length: time of a step, what the length adds, and its floor.

    The record is written after each part, so that a run that is stopped keeps what it has.
    """
    from minidsv41.kernels.bench import model
    from minidsv41.paths import records_dir
    from minidsv41.train import bench

    require_device(device)
    require_versions(versions)
    chosen = {"contexts": contexts, "batches": batches, "parts": parts}
    sizes = {name: tuple(value) for name, value in chosen.items() if value}
    processes = min(14, os.cpu_count() or 1) if processes is None else processes
    settings = dict(chunk=chunk, repeats=repeats, patience=patience, limit=limit, versions=versions, threads=threads)
    settings["processes"] = processes if device == "cuda" else 0
    if synthetic:
        settings["prefill_to"] = 0
    config = model.ModelBench(preset=preset, device=device, **sizes, **settings)
    folder = into or records_dir()
    model.measure(
        config, save=lambda results: bench.write(bench.record("model", config, results), folder), say=typer.echo
    )
