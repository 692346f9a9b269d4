"""Kernels timed now, on the GPU of this machine: drawn beside the record and never printed, so that text stays equal.

The measurement is a process of its own: in the process of a lesson kernels may be interpreted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

SECONDS = 90.0  # after which a lesson does not wait any longer


@dataclass(frozen=True)
class Live:
    """µs by (shape, contestant), and a line for a figure; both empty where there is no GPU."""

    us: dict[tuple[str, str], float] = field(default_factory=dict)
    said: str = ""


@cache
def timed(only: str) -> Live:
    """The cases of `minidsv41 bench kernels --only ...`, one round."""
    if not torch.cuda.is_available():
        return Live()
    card = torch.cuda.get_device_name()
    with TemporaryDirectory() as folder:
        try:
            return Live(read(run(only, Path(folder))), f"rings: this machine's {card}, now")
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return Live(said=f"{card}: not measured, {type(error).__name__}")


def run(only: str, folder: Path) -> Path:
    """-> the record"""
    options = ["--rounds", "1", "--no-compile-peers", "--processes", "0", "--into", str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "minidsv41", "bench", "kernels", "--only", only, *options]
    subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS, check=True)
    (path,) = folder.glob("kernels_*.json")
    return path


def read(path: Path) -> dict[tuple[str, str], float]:
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {(row["shape"], row["contestant"]): row["median_us"] for row in rows if row["median_us"]}
