"""One seam of the residual streams, run through a small chip: three orders of reads and writes, and their count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.ops import Next
from minidsv41.ops.seam import coefficients, predict
from minidsv41.replaced import replaced


class NotOnChip(RuntimeError):
    """A tile is written that was not the last one read."""


@dataclass
class Memory:
    """Streams and rows outside the chip, moved a tile of their last axis at a time. It counts what moves.

    rows: by name, [T, n, C] or [T, C]. The chip holds one tile position at a time, and what is small.
    reads, writes: rows of width C for each token.
    """

    rows: dict[str, Tensor]
    tiles: int
    reads: float = 0.0
    writes: float = 0.0
    _here: int | None = field(default=None, repr=False)

    def row(self, name: str) -> Tensor:
        """A whole row, uncounted. Raises KeyError for one that nobody has written."""
        if name not in self.rows:
            raise KeyError(f"memory has no {name}; it has {', '.join(self.rows)}")
        return self.rows[name]

    def read(self, name: str, tile: int) -> Tensor:
        """Tile [..., C / tiles] of a row. Raises KeyError for a row that nobody has written."""
        self._here = tile
        part = self.row(name).chunk(self.tiles, -1)[tile]
        self.reads += part.numel() / self._width(name)
        return part

    @torch.no_grad()
    def write(self, name: str, tile: int, value: Tensor) -> None:
        """Store a tile. Raises NotOnChip unless the last read was of the same position."""
        if tile != self._here:
            raise NotOnChip(f"{name}, tile {tile}: the chip holds tile {self._here}, so read tile {tile} again first")
        if name not in self.rows:
            whole = (*value.shape[:-1], value.shape[-1] * self.tiles)
            self.rows[name] = value.new_full(whole, torch.nan)
        self.rows[name].chunk(self.tiles, -1)[tile].copy_(value)
        self.writes += value.numel() / self._width(name)

    def _width(self, name: str) -> int:
        row = self.rows[name]
        return row.shape[0] * row.shape[-1]

    @property
    def moved(self) -> float:
        return self.reads + self.writes


class Sums:
    """What is collected on the way, tile by tile: a few numbers for each token, never a row."""

    def __init__(self, into: Next) -> None:
        self.into, self._products, self._square, self._mixed, self._count = into, 0, 0, 0, 0

    def add(self, tile: int, X: Tensor) -> None:
        """A tile X [T, n, c] of the streams: its part of the predictor's products, and of their mean square."""
        n, width = X.shape[1:]
        fn = self.into.fn.unflatten(1, (n, -1))[..., tile * width : (tile + 1) * width]
        self._products = self._products + torch.einsum("tnc,mnc->tm", X.to(fn.dtype), fn)
        self._square = self._square + X.to(fn.dtype).square().sum((1, 2))[:, None]
        self._count += n * width

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor]:
        """pre, post, comb of the tiles added so far: those of the streams, once all are."""
        mean = self._square / self._count
        return coefficients(self._products * (mean + self.into.eps).rsqrt(), self.into)

    def weigh(self, tile: int, u: Tensor) -> Tensor:
        """A tile u [T, c] of the mix times the norm's weights; its mean square is collected for `factor`."""
        self._mixed = self._mixed + u.square().sum(-1, keepdim=True)
        return u * self.into.norm.chunk(self.into.norm.shape[0] // u.shape[-1])[tile]

    @property
    def factor(self) -> Tensor:
        """[T, 1] the norm's factor: one number for each token, which whoever reads the row multiplies by."""
        return (self._mixed / self.into.norm.shape[0] + self.into.eps).rsqrt()


Program = Callable[..., None]


def multi_kernel(memory: Memory, sums: Sums, pre: Tensor, post: Tensor, comb: Tensor, *, delayed: bool) -> None:
    """Four kernels, each of which reads what the one before has written: update, predictor, mix, norm."""
    tiles = range(memory.tiles)
    for t in tiles:
        memory.write("X'", t, ops.update(memory.read("X", t), memory.read("F", t), post, comb))
    for t in tiles:
        sums.add(t, memory.read("X'", t))
    mix = pre if delayed else sums.coefficients()[0]
    for t in tiles:
        memory.write("u", t, ops.collapse(memory.read("X'", t), mix))
    for t in tiles:
        memory.write("x", t, sums.weigh(t, memory.read("u", t)))


def two_pass(memory: Memory, sums: Sums, pre: Tensor, post: Tensor, comb: Tensor, *, delayed: bool) -> None:
    """Update and predict in one visit, mix and norm in another."""
    for t in range(memory.tiles):
        X = ops.update(memory.read("X", t), memory.read("F", t), post, comb)
        memory.write("X'", t, X)
        sums.add(t, X)
    mix = pre if delayed else sums.coefficients()[0]
    for t in range(memory.tiles):
        memory.write("x", t, sums.weigh(t, ops.collapse(memory.read("X'", t), mix)))


def single_pass(memory: Memory, sums: Sums, pre: Tensor, post: Tensor, comb: Tensor) -> None:
    """Everything in one visit. It needs a mix that is known before the first tile: a delayed one."""
    for t in range(memory.tiles):
        X = ops.update(memory.read("X", t), memory.read("F", t), post, comb)
        memory.write("X'", t, X)
        sums.add(t, X)
        memory.write("x", t, sums.weigh(t, ops.collapse(X, pre)))


class Seam(NamedTuple):
    """What a seam works on: X [T, n, C], F [T, C], pre and post [T, n], comb [T, n, n], and the next sublayer's own."""

    X: Tensor
    F: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor
    into: Next


def executed(program: Program, seam: Seam, *, tiles: int, **how: bool) -> tuple[tuple[Tensor, ...], Memory]:
    """Run a program on a seam -> what `ops.seam` returns, and the memory with its count."""
    memory, sums = Memory({"X": seam.X, "F": seam.F}, tiles), Sums(seam.into)
    program(memory, sums, seam.pre, seam.post, seam.comb, **how)
    return (memory.row("X'"), memory.row("x") * sums.factor, *sums.coefficients()), memory


def undelayed(X: Tensor, F: Tensor, pre: Tensor, post: Tensor, comb: Tensor, into: Next) -> tuple[Tensor, ...]:
    """A seam as in V4: the mix is the one predicted from the streams that it mixes; `pre` is not used."""
    X = ops.update(X, F, post, comb)
    own, post, comb = predict(X, into)
    return X, ops.rms_norm(ops.collapse(X, own), into.norm, into.eps), own, post, comb


@contextmanager
def counting(program: Program, *, tiles: int, **how: bool) -> Iterator[list[float]]:
    """Every seam of a model runs as this program; yields the rows of width C that each moved for a token.

    Seams that find the streams already updated run as usual: the first of either half, those behind an Engram and
    those at which a draft's features are taken.
    """
    moved: list[float] = []

    def make(usual: Callable) -> Callable:
        def seam(*given: Tensor | None) -> tuple[Tensor, ...]:
            if given[1] is None:
                return usual(*given)
            out, memory = executed(program, Seam(*given), tiles=tiles, **how)
            moved.append(memory.moved)
            return out

        return seam

    with replaced(ops, "seam", make):
        yield moved
