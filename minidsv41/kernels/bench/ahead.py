"""Kernels compiled before they are needed, in many processes: a launch goes there without its tensors."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime import jit

from minidsv41.kernels.bench.timing import first_line
from minidsv41.kernels.launch import Launch


@dataclass(frozen=True)
class Place:
    """All that the compiler wants to know of a tensor: its type, and how far it begins from a multiple of 16 bytes."""

    dtype: torch.dtype
    off: int

    def data_ptr(self) -> int:
        return self.off


class Call(NamedTuple):
    """A launch without its tensors, for another process to compile."""

    module: str
    kernel: str
    grid: tuple[int, ...]
    args: dict[str, Any]
    options: dict[str, int]

    @classmethod
    def of(cls, made: Launch) -> Call:
        args = {
            name: Place(value.dtype, value.data_ptr() % 16) if isinstance(value, torch.Tensor) else value
            for name, value in made.args.items()
        }
        return cls(made.kernel.fn.__module__, made.kernel.fn.__name__, made.grid, args, made.options)

    @property
    def function(self) -> Any:
        return getattr(import_module(self.module), self.kernel)

    def key(self, capability: int) -> tuple[str, str, str]:
        """What the compiled kernel is found by on sm_`capability`: types, constants, alignments, options."""
        _, specialization, options = binder(self.module, self.kernel, capability)(**self.args, **self.options)
        return self.module, self.kernel, jit.compute_cache_key({}, specialization, options)


@cache
def binder(module: str, kernel: str, capability: int) -> Callable:
    """What a launch looks at its arguments with; also where kernels are interpreted."""
    made = getattr(import_module(module), kernel)
    given = getattr(made, "kwargs", vars(made))  # where it is interpreted, what it was made with
    function = jit.JITFunction(made.fn, do_not_specialize=given["do_not_specialize"])
    backend = make_backend(GPUTarget("cuda", capability, 32))
    return jit.create_function_from_signature(function.signature, function.params, backend)


def compiled(calls: list[Call]) -> dict[str, Any]:
    """Compile them, and load them -> registers and spills at most."""
    made = []
    for call in calls:
        kernel = call.function.warmup(grid=call.grid, **call.args, **call.options)
        kernel._init_handles()
        made.append(kernel)
    return {"registers": max(k.n_regs for k in made), "spills": max(k.n_spills for k in made)}


def attend(device: str) -> None:
    """The start of a compiling process, which ends with the one that started it, in whatever way."""

    def follow() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    torch.zeros(1, device=device)


def compilers(processes: int, device: str = "cuda") -> ProcessPoolExecutor:
    """Processes that compile for the GPU, which is the device of each."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, initializer=attend, initargs=(device,))


def dismiss() -> None:
    """End the compiling processes."""
    for child in multiprocessing.active_children():
        child.kill()


def waited(futures: list[Future], end: float) -> Iterator[int]:
    """Wait for them until `end` -> how many are done, every ten seconds."""
    waiting = set(futures)
    while waiting and time.monotonic() < end:
        waiting = wait(waiting, timeout=max(0.0, min(10.0, end - time.monotonic()))).not_done
        yield len(futures) - len(waiting)


def compile_all(
    launches: Iterable[Launch],
    *,
    capability: int,
    pool: ProcessPoolExecutor,
    seconds: float,
    say: Callable[[str], Any] = print,
    job: Callable[[list[Call]], Any] = compiled,
) -> dict[str, Any]:
    """Compile all that these launches need, each kernel once, in `pool`, which ends with that; then load it here.

    -> kernels: how many there are; done: those that compiled in time; failed: the first reason, if one did not.
    """
    began, calls, futures = time.monotonic(), {}, {}
    try:
        for call in (Call.of(made) for made in launches if all(made.grid)):
            if (key := call.key(capability)) not in calls:
                futures[key], calls[key] = pool.submit(job, [call]), call
        for done in waited(list(futures.values()), began + seconds):
            say(f"{done} of {len(calls)} kernels compiled ahead, {time.monotonic() - began:.0f} s")
    except BrokenProcessPool as lost:
        say(f"nothing more is compiled ahead: {first_line(lost)}")
    finally:
        ended = {key: future.exception() for key, future in futures.items() if future.done()}
        pool.shutdown(wait=False, cancel_futures=True)
        dismiss()  # they would take time and memory from what is measured
    ready, reasons = [key for key, error in ended.items() if error is None], [e for e in ended.values() if e]
    for key in ready:
        job([calls[key]])
    found = {"kernels": len(calls), "done": len(ready), "seconds": round(time.monotonic() - began, 1)}
    return found | ({"failed": first_line(reasons[0])} if reasons else {})
