"""The process that measures: replaced when a kernel takes it down or does not come back; and those that compile."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import torch

from minidsv41.kernels.bench import ceilings
from minidsv41.kernels.bench.ceilings import Ceilings
from minidsv41.kernels.bench.record import Lost, failed
from minidsv41.kernels.bench.run import Bench, Row, cases
from minidsv41.kernels.bench.timing import GraphTimer, first_line


def prepare() -> torch.device:
    """The GPU, with a stream of its own to capture on, and without the ways in which measurements turn false."""
    device = torch.device("cuda")
    torch.cuda.set_stream(torch.cuda.Stream())
    torch.backends.cuda.matmul.allow_tf32 = False
    import torch._dynamo.config as dynamo

    if hasattr(dynamo, "fail_on_recompile_limit_hit"):
        dynamo.fail_on_recompile_limit_hit = True  # rather than to run uncompiled under the name of "compile"
    return device


def serve(connection: Connection, rounds: int, compiled: bool, found: Ceilings | None) -> None:
    """The main function of the measuring process: ceilings, unless they were found before, then the rows of each case
    that it is asked for."""
    from minidsv41.train import machine

    device, (chosen, _) = prepare(), cases()
    found = found or ceilings.measure(device)
    torch.cuda.empty_cache()
    connection.send((found, machine.describe(threads=torch.get_num_threads(), device="cuda") | card()))
    bench = Bench(device, GraphTimer(), found, rounds, compiled)
    while (name := connection.recv()) is not None:
        try:
            for row in bench.case(chosen[name]):
                connection.send(row)
        except Exception as error:
            connection.send(failed(chosen[name], first_line(error)))
        bench.check()
        connection.send(None)


def card() -> dict[str, Any]:
    """What describes the GPU and its software beyond its name."""
    import triton

    seen = torch.cuda.get_device_properties(0)
    return {
        "capability": f"sm_{seen.major}{seen.minor}",
        "multiprocessors": seen.multi_processor_count,
        "l2_mb": round(seen.L2_cache_size / 1e6, 1),
        "cuda": torch.version.cuda,
        "driver": driver(),
        "triton": triton.__version__,
    }


def driver() -> str | None:
    """The version of the GPU's driver, if its tool is there to tell."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


class Worker:
    """The measuring process, started when first needed and again after it was lost.

    patience: seconds until it is given up, after the last row or, at the start, before the first.
    """

    def __init__(
        self, *, rounds: int, compiled: bool, patience: float = 60.0, starting: float = 120.0, target: Any = serve
    ) -> None:
        self.arguments, self.patience, self.starting, self.target = (rounds, compiled), patience, starting, target
        self.process, self.ceilings, self.machine = None, None, None

    def begin(self) -> None:
        """Start it; `ceilings` and `machine` are then known. Raises Lost."""
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self.process = context.Process(target=self.target, args=(there, *self.arguments, self.ceilings), daemon=True)
        self.process.start()
        there.close()
        self.ceilings, self.machine = self.answer(self.starting)

    def answer(self, patience: float) -> Any:
        try:
            if self.connection.poll(patience):
                return self.connection.recv()
            reason = f"no answer within {patience:g} s"
        except (EOFError, OSError):
            reason = "the process died, as it does after an illegal access to memory"
        self.end()
        raise Lost(reason)

    def rows(self, name: str) -> Iterator[Row]:
        """The rows of one case. Raises Lost."""
        if self.process is None:
            self.begin()
        try:
            self.connection.send(name)
        except OSError:
            self.end()
            raise Lost("the process died after the case before") from None
        while (row := self.answer(self.patience)) is not None:
            yield row

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def warm(names: list[str], *, processes: int, seconds: float, compiled: bool) -> None:
    """Fill the compilers' caches on disk, in many processes at once: compiling is most of what a run would wait for."""
    context = multiprocessing.get_context("spawn")
    parts = [names[i::processes] for i in range(processes)]
    running = [context.Process(target=warm_all, args=(part, compiled), daemon=True) for part in parts if part]
    with patch.dict(os.environ, TORCHINDUCTOR_COMPILE_THREADS="1"):  # each is one of many
        for process in running:
            process.start()
    end = time.monotonic() + seconds
    for process in running:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def warm_all(names: list[str], compiled: bool) -> None:
    """Start each kernel, and each compiled peer, once. What fails here fails again where it is recorded."""
    device, (chosen, _) = prepare(), cases()
    for name in names:
        try:
            torch._dynamo.reset()
            contest = chosen[name].build(device, 0)
            for run, call in contest.runs.items():
                if run == "kernel" or compiled and run.startswith("compile"):
                    call()
                    torch.cuda.synchronize()
        except Exception as error:
            print(f"warming {name}: {first_line(error)}", flush=True)
        contest = None
        gc.collect()
        torch.cuda.empty_cache()
