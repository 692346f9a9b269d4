"""Where and when something was measured."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from pathlib import Path

import psutil
import torch

from minidsv41 import __version__


def processor() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe(*, threads: int, device: str = "cpu") -> dict:
    """Machine, versions and date of a measurement that uses `threads` threads; on "cuda", `device` names the GPU."""
    gpu = {"device": torch.cuda.get_device_name()} if device == "cuda" else {}
    return gpu | {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "minidsv41": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def peak_memory_mb() -> float:
    """Largest resident size of this process so far, in MB (10**6 bytes)."""
    if platform.system() == "Windows":
        return psutil.Process().memory_info().peak_wset / 1e6
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
