"""Run every lesson and save it the way the repository keeps it: outputs fresh, nothing that changes from run to run."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
VIEW = "application/vnd.jupyter.widget-view+json"


def run(path: Path) -> nbformat.NotebookNode:
    """Execute in the notebook's own folder, where nbval executes it too. Raises CellExecutionError."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(
        book,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,
    ).execute()
    return book


def normalise(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop what differs between machines and runs. Ids, tags and counts stay."""
    book.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for cell in book.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if VIEW in output.get("data", {}):
                output.data[VIEW]["model_id"] = cell.id  # no widget state is kept, so nothing looks it up
    return book


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all under notebooks/")
    chosen = parser.parse_args().notebooks or sorted((ROOT / "notebooks").rglob("*.ipynb"))
    if not chosen:
        sys.exit(f"error: {ROOT / 'notebooks'} has no notebook")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for path in chosen:
        before = path.read_bytes()
        nbformat.write(normalise(run(path)), path)
        print("changed" if path.read_bytes() != before else "same   ", path, flush=True)


if __name__ == "__main__":
    main()
