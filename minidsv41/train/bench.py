"""The two contenders of every benchmark, and the record that it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from minidsv41.config import ModelConfig
from minidsv41.ledger.params import active_decode_full
from minidsv41.model import Model
from minidsv41.train import machine
from minidsv41.train.loop import fresh
from minidsv41.train.plain import PlainConfig, PlainTransformer

CONTENDERS = ("minidsv41", "plain")


def active_parameters(c: ModelConfig) -> int:
    """Matrix parameters that one token meets, without embedding and head."""
    return int(active_decode_full(c).value) - c.vocab_size * c.hidden_size


def contender(name: str, preset: str, seed: int) -> Model | PlainTransformer:
    """Fresh weights: this model, or a plain Transformer of as many active parameters, of equal depth and width."""
    if name == "minidsv41":
        return fresh(preset, seed)
    c = ModelConfig.preset(preset)
    plain = PlainConfig.with_parameters(
        active_parameters(c),
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        num_layers=c.num_hidden_layers,
        num_heads=c.num_attention_heads,
    )
    return PlainTransformer(plain, generator=torch.Generator().manual_seed(seed))


def side_by_side(measure: Callable[[str, Any], Any], config: Any) -> Iterator[tuple[str, Any]]:
    """(name, measure(name, config)) of both, one after the other, each in a process of its own, so that its peak
    memory can be told."""
    for name in CONTENDERS:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            yield name, process.submit(measure, name, config).result()


def record(kind: str, config: Any, results: dict | list) -> dict:
    """A measurement with everything that it depends on; `config` is a dataclass with `threads`."""
    where = machine.describe(threads=config.threads, device=getattr(config, "device", "cpu"))
    return {"kind": kind, "settings": asdict(config), "machine": where, "results": results}


def write(content: dict, folder: Path) -> Path:
    """Write a record as JSON, named by its kind."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bench_{content['kind']}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path
