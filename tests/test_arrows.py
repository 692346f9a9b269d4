"""Which part of the package may import which: data flows down one list, and a reader can follow it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "minidsv41"
ONLY = {  # part: the parts of this package that it may import
    "config": {"config"},
    "formats": set(),
    "ops": {"config", "formats", "ops", "kernels"},
    "model": {"config", "formats", "ops", "model"},
    "families": {"config", "ops", "model", "families"},
    "ledger": {"config", "ledger"},
}
COURSE = {"course", "cli"}  # the parts that may import course
NO_ARRAYS = {"config", "ledger"}  # arithmetic only


def imported(source: str, module: str, *, package: bool) -> set[str]:
    """Absolute names that `source` imports anywhere, functions included. A name taken from a module counts with it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".") if package else module.split(".")[:-1]
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def wrong_arrows(source: str, module: str, *, package: bool = False) -> list[str]:
    part = module.split(".")[1]
    wrong = []
    for name in sorted(imported(source, module, package=package)):
        top, *rest = name.split(".")
        if top == "minidsv41" and rest:
            is_part = (PACKAGE / rest[0]).is_dir() or (PACKAGE / f"{rest[0]}.py").is_file()
            if is_part and rest[0] not in ONLY.get(part, {rest[0]}):
                wrong.append(
                    f"{module} imports {name}: {part} may import only {sorted(ONLY[part]) or 'nothing of ours'}"
                )
            if rest[0] == "course" and part not in COURSE:
                wrong.append(f"{module} imports {name}: only cli may import course")
        if top in ("torch", "numpy") and part in NO_ARRAYS:
            wrong.append(f"{module} imports {name}: {part} is arithmetic only")
        if top == "rich" and part == "ledger" and module != "minidsv41.ledger.show":
            wrong.append(f"{module} imports {name}: only ledger.show draws tables")
    return wrong


def files() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem not in ("__init__", "__main__"))


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows(path):
    package = path.stem == "__init__"
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = ".".join(parts[:-1] if package else parts)
    assert not wrong_arrows(path.read_text(encoding="utf-8"), module, package=package)


@pytest.mark.parametrize(
    ("module", "source", "said"),
    [
        ("minidsv41.model.block", "from minidsv41.course.doctor import findings", "only cli may import course"),
        ("minidsv41.model.block", "def f():\n    import minidsv41.course.checks", "model may import only"),
        ("minidsv41.model.block", "from minidsv41 import course", "model may import only"),
        ("minidsv41.model.block", "from .. import course", "model may import only"),
        ("minidsv41.model.block", "from ..course import checks", "model may import only"),
        ("minidsv41.ledger.counts", "import torch.nn as nn", "arithmetic only"),
        ("minidsv41.ledger.counts", "from minidsv41.ops import rows", "ledger may import only"),
        ("minidsv41.ledger.counts", "from rich.table import Table", "only ledger.show draws"),
        ("minidsv41.train.loop", "from minidsv41.course import widgets", "only cli may import course"),
        ("minidsv41.formats", "from minidsv41.config import ModelConfig", "nothing of ours"),
    ],
)
def test_a_wrong_arrow_is_caught(module, source, said):
    assert said in "\n".join(wrong_arrows(source, module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "minidsv41.model.block",
            "from ..ops.rows import Rows\nfrom . import norm\nfrom minidsv41.config import presets",
        ),
        ("minidsv41.cli", "from minidsv41.course import doctor\nfrom minidsv41 import __version__"),
        ("minidsv41.ledger.counts", "from .. import __version__\nimport math"),
    ],
)
def test_a_right_arrow_passes(module, source):
    assert not wrong_arrows(source, module)
