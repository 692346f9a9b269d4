"""A model of the seam's time by its tile. Modelled, not measured: it knows bandwidth, waves, room, and launches.

A program takes `tokens` tokens and one of `splits` parts of the channels. A multiprocessor runs one program at a time
and gets its share of each bandwidth, no more. With several parts a second launch adds them up.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import ceil
from typing import NamedTuple

from minidsv41.config import ModelConfig
from minidsv41.course.limits import h200
from minidsv41.course.records import record
from minidsv41.ledger.operations import Work, seam

L2 = 5_500.0  # GB/s, assumed: the record has no measurement of it
BLOCK, ROWS, PARTS = 64, 64, 32  # channels of a step; rows of the product; float32 numbers of a token and part
THREADS, STAGES, OTHER = 256, 2, 96  # OTHER: registers for all but the accumulators, assumed
REGISTERS, SHARED = 255, 227 * 1024  # a thread, a program: limits of sm_90

TOKENS = (16, 32, 64, 128, 256)  # a product takes no fewer than 16


class Tile(NamedTuple):
    tokens: int
    splits: int


class NoRoom(ValueError):
    """A tile that a multiprocessor cannot hold."""


@cache
def model() -> tuple[Work, int, int]:
    """Bytes of a seam, its channels, and the number of multiprocessors of the recorded card."""
    c = ModelConfig.preset("flash")
    return seam(c), c.hidden_size, record("peers_h200")["machine"]["sms"]


def registers(tile: Tile) -> int:
    """A thread: four accumulators of ROWS x tokens in float32, shared by the threads, and the rest."""
    return OTHER + 4 * ROWS * tile.tokens // THREADS


def shared(tile: Tile) -> int:
    """Bytes: for each stage BLOCK channels of four streams' weights and of five rows a token."""
    return STAGES * BLOCK * 2 * (4 * ROWS + 5 * tile.tokens)


def require(tile: Tile) -> None:
    """Raises NoRoom unless the tile is one of the model's and fits."""
    blocks = model()[1] // BLOCK
    if tile.tokens not in TOKENS or tile.splits not in range(1, blocks + 1):
        raise NoRoom(f"tile {tuple(tile)}: tokens are one of {TOKENS}, splits 1 to {blocks}")
    if registers(tile) > REGISTERS:
        raise NoRoom(f"tokens = {tile.tokens}: {registers(tile)} registers a thread, there are {REGISTERS}")
    if shared(tile) > SHARED:
        raise NoRoom(f"tokens = {tile.tokens}: {shared(tile):,} B of shared memory, there are {SHARED:,}")


def microseconds(T: int, tile: Tile) -> float:
    """Modelled time of a seam of T tokens. Raises NoRoom."""
    require(tile)
    (work, width, sms), on = model(), h200()
    programs = ceil(T / tile.tokens) * tile.splits
    part = ceil(width / BLOCK / tile.splits) * BLOCK / width  # of the channels, in a program
    rows, weights = part * min(T, tile.tokens) * float(work.each.value), part * float(work.once.value)
    device = rows + float(work.once.value) / programs  # weights come from device memory once, then from L2
    each = max(device / on.copy, (rows + weights) / L2) * sms / 1e3
    time = on.launch + ceil(programs / sms) * each
    if tile.splits > 1:
        time += on.launch + 2 * 4 * PARTS * T * tile.splits / on.copy / 1e3
    return time


@cache
def best(T: int) -> tuple[Tile, float]:
    """The quickest of all tiles that fit, and its time."""
    found = {}
    for tile in (Tile(*sizes) for sizes in product(TOKENS, range(1, model()[1] // BLOCK + 1))):
        try:
            found[tile] = microseconds(T, tile)
        except NoRoom:
            continue
    tile = min(found, key=found.get)
    return tile, found[tile]
