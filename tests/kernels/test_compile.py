"""Every kernel at its released widths compiles for cards that are not here, and keeps its values in registers.

Every specimen for sm_90, every kernel once for the others.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

import pytest
from typer.testing import CliRunner

import minidsv41.kernels as package
from minidsv41.cli import app
from minidsv41.cli.kernels import CompileError, compiled_rows
from minidsv41.kernels.compiled import specimens
from minidsv41.kernels.launch import recorded

FILES = sorted({name.partition(":")[0] for name in specimens()})
SPILLED = {  # bytes of the stack, where a few values are kept outside of the registers
    ("attention_backward", "by_query"): 56,
    ("attention_backward", "by_key"): 16,
    ("gated_delta", "walk"): 16,
    ("index_select", "scan_kernel"): 8,
    ("index_select", "cut_kernel"): 8,
    ("sparse_attention", "by_query"): 96,
    ("window_attention", "runs"): 88,
}


def compiled(card: int, folder: Path, *, once: bool) -> tuple[list[dict], str]:
    """The rows of all kernels, and the error that ended them, if one did.

    The cache is a new one: a kernel found in another would not show that it compiles.
    """
    rows = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        try:
            rows.extend(compiled_rows("", [card], once=once))
        except CompileError as failed:
            return rows, str(failed)
    return rows, ""


@pytest.fixture(scope="module")
def hopper(tmp_path_factory) -> tuple[list[dict], str]:
    return compiled(90, tmp_path_factory.mktemp("triton"), once=False)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_kernels_stay_in_registers_on_hopper(file, hopper):
    rows, error = hopper
    own = [row for row in rows if row["specimen"].startswith(f"{file}: ")]
    assert {name for name in specimens() if name.startswith(f"{file}: ")} <= {row["specimen"] for row in own}, error
    for row in own:
        assert row["capability"] == 90 and 0 < row["registers"] <= 255 and row["shared"] <= 227 * 1024, row
        assert row["stack"] <= SPILLED.get((file, row["kernel"]), 0), row


@pytest.mark.slow
@pytest.mark.parametrize("card", [80, 100])  # the one cannot convert E4M3 itself, the other has new matrix products
def test_kernels_compile_for_other_cards(card, tmp_path):
    rows, error = compiled(card, tmp_path, once=True)
    assert {row["kernel"] for row in rows} == kernels_of(*FILES), error
    assert all(row["capability"] == card and 0 < row["registers"] <= 255 for row in rows)
    empty = {row["kernel"] for row in rows if row["registers"] < 16}  # all work is gone, as where nothing is stored
    assert empty == ({"runs"} if card == 100 else set())  # which window attention refuses to start there


def kernels_of(*files: str) -> set[str]:
    """Names of the kernels that the specimens of these files start."""
    found = set()
    for name, make in specimens().items():
        if name.partition(":")[0] in files:
            with recorded() as launches:
                make()
            found |= {call.kernel.fn.__name__ for call in launches}
    return found


def started(source: str) -> set[str]:
    """Names of the kernels that a file starts by `launch(NAME, …)`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    return {
        call.args[0].id
        for call in calls
        if getattr(call.func, "id", None) == "launch" and isinstance(call.args[0], ast.Name)
    }


def test_every_kernel_has_a_specimen():
    seen = kernels_of(*FILES)
    for module in iter_modules(package.__path__):
        path = Path(package.__path__[0]) / f"{module.name}.py"
        if not module.ispkg and module.name != "launch":
            assert started(path.read_text(encoding="utf-8")) <= seen, module.name


@pytest.mark.slow
def test_the_command_shows_registers_and_spills():
    result = CliRunner().invoke(app, ["kernels", "kv_write: pool", "--card", "80", "--card", "90"])
    assert result.exit_code == 0, result.output
    assert "sm_80" in result.output and "sm_90" in result.output and "pool" in result.output


@pytest.mark.slow
def test_what_cannot_be_compiled_is_an_error():
    with pytest.raises(CompileError, match="kernels.compiled kv_write: pool 7 failed"):
        list(compiled_rows("kv_write: pool", [7]))


@pytest.mark.slow
def test_a_process_that_interprets_does_not_compile():
    command = [sys.executable, "-m", "minidsv41.kernels.compiled", "kv_write: pool", "90"]
    found = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert found.returncode != 0 and "TRITON_INTERPRET=1" in found.stderr
