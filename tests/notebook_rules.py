"""What nbval does not see in a saved notebook. Each rule yields what is wrong and where."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"

KNOWN_TAGS = {
    "core",
    "nbval-ignore-output",
    "nbval-check-output",
    "nbval-skip",
    "raises-exception",
    "nbval-raises-exception",
}
RAISES = {"raises-exception", "nbval-raises-exception"}
KNOWN_MAGICS = {"matplotlib"}
MAX_CORE, MAX_LINES, MAX_OUTPUT_LINES = 22, 20, 24
MAX_OUTPUT, MAX_NOTEBOOK = 30_000, 400_000

Rule = Callable[[dict], Iterator[str]]


def code(book: dict) -> Iterator[tuple[str, dict]]:
    """-> what to call it, the cell: every code cell"""
    for n, cell in enumerate(book["cells"]):
        if cell["cell_type"] == "code":
            yield f"cell {n}", cell


def text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def tags(cell: dict) -> set[str]:
    return set(cell["metadata"].get("tags", []))


def ids(book: dict) -> Iterator[str]:
    seen = [cell.get("id") for cell in book["cells"]]
    if None in seen or len(set(seen)) != len(seen):
        yield "a cell has no id of its own"


def counts(book: dict) -> Iterator[str]:
    found = [cell.get("execution_count") for _, cell in code(book)]
    if not found or found != list(range(1, len(found) + 1)):
        yield f"execution counts are {found}: not run from top to bottom, or stripped"


def empty(book: dict) -> Iterator[str]:
    if not any(cell["outputs"] for _, cell in code(book)):
        yield "no cell has an output: stripped"


def errors(book: dict) -> Iterator[str]:
    for where, cell in code(book):
        raised = any(o["output_type"] == "error" for o in cell["outputs"])
        if raised != bool(tags(cell) & RAISES):
            yield f"{where}: " + ("an error without its tag" if raised else "tagged as raising, and nothing is raised")


def complaints(book: dict) -> Iterator[str]:
    for where, cell in code(book):
        for output in cell["outputs"]:
            if output.get("name") == "stderr":
                yield f"{where}: writes to stderr"
            if "UsageError" in text(output.get("text", "")) or output.get("ename") == "UsageError":
                yield f"{where}: a magic that IPython does not know"


def known_tags(book: dict) -> Iterator[str]:
    for where, cell in code(book):
        if unknown := tags(cell) - KNOWN_TAGS:
            yield f"{where}: unknown tags {sorted(unknown)}; nbval ignores them in silence"


def widget_state(book: dict) -> Iterator[str]:
    stored = book["metadata"].get("widgets")
    if stored is not None and not all("state" in view for view in stored.values()):
        yield "metadata.widgets without state: GitHub shows an invalid notebook"


def stamps(book: dict) -> Iterator[str]:
    for where, cell in code(book):
        if "execution" in cell["metadata"]:
            yield f"{where}: keeps the time of its execution"


def kernel(book: dict) -> Iterator[str]:
    if (found := book["metadata"].get("kernelspec", {}).get("name")) != "python3":
        yield f"kernelspec is {found!r}: must be 'python3'"


def outputs(book: dict) -> Iterator[str]:
    for where, cell in code(book):
        for output in cell["outputs"]:
            if (length := len(json.dumps(output, ensure_ascii=False).encode("utf-8"))) > MAX_OUTPUT:
                yield f"{where}: an output of {length} bytes, allowed are {MAX_OUTPUT}"
            printed = text(output.get("text", output.get("data", {}).get("text/plain", "")))
            if (lines := len(printed.splitlines())) > MAX_OUTPUT_LINES:
                yield f"{where}: an output of {lines} lines, allowed are {MAX_OUTPUT_LINES}"


def size(book: dict) -> Iterator[str]:
    if (found := len(json.dumps(book, ensure_ascii=False).encode("utf-8"))) > MAX_NOTEBOOK:
        yield f"{found} bytes, allowed are {MAX_NOTEBOOK}"


def embedded(book: dict) -> Iterator[str]:
    for n, cell in enumerate(book["cells"]):
        if cell["cell_type"] == "markdown" and ("base64" in text(cell["source"]) or cell.get("attachments")):
            yield f"cell {n}: a picture embedded in prose"


def sources(book: dict) -> Iterator[str]:
    """Every code cell parses, leaves the shell alone, and uses few magics."""
    for where, cell in code(book):
        try:
            tree = ast.parse(TransformerManager().transform_cell(text(cell["source"])))
        except SyntaxError as error:
            yield f"{where}: does not parse: {error.msg}"
            continue
        for name, first in ipython_calls(tree):
            if name in ("system", "getoutput"):
                yield f"{where}: asks the shell"
            elif first not in KNOWN_MAGICS:
                yield f"{where}: magic {first}, allowed are {sorted(KNOWN_MAGICS)}"


def ipython_calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What `!` and `%` are rewritten to: get_ipython().NAME(FIRST, …). -> NAME, FIRST"""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "get_ipython()":
            yield called.attr, ast.literal_eval(node.args[0])


def lengths(book: dict) -> Iterator[str]:
    for where, cell in code(book):
        if (lines := len(text(cell["source"]).splitlines())) > MAX_LINES:
            yield f"{where}: {lines} lines, allowed are {MAX_LINES}"
    if (core := sum("core" in tags(cell) for _, cell in code(book))) > MAX_CORE:
        yield f"{core} cells are tagged core, allowed are {MAX_CORE}"


def links(book: dict) -> Iterator[str]:
    """Another lesson is named by a link that leads there."""
    for n, cell in enumerate(book["cells"]):
        if cell["cell_type"] == "markdown":
            prose = text(cell["source"])
            for target in re.findall(r"\]\(([^():#]+)\)", prose):
                if not (NOTEBOOKS / target).exists():
                    yield f"cell {n}: {target} does not exist"
            for name in re.findall(r"(?<!\[)`(\d\db?_\w+)`", prose):
                if (NOTEBOOKS / f"{name}.ipynb").exists():
                    yield f"cell {n}: {name} is named without a link"


RULES: list[Rule] = [
    ids,
    counts,
    empty,
    errors,
    complaints,
    known_tags,
    widget_state,
    stamps,
    kernel,
    outputs,
    size,
    embedded,
    sources,
    lengths,
    links,
]


def problems(book: dict) -> list[str]:
    return [f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(book)]
