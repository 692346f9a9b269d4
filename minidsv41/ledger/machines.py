"""Machines that a model may run on: memory, bandwidth and arithmetic rate, each by datasheet or measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minidsv41.ledger.line import Line, fields

GB, TB, TERA = 10**9, 10**12, 10**12


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One device. memory in bytes; bandwidth of that memory in B/s; flops: dense BF16 products, FLOP/s.

    basis says where bandwidth and flops come from: the maker's datasheet (upper bounds), a measurement, reports of
    others, or an assumption. fp8: whether FP8 products run at
    twice the rate of BF16.
    """

    name: str
    memory: int
    bandwidth: int
    flops: int
    basis: Literal["datasheet", "measured", "reported", "assumed"]
    source: str
    fp8: bool = True

    @property
    def ridge(self) -> Line:
        """FLOP a byte from which work is bound by arithmetic, below which by memory."""
        flops, bandwidth = fields(self, "flops bandwidth")
        return (flops / bandwidth).named("ridge", "FLOP/B")

    def seconds(self, flops: float, read: float) -> float:
        """Floor of the time for this many FLOP and bytes read: the slower of the two."""
        return max(flops / self.flops, read / self.bandwidth)

    def binds(self, flops: float, read: float) -> Literal["arithmetic", "memory"]:
        """Which of the two is the slower."""
        return "arithmetic" if flops / self.flops > read / self.bandwidth else "memory"


MACHINES = (
    Machine(
        name="H20",
        memory=96 * GB,
        bandwidth=4 * TB,
        flops=148 * TERA,
        basis="reported",
        source="NVIDIA's figures for the 96 GB card as resellers print them; NVIDIA has no public page of it",
    ),
    Machine(
        name="H100",
        memory=80 * GB,
        bandwidth=3_350 * GB,
        flops=989 * TERA,
        basis="datasheet",
        source="NVIDIA H100 datasheet, SXM5: 1,979 TFLOP/s is its figure with sparsity, dense is half",
    ),
    Machine(
        name="H200",
        memory=141 * GB,
        bandwidth=4_800 * GB,
        flops=989 * TERA,
        basis="datasheet",
        source="NVIDIA H200 datasheet, SXM: 1,979 TFLOP/s is its figure with sparsity, dense is half",
    ),
    Machine(
        name="H200 measured",
        memory=141 * GB,
        bandwidth=4_387 * GB,
        flops=782 * TERA,
        basis="measured",
        source="one H200, driver 580.159.04, torch 2.11.0+cu130, 2026-11-29, the better of two rounds: the maximum of "
        "4 GiB of float32 (4,248 and 4,387 GB/s), a BF16 product of 8192³ (738 and 782 TFLOP/s); memory by datasheet",
    ),
    Machine(
        name="laptop",
        memory=32 * GB,
        bandwidth=2 * 8 * 5_600 * 10**6,
        flops=8 * 4 * GB * 32,
        basis="assumed",
        source="no one model: 2 channels of 8 B at 5,600 MT/s (DDR5-5600); 8 cores at 4 GHz with 32 FP32 FLOP a cycle "
        "(two 256-bit FMA units, BF16 widened)",
        fp8=False,
    ),
)


def machine(name: str) -> Machine:
    """Raises KeyError with the names."""
    found = {m.name: m for m in MACHINES}
    if name not in found:
        raise KeyError(f"no machine {name!r}; there are {', '.join(found)}")
    return found[name]


def recorded(found: dict) -> Machine:
    """The machine of a record of `minidsv41 bench machine`: copying and float32 products, the best of its rounds."""
    where, best = found["machine"], found["results"]
    return Machine(
        name="recorded",
        memory=int(where["memory_gb"] * GB),
        bandwidth=int(best["bytes_per_second"]),
        flops=int(best["flops_per_second"]),
        basis="measured",
        source=f"{where['processor']}, {where['threads']} threads, torch {where['torch']}, {where['date']}: the best "
        f"of {len(best['rounds']['flops_per_second'])} rounds, copies and float32 products",
        fp8=False,
    )
