"""Every kernel at the released widths, compiled for cards that need not be here: registers, spills, tensor cores.

A kernel file brings SPECIMENS: name -> a function that calls the operation on meta tensors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pkgutil import iter_modules

import minidsv41.kernels as package
from minidsv41.kernels.launch import recorded

CAPABILITIES = (80, 90, 100)


@dataclass(frozen=True)
class Row:
    """One kernel on one card. stack: bytes a thread keeps outside its registers; matrix: tensor core instructions."""

    specimen: str
    kernel: str
    capability: int
    registers: int
    stack: int
    shared: int
    matrix: int


def specimens() -> dict[str, Callable[[], object]]:
    """All specimens by "file: name"."""
    found = {}
    for module in iter_modules(package.__path__):
        if not module.ispkg:
            own = getattr(import_module(f"{package.__name__}.{module.name}"), "SPECIMENS", {})
            found |= {f"{module.name}: {name}": make for name, make in own.items()}
    return found


def rows(wanted: str = "", capabilities: tuple[int, ...] = CAPABILITIES, *, once: bool = False) -> Iterator[Row]:
    """Compile the specimens whose name contains `wanted`; each kernel `once` only, or in every specimen."""
    seen = set()
    for name, make in specimens().items():
        if wanted in name:
            with recorded() as launches:
                make()
            for call in launches:
                if once and call.kernel in seen:
                    continue
                seen.add(call.kernel)
                for capability in capabilities:
                    built = call.compile(capability)
                    matrix = sum(built.count(f"{unit}MMA") for unit in ("H", "HG", "QG", "UTCH", "UTCQ"))
                    kernel = call.kernel.__name__
                    yield Row(name, kernel, capability, built.registers, built.stack, built.shared, matrix)


if __name__ == "__main__":  # one JSON line a kernel, for processes that are not the interpreter
    words = [word for word in sys.argv[1:] if word != "--once"]
    chosen = tuple(int(c) for c in words[1:]) or CAPABILITIES
    for row in rows(words[0] if words else "", chosen, once="--once" in sys.argv):
        print(json.dumps(asdict(row)), flush=True)
