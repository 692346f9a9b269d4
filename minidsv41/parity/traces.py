"""The reference traces of a folder, as cases to compute."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from minidsv41.model import Model
from minidsv41.parity.names import INPUTS, ParityError, drafted, replayed
from minidsv41.parity.runs import run_decode, run_dspark, run_replay, run_trace

MODES = ("qat", "noqat")


@dataclass(frozen=True)
class Case:
    """Reference tensors by stage, how to compute ours, and margin ratios: of the case, and of stages by prefix.

    A ratio below 1 says that some rounding or selection decides so narrowly that float32 may decide otherwise.
    """

    name: str
    mode: str
    file: Path
    reference: dict[str, Tensor]
    compute: Callable[[Model, dict[str, Tensor]], dict[str, Tensor]]
    margin: float = 1.0
    margins: dict[str, Any] = field(default_factory=dict)

    def may_flip(self, stage: str) -> bool:
        own = [number(margin) for prefix, margin in self.margins.items() if stage.startswith(f"{prefix}.")]
        return min([self.margin, *own]) < 1

    def check(self, vocab: int) -> None:
        """Raise ParityError unless the inputs are a prompt of this model."""
        ids = self.reference.get("ids")
        if ids is None or ids.dim() != 1 or not len(ids) or ids.is_floating_point():
            raise ParityError(f"{self.file}: ids are missing, or not the token ids [T] of a prompt")
        tokens = torch.cat([v.long() for n, v in self.reference.items() if n in ("ids", "greedy_ids", "next_ids")])
        if tokens.min() < 0 or tokens.max() >= vocab:
            raise ParityError(f"{self.file}: token ids {tokens.min()}..{tokens.max()}, allowed are 0..{vocab - 1}")
        mask = self.reference.get("image_mask")
        if mask is not None and mask.shape != ids.shape:
            raise ParityError(f"{self.file}: image_mask {list(mask.shape)}, expected one value for each of ids")
        if (last := max(drafted(self.reference), default=0)) >= len(ids):
            raise ParityError(f"{self.file}: a draft at position {last} of a prompt of {len(ids)} tokens")
        if self.compute is run_replay:
            if "next_ids" not in self.reference:
                raise ParityError(f"{self.file}: next_ids are missing")
            replayed(self.reference)


def cases(folder: Path) -> Iterator[Case]:
    """All comparable traces of a folder, mode by mode."""
    meta = read_meta(folder / "meta.json")
    prompt = number(meta.get("prompt_margin_ratio"))
    drafts = {f"p{position}": m for position, m in section(meta, "dspark_position_margin_ratio").items()}
    for mode in MODES:
        replays = {
            name.removeprefix(f"{mode}."): found.get("margin_ratio")
            for name, found in section(meta, "replay_max_deviation_vs_exact").items()
            if name.startswith(f"{mode}.") and isinstance(found, dict)
        }
        for trace, compute, margin, at in (
            (f"prefill_{mode}", run_trace, min(prompt, ratio(meta, section(meta, f"prefill_{mode}_margins"))), {}),
            ("decode", run_decode, min(prompt, ratio(meta, section(meta, f"greedy_{mode}", "margins"))), {}),
            ("imagemask", run_trace, number(meta.get("imagemask_margin_ratio")), {}),
            ("dspark", run_dspark, prompt, drafts),
            ("replay", run_replay, prompt, replays),
        ):
            file = folder / f"trace_{trace}.safetensors"
            if file.exists() and (reference := part(read_trace(file), mode)).keys() - INPUTS:
                yield Case(f"{trace.partition('_')[0]} {mode}", mode, file, reference, compute, margin, at)


def read_trace(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ParityError(f"{file}: not a whole safetensors file ({error})") from None


def part(tensors: dict[str, Tensor], mode: str) -> dict[str, Tensor]:
    """The tensors of one mode, prefix removed, and those that all modes share."""
    shared = {n: v for n, v in tensors.items() if not re.match(r"(no)?qat\.", n)}
    return shared | {n.removeprefix(f"{mode}."): v for n, v in tensors.items() if n.startswith(f"{mode}.")}


def read_meta(file: Path) -> dict:
    """meta.json, if there is one; only margins are read from it, and a margin that it lacks counts as wide."""
    try:
        meta = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (ValueError, RecursionError) as error:
        raise ParityError(f"{file}: not JSON ({error})") from None
    if not isinstance(meta, dict):
        raise ParityError(f"{file}: a JSON object is expected, this is {type(meta).__name__}")
    return meta


def section(meta: dict, *path: str) -> dict:
    for name in path:
        meta = meta.get(name)
        if not isinstance(meta, dict):
            return {}
    return meta


def number(value: object, default: float = 1.0) -> float:
    return value if isinstance(value, int | float) else default


def ratio(meta: dict, margins: dict) -> float:
    """The smallest margin over its threshold."""
    thresholds = section(meta, "thresholds")
    return min((number(m) / number(thresholds[kind]) for kind, m in margins.items() if kind in thresholds), default=1.0)
