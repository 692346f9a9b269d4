"""Engram's rows: from a table, wherever it lies, to values for the projection; and rows asked for ahead of their use.

`read`: a program takes some table rows, 264 B each (E4M3 codes and 8 scales), and writes 512 B of bfloat16. With
n-grams given it hashes too, in 64-bit integers; division by a prime is a product with its inverse. From device memory
that is 776 B a row, 18 us at 4,096 tokens of 24 rows. From pinned host memory the link would take 472 us at its
55 GB/s, which it has for streams; short requests to places all over the table are answered slower, at 24 GB/s at best:
in the order of their addresses, sorting included, and with few of them under way. More programs do not help, nor do
pages of 2 MB on the host, nor leaving the scales out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.codes import e4m3_decode, ue8m0_decode
from minidsv41.kernels.launch import launch, native_fp8, require
from minidsv41.kernels.packing import ACTIVATIONS
from minidsv41.ops.engram import Hash, Table


class Tile(NamedTuple):
    """Table rows of a step, warps; at most `programs` (0: one for each step), `stages` of loads under way in each.

    by_column: all tokens of a column before the next, so that for a while addresses lie in one part of the table.
    ordered: all rows in the order of their addresses, which have to be sorted first.
    """

    rows: int = 32
    warps: int = 4
    programs: int = 0
    stages: int = 1
    by_column: bool = False
    ordered: bool = False


TILES = {
    "over the link": [
        *(Tile(64, 8, programs, 2, ordered=True) for programs in (16, 32, 64, 132)),
        *(Tile(64, 8, programs, 2, by_column=True) for programs in (32, 64)),
    ]
}
SORTED = 1 << 14  # rows from which their order gains more, 4 ns for each, than a sort may cost, about 50 us


def tile_of(table: Table, device: torch.device, rows: int) -> Tile:
    """Everything at once from the device's own memory; over the link a few programs, and many rows in order."""
    if table.codes.device == device:
        return Tile()
    if rows >= SORTED:
        return Tile(rows=64, warps=8, programs=32, stages=2, ordered=True)
    return Tile(rows=64, warps=8, programs=64, stages=2, by_column=True)


@triton.jit
def hashed(
    ids, token, column, live, multipliers, primes, offsets, inverses, pad, N: tl.constexpr, HEADS: tl.constexpr
):  # fmt: skip
    """The table row that each column's n-gram chooses."""
    order = column // HEADS + 1  # the oldest of its ids
    mix = tl.zeros_like(token)  # int64
    for place in tl.static_range(N):
        own = tl.load(ids + token * N + place, live, 0)
        term = tl.where(own == -1, pad, own) * tl.load(multipliers + place)
        mix ^= tl.where(place <= order, term, 0)
    prime = tl.load(primes + column)
    size = mix ^ (mix >> 63)  # -1 - mix where that is negative: remainders are those of Python
    inverse = tl.load(inverses + column).to(tl.uint64)
    rest = size - tl.umulhi(size.to(tl.uint64), inverse).to(tl.int64) * prime
    rest = tl.where(rest >= prime, rest - prime, rest)
    return tl.where(mix < 0, prime - 1 - rest, rest) + tl.load(offsets + column)


@triton.jit
def read(
    ids, order, codes, scales, out, multipliers, primes, offsets, inverses, pad, T, steps, stride,
    K: tl.constexpr, N: tl.constexpr, HEADS: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr,
    BY_COLUMN: tl.constexpr, STAGES: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    w, g = tl.arange(0, W), tl.arange(0, W // 32)
    for step in tl.range(tl.program_id(0), steps, stride, num_stages=STAGES):
        item = step * ROWS + tl.arange(0, ROWS)
        live = item < T * K
        item = tl.where(live, item, 0)
        if order is not None:
            place, row = tl.load(order + item, live, 0), tl.load(ids + item, live, 0).to(tl.int64)
        else:
            token, column = (item % T, item // T) if BY_COLUMN else (item // K, item % K)
            token = token.to(tl.int64)
            place = token * K + column
            if N:
                row = hashed(ids, token, column, live, multipliers, primes, offsets, inverses, pad, N, HEADS)
            else:
                row = tl.load(ids + place, live, 0)
        code = tl.load(codes + row[:, None] * W + w[None, :], live[:, None], 0)
        scale = tl.load(scales + row[:, None] * (W // 32) + g[None, :], live[:, None], 127)
        value = e4m3_decode(code, FP8).to(tl.float32).reshape(ROWS, W // 32, 32)
        value = (value * ue8m0_decode(scale)[:, :, None]).reshape(ROWS, W)
        tl.store(out + place[:, None] * W + w[None, :], value.to(out.dtype.element_ty), live[:, None])


def engram_read(
    ids: Tensor,
    table: Table,
    hash: Hash | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """As the plain twin; `out` [T, K * W] takes the result if given."""
    T, width = ids.shape
    K, W = (width if hash is None else len(hash.primes)), table.codes.shape[1]
    check(ids, table, hash, dtype)
    out = torch.empty(T, K * W, dtype=dtype, device=ids.device) if out is None else out
    require(out.shape == (T, K * W) and out.is_contiguous(), f"out {tuple(out.shape)}: allowed is {(T, K * W)}")
    tile = tile or tile_of(table, ids.device, T * K)
    steps = triton.cdiv(T * K, tile.rows)
    programs = min(steps, tile.programs or steps)
    own = hash._asdict() if hash is not None else dict.fromkeys(Hash._fields)
    order = None
    if tile.ordered:
        ids, order = in_order(ids if hash is None else hash.rows(ids), len(table.codes))
    launch(
        read, (programs,), ids=ids, order=order, codes=table.codes, scales=table.scales, out=out,
        multipliers=own["multipliers"], primes=own["primes"], offsets=own["offsets"], inverses=own["inverses"],
        pad=own["pad"] or 0, T=T, steps=steps, stride=programs, K=K,
        N=0 if hash is None or tile.ordered else width, HEADS=own["heads"] or 1, W=W, ROWS=tile.rows,
        BY_COLUMN=tile.by_column, STAGES=tile.stages, FP8=native_fp8(ids.device),
        num_warps=tile.warps,
    )  # fmt: skip
    return out


def in_order(ids: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """ids, the smallest first, and where each of them was."""
    return torch.sort(ids.flatten().to(torch.int32) if rows < 2**31 else ids.flatten())


def check(ids: Tensor, table: Table, hash: Hash | None, dtype: torch.dtype) -> None:
    """Raises Unsupported where something does not fit."""
    rows, W = table.codes.shape
    require(W in (32, 64, 128, 256, 512), f"W = {W}: allowed are rows of 32, 64, 128, 256 or 512 values")
    require(table.scales.shape == (rows, W // 32), f"scales {tuple(table.scales.shape)}: allowed is {(rows, W // 32)}")
    require(dtype in ACTIVATIONS, f"dtype {dtype}: allowed are float32 and bfloat16")
    require(ids.dtype == torch.int64, f"ids {ids.dtype}: allowed is int64")
    require(ids.numel() < 2**26, f"ids {tuple(ids.shape)}: allowed are fewer than 2**26 in a call")
    for name, t in dict(ids=ids, codes=table.codes, scales=table.scales).items():
        require(t.is_contiguous(), f"{name}: strides {t.stride()}: allowed are contiguous tensors")
    for name, t in table._asdict().items():
        require(
            t.device == ids.device or t.is_pinned(), f"{name} on {t.device}: allowed are {ids.device} and pinned memory"
        )
    if hash is not None:
        N = len(hash.multipliers)
        require(ids.shape[1] == N, f"ids {tuple(ids.shape)}: allowed are n-grams [T, {N}] with this hash")


class Prefetch:
    """Rows that are asked for as soon as their ids are known and taken when a layer needs them.

    A GPU brings them on a stream of its own, beside what else it does; a CPU reads them at once. Can be captured in a
    CUDA graph if all that was asked for is taken.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self.waiting: dict[int, tuple[Tensor, torch.cuda.Event | None, Tensor]] = {}

    def ask(self, layer: int, ids: Tensor, table: Table, hash: Hash | None = None, **options) -> None:
        """Send for what `engram_read` returns of these arguments."""
        if self.stream is None:
            self.waiting[layer] = engram_read(ids, table, hash, **options), None, ids
            return
        columns = ids.shape[1] if hash is None else len(hash.primes)
        dtype = options.setdefault("dtype", torch.bfloat16)
        out = torch.empty(len(ids), columns * table.codes.shape[1], dtype=dtype, device=ids.device)
        self.stream.wait_stream(torch.cuda.current_stream(ids.device))  # ids are there, and the room of out is free
        with torch.cuda.stream(self.stream):
            engram_read(ids, table, hash, out=out, **options)
            done = self.stream.record_event()
        self.waiting[layer] = out, done, ids  # held, so that nobody else is given their room meanwhile

    def take(self, layer: int) -> Tensor:
        """The rows [T, K * W] that were sent for; what is queued from now on waits for them."""
        out, done, _ = self.waiting.pop(layer)
        if done is not None:
            torch.cuda.current_stream(out.device).wait_event(done)
        return out


def specimen(T: int = 4096, K: int = 24, W: int = 256, *, N: int = 0, tile: Tile | None = None) -> Tensor:
    """A call without data at released widths, of rows or of n-grams."""
    on = dict(device="meta")
    table = Table(
        torch.empty(384_006_168, W, dtype=torch.uint8, **on), torch.empty(384_006_168, W // 32, dtype=torch.uint8, **on)
    )
    numbers = [torch.empty(k, dtype=torch.int64, **on) for k in (N, K, K, K)]
    ids = torch.empty(T, N or K, dtype=torch.int64, **on)
    return engram_read(ids, table, Hash(*numbers, K // max(1, N - 1), 2) if N else None, tile=tile)


SPECIMENS = {
    "rows": specimen,
    "grams": lambda: specimen(N=4),
    "link": lambda: specimen(tile=Tile(64, 8, 64, 2, by_column=True)),
    "ordered": lambda: specimen(tile=Tile(64, 8, 32, 2, ordered=True)),
}
