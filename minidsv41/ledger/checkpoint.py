"""Bytes of a checkpoint by storage format: sums over the tensor list."""

from __future__ import annotations

from collections.abc import Iterable

from minidsv41.config import ModelConfig
from minidsv41.ledger import tensors as table
from minidsv41.ledger.line import Line, total
from minidsv41.ledger.params import VISION
from minidsv41.ledger.storage import BF16, FP4, FP8, FP32, ONE, ROWS, Storage, Tensor


def stored(name: str, tensors: Iterable[Tensor], formula: str) -> Line:
    return Line(name, sum(t.stored for t in tensors), "B", formula)


def as_stored(storage: Storage) -> str:
    return f"{float(storage.rate):.10g} B an element{' of a full tile' if storage.tile else ''}, {storage.name}"


def expert_bytes(c: ModelConfig) -> Line:
    return stored("expert_bytes", table.expert(c, "experts.{e}", FP4), as_stored(FP4))


def block_other_bytes(c: ModelConfig) -> Line:
    """One block without its routed experts and gate, which differ in a DSpark block."""
    apart = ("ffn.experts", "ffn.gate")
    tensors = [t for t in table.block(c, ONE) if not t.name.startswith(apart)]
    return stored("block_other_bytes", tensors, "attention, norms, mHC and shared expert as stored")


def checkpoint_lines(c: ModelConfig) -> list[Line]:
    """Bytes of the text checkpoint's tensors by storage format, scales included."""
    names = {FP4: "fp4_experts", FP8: "fp8_matrices", ROWS: "fp8_engram_rows", BF16: "bf16", FP32: "fp32"}
    groups = {storage: [t for t in table.tensors(c) if t.storage is storage] for storage in names}
    return [stored(f"checkpoint_{names[s]}", group, as_stored(s)) for s, group in groups.items()]


def checkpoint_bytes(c: ModelConfig) -> Line:
    """The text checkpoint's tensors (file headers not counted)."""
    return total(checkpoint_lines(c)).named("checkpoint_text_bytes", "B")


def release_bytes(c: ModelConfig) -> Line:
    """The text checkpoint and the released vision tower in BF16."""
    return (checkpoint_bytes(c) + 2 * VISION).named("checkpoint_bytes", "B")
