"""Every way to take in a prompt, by trained checkpoint: cost, and how far the predictions move."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from minidsv41 import checkpoint
from minidsv41.serve import study
from minidsv41.train.data import corpus


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """How many random prompts of validation text, and their tokens: old, new, and following."""

    prompts: int
    hit: int
    turn: int
    following: int
    seed: int
    threads: int


def run(folder: Path, c: ReplayConfig) -> dict:
    """One checkpoint: what its record says of its training under decoder replay, and the means of every way."""
    tokens = torch.cat([torch.as_tensor(s.tokens) for s in corpus().validation.values()]).long()
    model = checkpoint.load(folder)
    found = study.study(model, tokens, prompts=c.prompts, hit=c.hit, turn=c.turn, following=c.following, seed=c.seed)
    ways = study.summary(list(tqdm(found, total=c.prompts, desc=folder.name, disable=None)))
    return {"checkpoint": folder.name, "trained": trained(folder), "ways": ways}


def trained(folder: Path) -> dict[str, int]:
    """Steps, sequences of a batch, and how many of them were under decoder replay; empty without a record."""
    record = folder / "record.json"
    settings = json.loads(record.read_text(encoding="utf-8"))["settings"] if record.exists() else {}
    return {name: settings[name] for name in ("steps", "batch", "replay") if name in settings}
