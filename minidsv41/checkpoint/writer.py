"""Model -> checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from minidsv41.checkpoint.errors import CheckpointError
from minidsv41.checkpoint.hashing import engram_json
from minidsv41.checkpoint.layout import (
    DTYPES,
    INDEX,
    SCALE,
    SINGLE,
    Stored,
    code_dtype,
    expected_tensors,
    scale_name,
    storage,
    weight_names,
)
from minidsv41.model import Model

PARTIAL = ".partial"


def save(model: Model, folder: Path | str, *, shard_bytes: int | None = None) -> None:
    """Write the released layout; with `shard_bytes`, in files of at most that size (or one tensor) and an index.

    Every file is complete and on disk before one of them gets its name; the weights, or their index, come last.
    Raises CheckpointError for a weight that is not finite, OSError when the disk is full.
    """
    folder = Path(folder)
    partial = folder / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write_json(partial / "config.json", model.config.to_json())
        write_json(partial / "engram.json", engram_json(model.config, model.token_map.tolist()))
        weights = write_weights(model, partial, shard_bytes)
        for file in partial.iterdir():
            with file.open("rb+") as f:
                os.fsync(f.fileno())
        if weights[-1] == INDEX:
            (folder / INDEX).unlink(missing_ok=True)  # better none than one that points into a mixture
        for name in ("config.json", "engram.json", *weights):
            os.replace(partial / name, folder / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for old in (folder / INDEX, folder / SINGLE, *folder.glob("model-*-of-*.safetensors")):
        if old.name not in weights:
            old.unlink(missing_ok=True)


def write_weights(model: Model, folder: Path, shard_bytes: int | None) -> list[str]:
    """Names of the files written; the one that makes the others valid is the last."""
    expected = expected_tensors(model.config)
    shards = [list(expected)] if shard_bytes is None else split(expected, shard_bytes)
    names = [SINGLE]
    if shard_bytes is not None:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    tensors = quantised(model)
    for name, shard in zip(names, shards, strict=True):
        content = dict(next(tensors) for _ in shard)
        assert all(Stored.of(t) == expected[n] for n, t in content.items())
        save_file(content, folder / name)
    if shard_bytes is not None:
        total = sum(s.nbytes for s in expected.values())
        home = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": home})
        names = [*names, INDEX]
    return names


def split(expected: dict[str, Stored], limit: int) -> list[list[str]]:
    """Names in order, in runs of at most `limit` bytes; a larger tensor is a run of its own."""
    shards: list[list[str]] = []
    size = 0
    for name, stored in expected.items():
        if not shards or size + stored.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += stored.nbytes
    return shards


@torch.no_grad()
def quantised(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Name and content of each tensor to be stored, in the order of `expected_tensors`.

    Scales that were loaded are kept where they still hold the weights exactly.
    """
    known = getattr(model, "stored_scales", {})
    for name, p in model.named_parameters():
        if not p.isfinite().all():
            raise CheckpointError(f"{name}: holds NaN or infinity, not written")
        kind = storage(name)
        if isinstance(kind, str):
            yield name, p.to(DTYPES[kind])
            continue
        codes, scales = kind.encode(p, known.get(name))
        codes, scales = codes.view(DTYPES[code_dtype(kind)]), scales.view(DTYPES[SCALE])
        weights = weight_names(name, tuple(p.shape))
        parts = zip(codes, scales, strict=True) if p.dim() == 3 else [(codes, scales)]
        for weight, (code, scale) in zip(weights, parts, strict=True):
            yield weight, code
            yield scale_name(weight), scale


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
