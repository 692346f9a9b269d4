"""What a training run leaves: a checkpoint in the released layout, with its record."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from minidsv41 import checkpoint
from minidsv41.train import machine
from minidsv41.train.evaluate import validate
from minidsv41.train.loop import SNAPSHOTS, Trainer
from minidsv41.train.objective import Backbone


def deliver(trainer: Trainer, folder: Path) -> dict:
    """Write the trained model to `folder`, measure that file as loaded, and put the record beside it; -> the record.

    `record.json`: settings, minutes, machine, bits per byte of all validation text; `curve.jsonl`: one line a step;
    `indexer-PPP.safetensors`: the indexer after PPP per cent of the backbone's steps.
    """
    checkpoint.save(trainer.model, folder)
    c, corpus = trainer.config, trainer.corpus
    model = checkpoint.load(folder)
    bits = validate(Backbone(model, replay=0, align=0, seed=0).logits, corpus, length=c.length, batch=c.batch)
    record = {
        "settings": asdict(c),
        "minutes": round(trainer.seconds / 60, 2),
        "tokens_trained": c.steps * c.batch * c.length,
        "peak_memory_mb": round(machine.peak_memory_mb()),
        "machine": machine.describe(threads=c.threads, device=c.device),
        "validation_bits_per_byte": {kind: round(value, 4) for kind, value in bits.items()},
    }
    write_text(folder / "record.json", json.dumps(record, indent=2) + "\n")
    write_text(folder / "curve.jsonl", "".join(json.dumps(line) + "\n" for line in trainer.curve))
    for percent in SNAPSHOTS:
        name = f"indexer-{percent:03}.safetensors"
        shutil.copyfile(trainer.run.folder / name, folder / name)
    return record


def write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
