"""How a tensor is stored in the released layout, and the bytes that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from minidsv41.ledger.line import Line, lift, product

ONE = lift(1)


@dataclass(frozen=True)
class Storage:
    """Bits of one element, and the tile [rows, columns] that shares one scale byte."""

    name: str
    bits: int
    tile: tuple[int, int] | None = None

    @property
    def rate(self) -> Fraction:
        """Bytes of one element with its share of a full tile's scale."""
        return Fraction(self.bits, 8) + (Fraction(1, prod(self.tile)) if self.tile else 0)

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        assert self.tile, f"{self.name} has no scales"
        return -(-rows // self.tile[0]), -(-columns // self.tile[1])


FP4 = Storage("FP4 E2M1 + UE8M0 per 32", 4, (1, 32))
FP8 = Storage("FP8 E4M3 + UE8M0 per 32x32", 8, (32, 32))
ROWS = Storage("FP8 E4M3 rows + UE8M0 per 32", 8, (1, 32))
BF16 = Storage("BF16", 16)
FP32 = Storage("FP32", 32)


@dataclass(frozen=True)
class Tensor:
    """`copies` tensors of one shape; with `{e}` in its name, one for each routed expert."""

    name: str
    shape: tuple[Line, ...]
    storage: Storage
    copies: Line = ONE

    @property
    def count(self) -> Line:
        """Parameters of all copies."""
        return product(self.shape if self.copies.value == 1 else (self.copies, *self.shape))

    @property
    def files(self) -> int:
        """Tensors in the checkpoint: scales are stored beside their weights."""
        return int(self.copies) * (2 if self.storage.tile else 1)

    @property
    def scales(self) -> int:
        """Scale bytes of all copies."""
        if self.storage.tile is None:
            return 0
        return int(self.copies) * prod(self.storage.scale_shape(*(int(n) for n in self.shape)))

    @property
    def stored(self) -> int:
        """Bytes of all copies in the checkpoint, scales included."""
        return int(self.count) * self.storage.bits // 8 + self.scales
