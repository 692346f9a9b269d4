"""Seconds and bytes of a whole step, on a GPU or without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from minidsv41.replaced import replaced


class Clock:
    """Seconds of single runs, by the device's own events where it is a GPU."""

    def __init__(self, device: str) -> None:
        self.gpu = device == "cuda"

    def now(self) -> float:
        """When everything asked for is done."""
        if self.gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def times(self, run: Callable[[], Any], repeats: int) -> list[float]:
        if not self.gpu:
            marks = [time.perf_counter()]
            for _ in range(repeats):
                run()
                marks.append(time.perf_counter())
            return [b - a for a, b in zip(marks, marks[1:], strict=False)]
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for begin, end in pairs:
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]

    def peak(self) -> int | None:
        """Largest number of bytes in use since the last call; None on a CPU."""
        if not self.gpu:
            return None
        found = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return found


@contextmanager
def compiling() -> Iterator[list[str]]:
    """Names of the Triton kernels that this process first met within the block: compiled, or read from the disk."""
    names: list[str] = []
    try:
        from triton import knobs
    except ImportError:
        yield names
        return

    def note(*, fn: Any, **others: Any) -> None:
        names.append(fn.name)

    with replaced(knobs.runtime, "jit_post_compile_hook", lambda before: note):
        yield names


def copy_speed(clock: Clock, device: torch.device) -> float:
    """Bytes read and written in a second by a large copy."""
    a = torch.empty(1 << (30 if device.type == "cuda" else 25), dtype=torch.uint8, device=device).random_(256)
    b = torch.empty_like(a)
    return 2 * a.nbytes / median(clock.times(lambda: b.copy_(a), 10))
