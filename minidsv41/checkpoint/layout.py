"""The released checkpoint's layout: which tensors hold a parameter, in which format."""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from minidsv41.config import ModelConfig
from minidsv41.formats import DENSE, EXPERT, TABLE, WeightFormat
from minidsv41.model import Model

# The first pattern found in a parameter's name decides how it is stored.
RULES: tuple[tuple[str, WeightFormat | str], ...] = (
    (r"\.experts\.", EXPERT),
    (r"\.engram\.embed\.", TABLE),
    (r"\.compressor\.", "BF16"),
    (r"\.(wq_a|wq_b|wkv|wo_a|wo_b|main_proj)\.|\.shared_experts\.", DENSE),
    (r"\.hc_|\.attn_sink$|\.gate\.bias", "F32"),
    (r"", "BF16"),
)
# The vision tower of the released checkpoint, which this model does not have: skipped and listed.
VISION = ("vision.", "aligner.", "image_start", "image_end", "image_newline")

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
SPELLING = {dtype: name for name, dtype in DTYPES.items()}
SCALE = "F8_E8M0"


class Stored(NamedTuple):
    """dtype as safetensors spells it, and shape of one tensor of a checkpoint."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @classmethod
    def of(cls, tensor: Tensor) -> Stored:
        return cls(SPELLING[tensor.dtype], tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        return DTYPES[self.dtype].itemsize * prod(self.shape)


def storage(name: str) -> WeightFormat | str:
    """How the parameter `name` is stored: a weight format, or the dtype of a plain tensor."""
    return next(kind for pattern, kind in RULES if re.search(pattern, name))


def code_dtype(fmt: WeightFormat) -> str:
    return "I8" if fmt.values.bits == 4 else "F8_E4M3"


def weight_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Names of the weights that hold a parameter: its own, or one for each of the stacked experts."""
    if storage(name) is not EXPERT:
        return [name]
    experts, matrix = name.rsplit(".", 1)
    return [f"{experts}.{e}.{matrix}.weight" for e in range(shape[0])]


def scale_name(weight: str) -> str:
    return weight.removesuffix("weight") + "scale"


def stored_as(name: str, shape: tuple[int, ...]) -> dict[str, Stored]:
    """The tensors that hold the parameter `name` of `shape`, by name."""
    kind = storage(name)
    if isinstance(kind, str):
        return {name: Stored(kind, shape)}
    rows, columns = shape[-2:]
    codes = Stored(code_dtype(kind), (rows, columns * kind.values.bits // 8))
    scales = Stored(SCALE, kind.scale_shape(rows, columns))
    return {n: s for w in weight_names(name, shape) for n, s in ((w, codes), (scale_name(w), scales))}


def expected_tensors(config: ModelConfig) -> dict[str, Stored]:
    """Every tensor of a checkpoint of this shape, by name; no memory is taken for them."""
    with torch.device("meta"):
        model = Model(config)
    parameters = model.named_parameters()
    return {n: s for name, p in parameters for n, s in stored_as(name, tuple(p.shape)).items()}
