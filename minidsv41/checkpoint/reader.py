"""Checkpoint -> model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minidsv41.checkpoint.errors import CheckpointError, existing, read_object, refuse
from minidsv41.checkpoint.hashing import read_token_map
from minidsv41.checkpoint.layout import (
    INDEX,
    SINGLE,
    VISION,
    Stored,
    expected_tensors,
    scale_name,
    storage,
    weight_names,
)
from minidsv41.config import ModelConfig
from minidsv41.model import Model


def load(
    folder: Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    qat: bool | None = None,
) -> Model:
    """Read a checkpoint; weights are dequantised to `dtype` (those stored in float32 are never narrowed).

    `qat` overrides the config's. The model carries `skipped`, the names of vision tensors, and `stored_scales`
    (parameter name -> scale bytes), with which `save` writes the same file again.
    Raises CheckpointError, which names what is missing, unexpected, or of another shape or dtype; ConfigError.
    """
    folder = Path(folder)
    config = ModelConfig.from_json(read_object(existing(folder, "config.json")))
    if qat is not None:
        config = replace(config, qat=qat)
    with torch.device("meta"):
        model = Model(config).cast(dtype)
    model.token_map = torch.tensor(read_token_map(folder, config), device=device)
    with ExitStack() as stack:
        files = opened(folder, stack)
        model.skipped = sorted(name for name in files if name.startswith(VISION))
        compare(folder, files, expected_tensors(config))

        def read(name: str) -> Tensor:
            return files[name].get_tensor(name).to(device)

        state, model.stored_scales = {}, {}
        for name, p in model.named_parameters():
            if isinstance(storage(name), str):
                state[name] = read(name).to(p.dtype, copy=True)  # what is read may be a view of the file
            else:
                state[name], model.stored_scales[name] = dequantised(name, p, read)
    model.load_state_dict(state, assign=True)
    return model


def dequantised(name: str, p: Tensor, read) -> tuple[Tensor, Tensor]:
    """Values of shape and dtype of p, and their scale bytes."""
    weights = weight_names(name, tuple(p.shape))
    codes = torch.stack([read(w).view(torch.uint8) for w in weights])
    scales = torch.stack([read(scale_name(w)).view(torch.uint8) for w in weights])
    if p.dim() == 2:
        codes, scales = codes[0], scales[0]
    return storage(name).decode(codes, scales, p.dtype), scales


def opened(folder: Path, stack: ExitStack) -> dict[str, safe_open]:
    """Tensor name -> the open file that holds it: one file, or those that an index lists."""
    index = read_index(folder / INDEX) if (folder / INDEX).is_file() else None
    files: dict[str, safe_open] = {}
    home: dict[str, str] = {}
    for name in [SINGLE] if index is None else sorted(set(index.values())):
        try:
            file = stack.enter_context(safe_open(existing(folder, name), "pt"))
        except SafetensorError as error:
            raise CheckpointError(f"{folder / name}: not a whole safetensors file ({error})") from None
        files |= dict.fromkeys(file.keys(), file)
        home |= dict.fromkeys(file.keys(), name)
    if index is not None:
        wrong = [n for n in sorted(home.keys() | index.keys()) if home.get(n) != index.get(n)]
        refuse(
            folder / INDEX,
            [f"{n}: expected in {index.get(n, 'no file')}, it is in {home.get(n, 'no file')}" for n in wrong],
        )
    return files


def read_index(path: Path) -> dict[str, str]:
    index = read_object(path).get("weight_map")
    names = index.values() if isinstance(index, dict) else [None]
    if not all(isinstance(n, str) and n == Path(n).name for n in names):
        raise CheckpointError(f"{path}: expected weight_map, the file in the same folder that holds each tensor")
    return index


def compare(folder: Path, files: dict[str, safe_open], expected: dict[str, Stored]) -> None:
    """Raise CheckpointError unless the files hold exactly the expected tensors, vision aside."""
    lines = []
    for name in sorted(files.keys() | expected.keys()):
        if name not in files:
            lines.append(f"{name}: missing, expected {expected[name]}")
        elif name in expected:
            there = files[name].get_slice(name)
            found = Stored(there.get_dtype(), tuple(there.get_shape()))
            if found != expected[name]:
                lines.append(f"{name}: {found}, expected {expected[name]}")
        elif not name.startswith(VISION):
            lines.append(f"{name}: not a tensor of this model")
    refuse(folder, lines)
