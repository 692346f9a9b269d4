"""A store's writer is killed at random moments; whatever it said it had stored is there, and right."""

from __future__ import annotations

from pathlib import Path

from tests.store_process import campaign

KILLS = 20


def play(seed: int, folder: Path) -> dict[str, int]:
    return campaign(folder, KILLS, seed, longest=0.2)
