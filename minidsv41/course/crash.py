"""A process that dies while it writes to a store: `python -m minidsv41.course.crash`. It needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from minidsv41.cache.store import Identity, Store

ROOT = Path(__file__).resolve().parents[2]
KILLED = 9


def writer_dies(folder: Path, identity: Identity, *, pages: int, at: int) -> bool:
    """Another process stores pages 0, 1, … of one prompt and is gone while it gives page `at` -> whether it died there.

    No other process may have the folder open meanwhile: on some systems nobody else could free the dead one's lock.
    """
    command = [sys.executable, "-m", "minidsv41.course.crash", str(folder), json.dumps(asdict(identity))]
    return subprocess.run([*command, str(pages), str(at)], cwd=ROOT).returncode == KILLED


def prompt_of(identity: Identity, pages: int) -> list[int]:
    """The tokens of which the process stores pages."""
    return list(range(pages * identity.page))


def main(folder: str, identity: Identity, pages: int, at: int) -> None:
    def page(i: int) -> bytes:
        if i == at:
            os._exit(KILLED)  # no clean-up of any kind
        return i.to_bytes(2, "little") * (identity.page_bytes // 2)

    Store(folder, identity, max_bytes=1 << 24).put(prompt_of(identity, pages), page)


if __name__ == "__main__":
    main(sys.argv[1], Identity(**json.loads(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4]))
