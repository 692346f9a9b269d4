"""Norm, rotation and packing of new keys in one pass, straight into the cache, and the pooling of pairs in front.

`write`: half of a warp takes a row, in pieces of 128 channels, so that one instruction does the same for two rows.
A row is read and stored once, in bf16: 1,024 B in, 256 B of angles, 288 B (main) or 528 B (window) out. Bytes and
instructions limit it together: two rows of main take 508 with a norm in bf16, 8 us of them at 32,768 rows beside 12 us
of bytes; two in five are of the unit that begins one every second cycle. All that comes from afar is asked for first,
and nothing is stored before the last piece is packed, so that no load has to wait for a store and pieces are packed
side by side.

`pool`: a program for each token: that which closes a pair takes its own row and the one before (this call's, or the
open pair of the last), the others leave a row of zeros, so that shapes do not depend on positions. Another for each
sequence keeps its last row for the next call. 4,096 B a token in (float32 content and gate), 1,024 B of latent out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.formats import INDEX, MAIN, WINDOW, Format
from minidsv41.kernels.launch import launch, native_fp8, require, starts_early
from minidsv41.kernels.new_keys import angles, asked, inverse_rms, turned, written
from minidsv41.kernels.packing import ACTIVATIONS, packed, physical, rounded, stored
from minidsv41.ops import Batch, Rows, closed


class Tile(NamedTuple):
    """Rows that a program takes, and its warps."""

    rows: int = 2
    warps: int = 1
    early: bool = False  # programs start while the kernel before them still ends, and wait for it then


def tile_of(form: Format) -> Tile:
    """Twice the bytes of main rows go out of a window's: small programs overlap packing and storing better."""
    return Tile() if form is WINDOW else Tile(4, 2, early=True)


@triton.jit
def write(
    x, norm, cos, sin, seq, index, table, data, scales, n, stride, pages, eps,
    D: tl.constexpr, R: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr,
    GROUP: tl.constexpr, WORD: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own, entry, c, s, pieces = asked(x, cos, sin, seq, index, row, n, stride, D // WIDE, R, WIDE)
    at = physical(table, own, tl.where(row < n, entry, -1), pages, PAGE)
    written(pieces, c, s, at, norm, data, scales, eps, D, WIDE, ROWS, GROUP, WORD, FORM, TYPE, FP8)


def kv_write(
    x: Tensor,
    norm: Tensor,
    eps: float,
    rotation_cos: Tensor,
    rotation_sin: Tensor,
    into: Rows,
    seq: Tensor,
    index: Tensor,
    *,
    tile: Tile | None = None,
) -> None:
    """As the plain twin."""
    require(x.dim() == 2 and x.stride(1) == 1, f"x {tuple(x.shape)}, strides {x.stride()}: allowed are rows [n, D]")
    require(x.dtype in ACTIVATIONS, f"x {x.dtype}: allowed are float32 and bfloat16")
    n, D = x.shape
    shared = arguments(norm, rotation_cos, rotation_sin, into, seq, index, n, D)
    tile = tile or tile_of(into.format)
    early = tile.early and starts_early(x.device)
    wide = min(D, max(128, triton.next_power_of_2(2 * rotation_cos.shape[-1])))  # channels at once; the last are turned
    launch(
        write, (triton.cdiv(n, tile.rows),), x=x, n=n, stride=x.stride(0), eps=eps, ROWS=tile.rows, WIDE=wide,
        PDL=early, TYPE=ACTIVATIONS[x.dtype], num_warps=tile.warps, early=early, **shared,
    )  # fmt: skip


def arguments(
    norm: Tensor, cos: Tensor, sin: Tensor, into: Rows, seq: Tensor, index: Tensor, n: int, D: int
) -> dict[str, object]:
    """What kernels are given of norm, rotation and place. Raises Unsupported where something does not fit."""
    require(into.format is not None, f"into: rows of {into.data.dtype}: allowed are packed rows, codes with scales")
    form, R = into.format, 2 * cos.shape[-1]
    require(form in (MAIN, INDEX, WINDOW), f"into: {form}: allowed are the formats main, index and window")
    require(D in (32, 64, 128, 256, 512, 1024), f"D = {D}: allowed are powers of two from 32 to 1024")
    require(0 < R <= D, f"cos {tuple(cos.shape)}: allowed are 1 to {D // 2} angles for rows of {D}")
    word = 32 // form.values.bits
    shapes = dict(norm=(norm, (D,)), cos=(cos, (n, R // 2)), sin=(sin, (n, R // 2)), seq=(seq, (n,)))
    shapes |= dict(index=(index, (n,)), data=(into.data, (len(into.data), D * 4 // word)))
    shapes |= dict(scales=(into.scales, (len(into.data), D // form.group)))
    for name, (x, shape) in shapes.items():
        require(x.shape == shape, f"{name} {tuple(x.shape)}: allowed is {shape}")
        require(x.is_contiguous(), f"{name}: strides {x.stride()}: allowed are contiguous tensors")
    for what, size in {"rows": len(into.data), "entries of the table": into.table.numel()}.items():
        require(size < 2**31, f"into: {size} {what}: allowed are fewer than 2**31")
    require(cos.dtype == sin.dtype == torch.float32, f"cos {cos.dtype}, sin {sin.dtype}: allowed is float32")
    return dict(
        norm=norm, cos=cos, sin=sin, seq=seq, index=index, table=into.table.contiguous(), scales=into.scales,
        data=into.data.view(torch.int32), pages=into.table.shape[1], D=D, R=R, PAGE=into.page, GROUP=form.group,
        WORD=word, FORM=form.name, FP8=native_fp8(into.data.device),
    )  # fmt: skip


@triton.jit
def pool(
    pairs, before, norm, cos, sin, seq, offset, index, starts, table, data, scales, latents, opened, T, pages, eps,
    D: tl.constexpr, R: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr, WORD: tl.constexpr,
    FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, D)
    if row < T:
        entry = tl.load(index + row)
        latent = tl.zeros([D], tl.float32)
        if entry >= 0:
            own, begins = tl.load(seq + row).to(tl.int64), tl.load(offset + row) == 0
            c, g = pair(pairs + row * (2 * D) + d, True, D)
            here, there = pair(pairs + (row - 1) * (2 * D) + d, begins == 0, D)
            c0, g0 = pair(before + own * (2 * D) + d, begins, D)
            c0, g0 = tl.where(begins, c0, here), tl.where(begins, g0, there)
            most = tl.maximum(g, g0)
            e, e0 = tl.exp(g - most), tl.exp(g0 - most)
            pooled = rounded((c0 * e0 + c * e) / (e0 + e), TYPE)
            factor = inverse_rms(tl.sum(pooled * pooled), D, eps)
            latent = rounded(pooled * factor * tl.load(norm + d).to(tl.float32), TYPE)
            at, one = physical(table, own, entry, pages, PAGE), tl.zeros([1], tl.int64)
            c, s = angles(one + row, cos, sin, D, R)
            words, groups = packed(turned(latent[None, :], c, s, TYPE), GROUP, FORM, TYPE, FP8)
            stored(words, groups, one + at, data, scales, 0, D, GROUP, WORD)
        tl.store(latents + row * D + d, latent.to(latents.dtype.element_ty))
    else:
        own = row - T
        first, end = tl.load(starts + own), tl.load(starts + own + 1)
        c, g = pair(pairs + (end - 1) * (2 * D) + d, first < end, D)
        c0, g0 = pair(before + own * (2 * D) + d, first == end, D)
        tl.store(opened + own * (2 * D) + d, tl.where(first < end, c, c0))
        tl.store(opened + own * (2 * D) + D + d, tl.where(first < end, g, g0))


@triton.jit
def pair(at, wanted, D: tl.constexpr):
    """Content and gate, float32, if wanted."""
    return tl.load(at, wanted, 0.0).to(tl.float32), tl.load(at + D, wanted, 0.0).to(tl.float32)


def pool_write(
    pairs: Tensor,
    before: Tensor,
    norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    into: Rows,
    batch: Batch,
    *,
    index: Tensor | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """As the plain twin."""
    require(pairs.dim() == 3 and pairs.shape[1] == 2, f"pairs {tuple(pairs.shape)}: allowed are [T, 2, D]")
    (T, _, D), S = pairs.shape, len(batch.lengths)
    require(pairs.dtype in ACTIVATIONS, f"pairs {pairs.dtype}: allowed are float32 and bfloat16")
    require(into.dtype in ACTIVATIONS, f"into.dtype = {into.dtype}: allowed are float32 and bfloat16")
    require(before.shape == (S, 2, D), f"before {tuple(before.shape)}: allowed is {(S, 2, D)}")
    require(before.dtype == torch.float32, f"before {before.dtype}: allowed is float32")
    index = closed(batch) if index is None else index
    shared = arguments(norm, cos, sin, into, batch.seq, index, T, D)
    latents, opened = pairs.new_empty(T, D, dtype=into.dtype), torch.empty_like(before)
    launch(
        pool, (T + S,), pairs=pairs.contiguous(), before=before.contiguous(), offset=batch.offset,
        starts=batch.cu_seqlens, latents=latents, opened=opened, T=T, eps=eps, TYPE=ACTIVATIONS[into.dtype],
        num_warps=tile.warps if tile else 1, maxnreg=72, **shared,
    )  # fmt: skip
    return latents, opened


def specimen(form: Format, D: int, T: int = 32768, R: int = 64) -> None:
    """A call without data at released widths."""
    on = dict(device="meta")
    x, norm, angles = torch.empty(T, D, dtype=torch.bfloat16, **on), torch.empty(D, **on), torch.empty(T, R // 2, **on)
    codes = D * form.values.bits // 8
    data, scales = (torch.empty(T, width, dtype=torch.uint8, **on) for width in (codes, D // form.group))
    place = torch.empty(T, dtype=torch.int64, **on)
    into = Rows(data, torch.empty(1, T // 64, dtype=torch.int64, **on), 64, scales, form, torch.bfloat16)
    kv_write(x, norm, 1e-20, angles, angles, into, place, place)


def pool_specimen(T: int = 4096, D: int = 512, R: int = 64) -> object:
    """A call without data at released widths."""
    on = dict(device="meta")
    pairs, norm, angles = torch.empty(T, 2, D, **on), torch.empty(D, **on), torch.empty(T, R // 2, **on)
    data, scales = torch.empty(T, D // 2, dtype=torch.uint8, **on), torch.empty(T, D // 16, dtype=torch.uint8, **on)
    into = Rows(data, torch.empty(1, T // 32, dtype=torch.int64, **on), 32, scales, MAIN, torch.bfloat16)
    batch = Batch(torch.empty(T, dtype=torch.int64, **on), (1,), (T,))
    index = torch.empty(T, dtype=torch.int64, **on)
    batch.__dict__.update(seq=index, offset=index, cu_seqlens=index[:2])  # which need values to be computed
    return pool_write(pairs, pairs[:1], norm, 1e-20, angles, angles, into, batch, index=index)


SPECIMENS = {
    "main": lambda: specimen(MAIN, 512),
    "window": lambda: specimen(WINDOW, 512),
    "index": lambda: specimen(INDEX, 128),
    "pool": pool_specimen,
}
