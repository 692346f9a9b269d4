"""Two tokens become one entry: pooling, norm, rotation and packing in one pass; twin of `ops.pool_write`.

A program, one warp, for each token: that which closes a pair takes its own row and the one before (this call's, or
the open pair of the last), the others leave a row of zeros, so that shapes do not depend on positions. Another for
each sequence keeps its last row for the next call. Read once: 4,096 B a token (float32 content and gate of 512);
written: a latent of 1,024 B, and 288 B for two tokens. Device memory limits it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.formats import MAIN
from minidsv41.kernels.kv_write import ACTIVATIONS, arguments, inverse_rms, physical, placed, rounded, turned
from minidsv41.kernels.launch import launch, require
from minidsv41.ops import Batch, Rows, closed


@triton.jit
def pool(
    pairs, before, norm, cos, sin, seq, offset, index, starts, table, data, scales, latents, opened, T, pages, eps,
    D: tl.constexpr, R: tl.constexpr, WIDE: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr,
    WORD: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr,
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
            at = physical(table, own, entry, pages, PAGE)
            placed(
                turned(latent, row, cos, sin, D, R, TYPE), at, data, scales, 0, D, D, GROUP, WORD, FORM, TYPE, FP8
            )  # fmt: skip
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
    warps: int = 1,
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
        num_warps=warps, **shared,
    )  # fmt: skip
    return latents, opened


def specimen(T: int = 4096, D: int = 512, R: int = 64) -> object:
    """A call without data at released widths."""
    on = dict(device="meta")
    pairs, norm, angles = torch.empty(T, 2, D, **on), torch.empty(D, **on), torch.empty(T, R // 2, **on)
    data, scales = torch.empty(T, D // 2, dtype=torch.uint8, **on), torch.empty(T, D // 16, dtype=torch.uint8, **on)
    into = Rows(data, torch.empty(1, T // 32, dtype=torch.int64, **on), 32, scales, MAIN, torch.bfloat16)
    batch = Batch(torch.empty(T, dtype=torch.int64, **on), (1,), (T,))
    index = torch.empty(T, dtype=torch.int64, **on)
    batch.__dict__.update(seq=index, offset=index, cu_seqlens=index[:2])  # which need values to be computed
    return pool_write(pairs, pairs[:1], norm, 1e-20, angles, angles, into, batch, index=index)


SPECIMENS = {"main": specimen}
