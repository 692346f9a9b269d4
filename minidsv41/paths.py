"""Where the course's data lies: text, tokenizer, checkpoints, records."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "MINIDSV41_DATA"


class DataNotFound(FileNotFoundError):
    """No data folder where one was looked for."""


def data_dir() -> Path:
    """The folder `data/` of the checkout, or the one that the variable MINIDSV41_DATA names.

    Raises DataNotFound, which says where it looked and how to mend it.
    """
    chosen = os.environ.get(VARIABLE)
    folder = Path(chosen) if chosen else Path(__file__).resolve().parent.parent / "data"
    if (folder / "tokenizer").is_dir():
        return folder
    found = f"{VARIABLE} = {chosen!r}" if chosen else f"{folder}"
    raise DataNotFound(
        f"{found}: not a data folder (it has no folder 'tokenizer'). Set {VARIABLE} to the folder 'data' of a "
        "checkout, or install the checkout with `pip install -e .`"
    )


def text_dir() -> Path:
    return data_dir() / "text"


def tokenizer_path() -> Path:
    return data_dir() / "tokenizer" / "tokenizer.json"


def checkpoint_dir(name: str = "toy") -> Path:
    """Folder of a shipped checkpoint, named by its preset; it need not exist yet."""
    return data_dir() / "checkpoints" / name


def records_dir() -> Path:
    """Measurements as JSON, each with machine and date."""
    return data_dir() / "records"
