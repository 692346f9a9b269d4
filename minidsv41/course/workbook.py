"""The learner's copies of the lessons: one a lesson, outputs cleared, never overwritten once edited."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import nbformat

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
WORKBOOK = ROOT / "workbook"

Outcome = Literal["new", "same", "renewed", "kept"]


class WorkbookError(ValueError):
    """What is wrong with a lesson's number or folder, and what is allowed."""


def fill(notebooks: Path = NOTEBOOKS, workbook: Path = WORKBOOK) -> dict[str, Outcome]:
    """Copy every lesson that has no copy yet. -> file name: what happened

    A copy that nobody edited follows its lesson ("renewed"); an edited one is "kept" as it is.
    Raises WorkbookError if there are no lessons.
    """
    lessons = sorted(notebooks.glob("*.ipynb"))
    if not lessons:
        raise WorkbookError(f"{notebooks}: no lessons here; run this in a copy of the repository")
    workbook.mkdir(parents=True, exist_ok=True)
    return {lesson.name: fill_one(lesson, workbook / lesson.name) for lesson in lessons}


def fill_one(lesson: Path, copy: Path) -> Outcome:
    fresh = cleared(lesson)
    if not copy.exists():
        write(fresh, copy)
        return "new"
    try:
        old = nbformat.read(copy, as_version=4)
    except (ValueError, nbformat.ValidationError):
        return "kept"
    mark = old.metadata.get("lesson")
    if digest(old) != mark:
        return "kept"
    if mark == fresh.metadata["lesson"]:
        return "same"
    write(fresh, copy)
    return "renewed"


def reset(number: str, notebooks: Path = NOTEBOOKS, workbook: Path = WORKBOOK) -> tuple[Path, Path | None]:
    """Renew the copy of lesson `number` ("00", "05b", or "5b"). -> the copy, and where the old one went

    The old copy becomes `NAME.bak1.ipynb`, with the first free number. Raises WorkbookError for an unknown lesson.
    """
    found = [p for p in notebooks.glob("*.ipynb") if p.name.partition("_")[0] in (number, f"0{number}")]
    if len(found) != 1:
        known = ", ".join(sorted(p.name.partition("_")[0] for p in notebooks.glob("*.ipynb")))
        raise WorkbookError(f"lesson = {number!r}: allowed are {known}")
    workbook.mkdir(parents=True, exist_ok=True)
    copy, kept = workbook / found[0].name, None
    if copy.exists():
        n = 1
        while (kept := workbook / f"{copy.stem}.bak{n}.ipynb").exists():
            n += 1
        copy.rename(kept)
    write(cleared(found[0]), copy)
    return copy, kept


def cleared(lesson: Path) -> nbformat.NotebookNode:
    """A lesson without outputs and counts; its metadata remember the digest of its cells."""
    book = nbformat.read(lesson, as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    book.metadata["lesson"] = digest(book)
    return book


def digest(book: nbformat.NotebookNode) -> str:
    """Of what a reader can edit: kind and source of each cell. Running a cell changes nothing."""
    text = "\0".join(f"{c.cell_type}\0{c.source}" for c in book.cells)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write(book: nbformat.NotebookNode, path: Path) -> None:
    """Write whole or not at all."""
    part = path.with_suffix(".part")
    nbformat.write(book, part)
    part.replace(path)
