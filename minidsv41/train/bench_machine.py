"""What this machine reaches at best: copying memory, and multiplying float32 matrices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil
import torch


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """copied: bytes of the tensor that is copied; width: of the square matrices; rounds: the best of them counts."""

    copied: int = 1 << 28
    width: int = 2048
    rounds: int = 15
    pause: float = 1.0  # seconds between rounds, so that a burst of other work does not hit all of them
    threads: int = 2


@torch.no_grad()
def measure(c: MachineConfig, *, clock: Callable[[], float] = time.perf_counter) -> dict:
    """Ceilings as the best of all rounds, with every round; `busy`: the system's load over the cores meanwhile."""
    torch.set_num_threads(c.threads)
    source = torch.ones(c.copied // 4)
    target, square = torch.empty_like(source), torch.ones(c.width, c.width)
    product = torch.empty_like(square)
    works = {
        "bytes_per_second": (2 * c.copied, lambda: target.copy_(source)),  # read once, written once
        "flops_per_second": (2 * c.width**3, lambda: torch.mm(square, square, out=product)),
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    for at in range(c.rounds + 1):
        for name, (amount, work) in works.items():
            began = clock()
            work()
            if at:  # the first round warms up
                found[name].append(amount / (clock() - began))
        time.sleep(c.pause)
    best = {name: max(rates) for name, rates in found.items()}
    return best | {"rounds": found, "busy": round(psutil.getloadavg()[0] / psutil.cpu_count(), 1)}


def lines(results: dict) -> Iterator[str]:
    """The results of `measure`, to be read."""
    for name, unit, size in (("bytes_per_second", "GB/s copied", 1e9), ("flops_per_second", "GFLOP/s float32", 1e9)):
        rates = results["rounds"][name]
        yield f"{results[name] / size:8.1f} {unit}, the best of {len(rates)} (worst {min(rates) / size:.1f})"
    yield f"load {results['busy']} a core meanwhile"
