"""Where the time of a step goes: microseconds and launches of its kernels, by who wrote them and for what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pkgutil import iter_modules
from types import FunctionType
from typing import Any, NamedTuple

import torch

import minidsv41.kernels as package

OPERATIONS = {  # kernel files of an operation, by how their names begin
    "seam": ("seam", "crossing", "predictor", "coefficients"),
    "index_select": ("index_",),
    "attention": ("attention", "sparse_attention", "window_"),
    "kv_write": ("kv_write",),
    "engram": ("engram", "gate"),
}
PRODUCTS = ("nvjet", "gemm", "gemv", "splitK", "cublas")  # in the names of a library's matrix products
GROUPED = ("cutlass", "grouped_gemm")  # in those of the experts' products, all experts in one launch


class Kernel(NamedTuple):
    name: str
    us: float
    launches: int


def operations() -> dict[str, str]:
    """The operation of each Triton kernel, by the kernel's name."""
    out = {}
    for module in iter_modules(package.__path__):
        for operation, begins in OPERATIONS.items():
            if module.name.startswith(begins):
                own = import_module(f"{package.__name__}.{module.name}")
                for name, value in vars(own).items():
                    function = getattr(value, "fn", None)
                    if isinstance(function, FunctionType) and function.__module__ == own.__name__:
                        out[name] = operation
    return out


def kind(name: str, own: dict[str, str]) -> str:
    """An operation of ours, experts, products, or small: all else."""
    if name in own:
        return own[name]
    if any(part in name for part in GROUPED):
        return "experts"
    return "products" if any(part in name for part in PRODUCTS) else "small"


def summed(kernels: Iterable[Kernel]) -> dict[str, dict[str, float]]:
    """us and launches of each kind."""
    out: dict[str, dict[str, float]] = {}
    own = operations()
    for kernel in kernels:
        group = out.setdefault(kind(kernel.name, own), {"us": 0.0, "launches": 0})
        group["us"] = round(group["us"] + kernel.us, 1)
        group["launches"] += kernel.launches
    return out


def breakdown(run: Callable[[], Any]) -> dict[str, dict[str, float]]:
    """`summed` of one run on the GPU, as its profiler sees it. Kernels that overlap count in full."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen:
        run()
        torch.cuda.synchronize()
    found = (e for e in seen.key_averages() if e.self_device_time_total > 0)
    return summed(Kernel(e.key, e.self_device_time_total, e.count) for e in found)
