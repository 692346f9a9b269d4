"""What Triton says in a lesson: computed where its interpreter can run, else as recorded. The text is the same."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path

from minidsv41.course.records import record

RECORD = "kernels_cpu"
FILE = Path(__file__).parents[1] / "kernels" / "lesson" / "steps.py"


def interpreter() -> bool:
    """Whether kernels can be interpreted in this process. Asks for it where Triton has not been imported yet."""
    if "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    try:
        from triton import knobs
    except ImportError:
        return False
    return knobs.runtime.interpret


def shown(name: str, compute: Callable[[], str]) -> str:
    """compute() where kernels can be interpreted, else the text of that name in the record."""
    return compute() if interpreter() else record(RECORD)["texts"][name]


def source(*names: str) -> str:
    """The text of kernels of the lesson, read and not imported: it can be shown where there is no Triton."""
    text = FILE.read_text(encoding="utf-8")
    found = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    segments = (ast.get_source_segment(text, found[name]).replace("  # fmt: skip", "") for name in names)
    return "\n\n".join(f"@triton.jit\n{segment}" for segment in segments)
