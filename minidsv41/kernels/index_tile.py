"""What a program of the indexer takes, how many there are, and in how many slices a call goes through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton

from minidsv41.kernels.index_cut import Cut
from minidsv41.kernels.launch import INTERPRETED, dot_type, starts_early
from minidsv41.ops.rows import Rows

WORKSPACE = 256 << 20  # bytes of scratch, at most
FULL = 528  # programs that a card takes at once: four for each of 132 multiprocessors


class Tile(NamedTuple):
    """What one program takes, and how many there are.

    rows: queries of a sequence; keys: scored at once; block: entries of a block whose best decides what is scored
    again (a pool that is built has a size of its own); programs: wanted in all; stretch: keys of one, at least.
    """

    rows: int
    keys: int
    block: int
    programs: int = FULL
    stretch: int = 128
    warps: int = 4
    stages: int = 5  # two levels of loads: the page table, then the keys
    registers: int | None = None
    cut: Cut = Cut()
    whole: bool = False  # a tile's page or two pages are looked up at once, not those of each key
    again: int = FULL  # programs that score what is chosen


def runs(lengths: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """(first row, first sequence, sequences, length) of neighbours of equal length."""
    row = first = 0
    for s, length in enumerate(lengths):
        if s + 1 == len(lengths) or lengths[s + 1] != length:
            count = s + 1 - first
            if length:
                yield row, first, count, length
            row, first = row + count * length, s + 1


class Plan(NamedTuple):
    """How a run goes through: parts of a row's keys, groups of rows in a slice, and bytes of scratch of a slice."""

    parts: int
    groups: int
    bytes: int


def parts_of(groups: int, n: int, tile: Tile) -> int:
    """How many programs share the n keys of a group."""
    stretch = triton.cdiv(n, max(1, tile.programs // groups))
    return max(1, triton.cdiv(n, max(tile.stretch, triton.cdiv(stretch, tile.keys) * tile.keys)))


def in_slices(groups: int, size: int) -> int:
    """How many groups go through together, if each takes `size` bytes of scratch."""
    return max(1, min(groups, WORKSPACE // size))


def options(tile: Tile) -> dict[str, object]:
    return dict(num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers)


def constants(heads: int, width: int, keys: Rows, dtype: torch.dtype, tile: Tile, *, within: bool) -> dict[str, object]:
    """What a scoring kernel is compiled for, beside its buffers and blocks; within: blocks given to it."""
    packed, several = keys.format is not None, keys.table.shape[1] > 1
    page = keys.page if several else 0
    whole = tile.whole and not within and page > 0 and (page % tile.keys == 0 or 2 * page == tile.keys)
    padded = max(128 if packed else 16, triton.next_power_of_2(width))
    return dict(
        **dict(N=tile.keys, WHOLE=whole, H=heads, HEADS=max(triton.next_power_of_2(heads), 16 // tile.rows)),
        **dict(D=width, DIMS=padded),
        **dict(PAGE=page, PACKED=packed, DOT=dot_type(dtype)),
        HALVES=tile.registers is not None,  # all planes of a key at once take more of them
        **dict(ASM=packed and dtype == torch.bfloat16 and not INTERPRETED),
        PRECISION="ieee" if dtype == torch.float32 else "tf32",
        PDL=starts_early(keys.data.device),
    )
