"""The saved lessons keep every rule, and every rule refuses a lesson that breaks it."""

import copy
import json
import sys
from pathlib import Path

import nbformat
import pytest

from tests import notebook_rules as rules

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


def test_the_first_lesson_is_there():
    assert ROOT / "notebooks" / "00_tour.ipynb" in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: str(p.relative_to(ROOT / "notebooks")))
def test_saved_lesson(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(nbformat.from_dict(copy.deepcopy(book)))
    assert not rules.problems(book)


def good_book() -> dict:
    """Two executed code cells and one of prose."""
    v4 = nbformat.v4
    book = v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    shown = v4.new_output("execute_result", {"text/plain": "2"}, execution_count=2)
    book.cells = [
        v4.new_markdown_cell("# A question"),
        v4.new_code_cell("a = 1", execution_count=1, metadata={"tags": ["core"]}),
        v4.new_code_cell("a + 1", execution_count=2, outputs=[shown]),
    ]
    return json.loads(json.dumps(book))


def test_the_good_book_keeps_every_rule():
    assert rules.problems(good_book()) == []


def source(line):
    return lambda book: book["cells"][2].update(source=line)


def output(**fields):
    return lambda book: book["cells"][2]["outputs"].append(fields)


def tagged(*names):
    return lambda book: book["cells"][1]["metadata"].update(tags=list(names))


def stripped(book):
    for cell in book["cells"][1:]:
        cell.update(outputs=[])


def many_core(book):
    book["cells"] = [book["cells"][1] | {"id": str(n), "execution_count": n} for n in range(1, 24)]


BROKEN = {
    "ids: a cell has no id": lambda book: book["cells"][1].pop("id"),
    "ids: a cell has no id of its own": lambda book: book["cells"][1].update(id=book["cells"][2]["id"]),
    "counts: execution counts are [3, 2]": lambda book: book["cells"][1].update(execution_count=3),
    "counts: execution counts are [None, 2]": lambda book: book["cells"][1].update(execution_count=None),
    "counts: execution counts are []": lambda book: book.update(cells=book["cells"][:1]),
    "empty: no cell has an output": stripped,
    "errors: cell 2: an error without": output(output_type="error", ename="ValueError", evalue="", traceback=[]),
    "errors: cell 1: tagged as raising": tagged("raises-exception"),
    "complaints: cell 2: writes to stderr": output(output_type="stream", name="stderr", text=["careful"]),
    "complaints: cell 2: a magic that": output(output_type="stream", name="stdout", text="UsageError: no such magic"),
    "known_tags: cell 1: unknown tags ['nbval-ignore']": tagged("core", "nbval-ignore"),
    "widget_state: metadata.widgets": lambda book: book["metadata"].update(widgets={"application/x": {"version": 1}}),
    "stamps: cell 1": lambda book: book["cells"][1]["metadata"].update(execution={"iopub.status.busy": "now"}),
    "kernel: kernelspec is 'python311'": lambda book: book["metadata"].update(kernelspec={"name": "python311"}),
    "kernel: kernelspec is None": lambda book: book["metadata"].clear(),
    "outputs: cell 2: an output of 40": output(
        output_type="display_data", metadata={}, data={"text/html": "x" * 40_000}
    ),
    "outputs: cell 2: an output of 41": output(
        output_type="display_data", metadata={}, data={"image/png": "x" * 41_000}
    ),
    "outputs: cell 2: an output of 25 lines": output(output_type="stream", name="stdout", text=["line\n"] * 25),
    "size: 4": lambda book: book["cells"][0].update(source="x" * 450_000),
    "embedded: cell 0": lambda book: book["cells"][0].update(source="![](data:image/png;base64,AAAA)"),
    "embedded: cell 0: a picture": lambda book: book["cells"][0].update(attachments={"a.png": {"image/png": "AAAA"}}),
    "sources: cell 2: does not parse": source("a +"),
    "sources: cell 2: asks the shell": source("!exit 3"),
    "sources: cell 2: asks the shell ": source("files = !ls"),
    "sources: cell 2: magic capture": source("%%capture\na + 1"),
    "sources: cell 2: magic no_such_magic": source("%no_such_magic\na + 1"),
    "sources: cell 2: magic time": source("b = %time a + 1"),
    "lengths: cell 2: 21 lines": source("a\n" * 21),
    "lengths: 23 cells are tagged core": many_core,
    "links: cell 0: 99_end.ipynb does not exist": lambda book: book["cells"][0].update(source="[99](99_end.ipynb)"),
    "links: cell 0: 00_tour is named without": lambda book: book["cells"][0].update(source="See `00_tour`."),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_rule_is_named(said):
    book = good_book()
    BROKEN[said](book)
    assert said.strip() in "\n".join(rules.problems(book))


def test_every_rule_is_broken_above():
    assert {said.partition(":")[0] for said in BROKEN} == {rule.__name__ for rule in rules.RULES}


@pytest.mark.slow
def test_saving_normalises(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import notebooks

    book = nbformat.v4.new_notebook()
    book.cells = [
        nbformat.v4.new_code_cell(
            "import ipywidgets as w\nw.IntSlider()", metadata={"tags": ["core"], "scrolled": True}
        ),
        nbformat.v4.new_code_cell("print(1)\nprint(2)", execution_count=7),
    ]
    path = tmp_path / "lesson.ipynb"
    nbformat.write(book, path)
    monkeypatch.setattr(sys, "argv", ["notebooks.py", str(path)])
    notebooks.main()
    once = path.read_bytes()
    saved = json.loads(once)
    assert rules.problems(saved) == []
    assert [cell["id"] for cell in saved["cells"]] == [cell["id"] for cell in book.cells]
    assert saved["cells"][0]["metadata"] == {"tags": ["core"]}
    assert saved["cells"][1]["outputs"] == [{"name": "stdout", "output_type": "stream", "text": ["1\n", "2\n"]}]
    assert set(saved["metadata"]) == {"kernelspec", "language_info"}
    notebooks.main()
    assert path.read_bytes() == once
