"""The predictor of a seam: its weights as rows of a matrix product, and gradients through it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.launch import dot_type, launch, starts_early
from minidsv41.kernels.streams import INTERPRETED, narrow, rounded, wide


def pack(fn: Tensor) -> Tensor:
    """Predictor weights [24, 4C] float32 -> [48, 4C] bfloat16, the rows that a product takes."""
    packed = fn.new_empty(48, fn.shape[1], dtype=torch.bfloat16)
    early = starts_early(fn.device)
    launch(pack_weights, (triton.cdiv(fn.shape[1], 128),), fn=fn, packed=packed, WIDE=fn.shape[1], N=128, PDL=early)
    return packed


def weight_gradients(given: Tensor, new: Tensor, *, groups: int, columns: int, depth: int) -> Tensor:
    """[groups, 24, 4C]: sums over tokens of a product's gradient times X'."""
    tokens, _, width = new.shape
    parts = torch.empty(groups, 24, 4 * width, dtype=torch.float32, device=new.device)
    launch(
        weights_backward,
        (triton.cdiv(4 * width, columns), groups),
        **dict(given=given, new=new, parts=parts, T=tokens, WIDE=4 * width, N=columns, M=depth),
        **dict(GROUPS=groups, DOT=dot_type(new.dtype), SPLIT=new.dtype != torch.float32),
        num_warps=4,
        num_stages=1 if new.dtype == torch.float32 else 4,
    )
    return parts


@triton.jit
def weights(at, inside, WIDE: tl.constexpr, SPLIT: tl.constexpr, PACKED: tl.constexpr):
    """Rows of the product for some columns of the predictor (at: where each stands).

    SPLIT: 64 rows, of which row 16 i + r and row 16 i + 8 + r are for high and low part of weight 8 i + r: a matrix
    unit leaves both results in one thread. Else 32 rows of float32. Weights end at 24.
    """
    row = tl.arange(0, 64 if SPLIT else 32)
    k = row // 16 * 8 + row % 8 if SPLIT else row
    inside = (k < 24)[:, None] & inside[None, :]
    return tl.load(at[None, :] + (row if PACKED else k)[:, None] * WIDE, inside, other=0.0)


@triton.jit
def parted(w):
    """The high part of rows 0 to 7 of every 16, the low part of the others."""
    high, wide_high = rounded(w, tl.bfloat16)
    row = tl.arange(0, w.shape[0])
    return tl.where((row // 8 % 2 == 0)[:, None], high, narrow(w - wide_high, tl.bfloat16))


@triton.jit
def product_weights(fn, c0, C: tl.constexpr, N: tl.constexpr, SPLIT: tl.constexpr, PACKED: tl.constexpr):
    """Predictor weights [rows, 4 N] for N channels, from c0 on, of four streams."""
    column = tl.arange(0, 4 * N)
    c = c0 + tl.max_contiguous(tl.multiple_of(column % N, 8), 8)
    return weights(fn + column // N * C + c, c < C, 4 * C, SPLIT, PACKED)


@triton.jit
def product(w, s, total, N: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Add to total [rows, tokens]: predictor weights w times N channels of four streams s [tokens, N].

    All four in one product: the threads of a program wait for each other once.
    """
    x = tl.join(tl.join(s[0].to(DOT), s[2].to(DOT)), tl.join(s[1].to(DOT), s[3].to(DOT)))
    x = x.permute(0, 2, 3, 1).reshape(x.shape[0], 4 * N)
    return tl.dot(w.to(DOT), x.T, total, input_precision=PRECISION)


@triton.jit
def turned_weights(fn, c0, C: tl.constexpr):
    """The predictor's weights [32, 128] for 32 channels, from c0 on, of four streams."""
    k, column = tl.arange(0, 32), tl.arange(0, 128)
    c = c0 + tl.max_contiguous(tl.multiple_of(column % 32, 8), 8)
    at, inside = fn + k[:, None] * (4 * C) + (column // 32 * C + c)[None, :], (k < 24)[:, None] & (c < C)[None, :]
    return tl.load(at, inside, other=0.0)


@triton.jit
def the_first(a, b):
    return a


@triton.jit
def turned_product(w, s, total, DOT: tl.constexpr, WARPS: tl.constexpr):
    """Add to total [tokens, 32]: 32 channels of four streams s [tokens, 32] times predictor weights w.

    Tokens are the rows of the product, 16 to a warp: what threads hold of s is what the matrix unit takes from their
    registers, if tokens and channels are put in its order. Nothing goes through shared memory, no thread waits.
    """
    x = tl.join(tl.join(s[0].to(DOT), s[2].to(DOT)), tl.join(s[1].to(DOT), s[3].to(DOT)))
    if not INTERPRETED:  # of one number: else the compiler would compute s once more, in the order of the product
        x = tl.reduce(x.reshape(16 * WARPS, 32, 2, 2, 1), 4, the_first)
    # tokens: half, warp, line; channels: thread, step, half, one of a pair; streams
    w = w.reshape(32, 4, 4, 2, 2, 2).permute(0, 1, 3, 4, 2, 5).reshape(32, 128)
    high, wide_high = rounded(w, tl.bfloat16)
    low = narrow(w - wide_high, tl.bfloat16)
    x = x.reshape(2, WARPS, 8, 4, 2, 2, 2, 4).permute(1, 0, 2, 7, 4, 5, 3, 6).reshape(16 * WARPS, 128)
    new = tl.dot(x, low.to(DOT).T, tl.dot(x, high.to(DOT).T))
    return total + new  # one that each product went on with would make the compiler wait after every step


@triton.jit
def turned_token(WARPS: tl.constexpr):
    """Which token of a tile each row of `turned_product` is."""
    m = tl.arange(0, 16 * WARPS)
    return m // 8 % 2 * (8 * WARPS) + m // 16 * 8 + m % 8


@triton.jit
def pack_weights(fn, packed, WIDE: tl.constexpr, N: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(0) * N + tl.arange(0, N)
    row = tl.arange(0, 64)
    w = parted(weights(fn + column, column < WIDE, WIDE, True, False))
    to = packed + row[:, None] * WIDE + column[None, :]
    tl.store(to, w.to(tl.bfloat16), (row < 48)[:, None] & (column < WIDE)[None, :])


@triton.jit
def of_predictor(d, fn, c0, C: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr):
    """What the predictor adds to the gradient of BLOCK channels of four streams: d [tokens, 32] times its weights.

    One product for all four, taken apart along registers: the result then takes the layout of what it is added to.
    It changes threads as TYPE, as it would be rounded between a predictor and streams that are kernels apart.
    """
    k, column = tl.arange(0, 32), tl.arange(0, 4 * BLOCK)
    c = c0 + tl.max_contiguous(tl.multiple_of(column % BLOCK, 8), 8)
    inside = (k < 24)[:, None] & (c < C)[None, :]
    w = tl.load(fn + k[:, None] * (4 * C) + (column // BLOCK * C + c)[None, :], inside, other=0.0)
    x = narrow(tl.dot(d, w, input_precision=PRECISION), TYPE)
    x = x.reshape(d.shape[0], 2, 2, BLOCK).permute(0, 3, 2, 1)
    low, high = x.split()
    a, b = low.split()
    c, d = high.split()
    return wide((a, b, c, d))


@triton.jit
def weights_backward(
    given, new, parts, T, WIDE: tl.constexpr, N: tl.constexpr, M: tl.constexpr, GROUPS: tl.constexpr,
    DOT: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    ROWS: tl.constexpr = 64 if SPLIT else 32
    HELD: tl.constexpr = 48 if SPLIT else 24
    STRIDE: tl.constexpr = 48 if SPLIT else 32
    k, c = tl.arange(0, ROWS), tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros([ROWS, N], tl.float32)
    steps = tl.cdiv(tl.cdiv(T, GROUPS), M)
    first = tl.program_id(1) * steps * M
    for t0 in range(first, tl.minimum(first + steps * M, T), M):
        token = t0 + tl.arange(0, M)
        row, live = token.to(tl.int64), token < T
        d = tl.load(given + row[:, None] * STRIDE + k[None, :], live[:, None] & (k < HELD)[None, :], other=0.0)
        x = tl.load(new + row[:, None] * WIDE + c[None, :], live[:, None] & (c < WIDE)[None, :], other=0.0)
        total = tl.dot(d.to(DOT).T, x.to(DOT), total, input_precision="ieee")
    if SPLIT:
        total = tl.sum(total.reshape(4, 2, 8, N), 1).reshape(32, N)
    k = tl.arange(0, 32)
    to = parts + (tl.program_id(1) * 24 + k)[:, None] * WIDE + c[None, :]
    tl.store(to, total, (k < 24)[:, None] & (c < WIDE)[None, :])
