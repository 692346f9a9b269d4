"""What the compiler makes of the seam and of sparse attention: `python -m minidsv41.kernels.lesson.listing`, JSON.

It compiles, so it needs a process that does not interpret; it needs no GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import triton

from minidsv41.kernels.compiled import specimens
from minidsv41.kernels.launch import Compiled, Launch, recorded

CARDS = (80, 90, 100)
UNITS = ("HMMA", "HGMMA", "UTCHMMA")  # tensor core instructions of the three
SHOWN = {  # name in the lesson -> specimen, kernel
    "seam, T=4096": ("seam: seam T=4096", "cross"),
    "seam, T=128": ("seam: seam T=128", "cross"),
    "sparse attention, T=4096": ("sparse_attention: T=4096", "by_query"),
}
LINES = (  # instructions of the first on sm_90
    r"cp\.async\.c[ag]\.shared\.global\S*",
    r"cvt\.rn\.bf16x2\.f32",
    r"st\.global\S*\.v4\.\S+",
    r"wgmma\.mma_async\S+",
    r"shfl\.sync\S+",
    r"ex2\.approx\S+",
)


def call(specimen: str, kernel: str) -> Launch:
    with recorded() as launches:
        specimens()[specimen]()
    return next(each for each in launches if each.kernel.__name__ == kernel)


def row(name: str, card: int, built: Compiled) -> dict[str, Any]:
    unit = next((unit for unit in UNITS if built.count(unit)), "")
    facts = {"registers": built.registers, "stack": built.stack, "shared": built.shared, "unit": unit}
    return {"kernel": name, "card": card} | facts


def instructions(ptx: str) -> Iterator[dict[str, Any]]:
    """The first instruction of each kind, and how many of it there are."""
    for pattern in LINES:
        found = re.findall(pattern, ptx)
        if found:
            yield {"kind": pattern, "instruction": found[0], "count": len(found)}


def listing() -> dict[str, Any]:
    rows, ptx = [], ""
    for name, place in SHOWN.items():
        launch = call(*place)
        for card in CARDS:
            built = launch.compile(card)
            rows.append(row(name, card, built))
            if card == 90:
                ptx = ptx or built.ptx
    return {"triton": triton.__version__, "rows": rows, "ptx": list(instructions(ptx))}


if __name__ == "__main__":
    print(json.dumps(listing()))
