"""What can be wrong with a checkpoint, said once."""

from __future__ import annotations

import json
from pathlib import Path


class CheckpointError(ValueError):
    """Something in a checkpoint is not as it must be: the tensor or file, what is there, what is expected."""


def refuse(place: Path, lines: list[str], *, shown: int = 5) -> None:
    """Raise CheckpointError with the first few lines, if there are any."""
    if lines:
        more = [f"… and {len(lines) - shown} more"] if len(lines) > shown else []
        raise CheckpointError("\n  ".join([f"{place}:", *lines[:shown], *more]))


def existing(folder: Path, name: str) -> Path:
    """The file `name` in `folder`, or CheckpointError."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    if not (folder / name).is_file():
        raise CheckpointError(f"{folder}: no checkpoint in the released layout, it has no {name}")
    return folder / name


def read_object(path: Path) -> dict:
    """The JSON object in a file, or CheckpointError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: a JSON object is expected, this is {type(content).__name__}")
    return content
