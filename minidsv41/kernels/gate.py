"""Engram's gate in one pass over the streams: twin of `ops.engram.engram_gate`.

A program keeps the weights of one stream in registers and takes token after token: X and k of its stream, v, three
sums, and X again, out of registers, with the gated value. Streams of a token run side by side, so that v comes from
L2 three times in four. A token moves (3 n + 1) C values: 133 kB at 4 streams of 5,120 in bfloat16, which is 127 us at
4,096 tokens. Device memory limits it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.launch import launch, require
from minidsv41.kernels.packing import ACTIVATIONS, INTERPRETED, rounded


class Tile(NamedTuple):
    """Warps of a program, programs for each stream, tokens whose loads are under way in each."""

    warps: int = 8
    programs: int = 99  # 3 for each processor of an H200, over four streams
    stages: int = 1


@triton.jit
def part(X, kv, at_x, at_k, at_v, d, C: tl.constexpr):
    """X, k and v of some channels."""
    live = d < C
    return tl.load(X + at_x + d, live, 0.0), tl.load(kv + at_k + d, live, 0.0), tl.load(kv + at_v + d, live, 0.0)


@triton.jit
def sums(x, k, w):
    """[2, 2] of the products x w k, of squares of x, and of k: one reduction, where three would wait three times."""
    x, k = x.to(tl.float32), k.to(tl.float32)
    return tl.sum(tl.join(tl.join(x * w * k, x * x), tl.join(k * k, tl.zeros_like(k))), 0)


@triton.jit
def added(out, at, x, v, gate, d, C: tl.constexpr):
    """Store x + gate v."""
    y = x.to(tl.float32) + gate * v.to(tl.float32)
    if INTERPRETED:
        y = rounded(y, out.dtype.element_ty)
    tl.store(out + at + d, y.to(out.dtype.element_ty), d < C)


@triton.jit
def gate(
    X, kv, q_weight, k_weight, alive, out, gates, T, eps, stride,
    n: tl.constexpr, C: tl.constexpr, MOST: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0) % n
    a, b = tl.arange(0, MOST), MOST + tl.arange(0, max(REST, 1))
    own = stream * C
    w = tl.load(q_weight + own + a).to(tl.float32) * tl.load(k_weight + own + a).to(tl.float32)
    if REST:
        u = tl.load(q_weight + own + b, b < C, 0.0).to(tl.float32)
        u *= tl.load(k_weight + own + b, b < C, 0.0).to(tl.float32)
    for token in tl.range(tl.program_id(0) // n, T, stride, num_stages=STAGES):
        t = tl.cast(token, tl.int64)
        at_x, at_kv = (t * n + stream) * C, t * ((n + 1) * C)
        x, k, v = part(X, kv, at_x, at_kv + own, at_kv + n * C, a, C)
        if REST:
            x1, k1, v1 = part(X, kv, at_x, at_kv + own, at_kv + n * C, b, C)
        counts = tl.load(alive + t).to(tl.float32)
        total = sums(x, k, w)
        if REST:
            total += sums(x1, k1, u)
        first, last = total.split()
        s, hh = first.split()
        kk, _ = last.split()
        s = s * (1 / C**0.5) * tl.rsqrt(hh / C + eps) * tl.rsqrt(kk / C + eps)
        root = tl.sqrt(tl.maximum(tl.abs(s), 1e-6))
        g = tl.sigmoid(tl.where(s.to(tl.int32, bitcast=True) < 0, -root, root)) * counts
        added(out, at_x, x, v, g, a, C)
        if REST:
            added(out, at_x, x1, v1, g, b, C)
        tl.store(gates + t * n + stream, g)


def engram_gate(
    X: Tensor,
    kv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    alive: Tensor,
    eps: float,
    *,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """As the plain twin; the gate in float32."""
    require(X.dim() == 3 and X.dtype in ACTIVATIONS, f"X {X.dtype} {tuple(X.shape)}: allowed is bf16, f32 [T, n, C]")
    T, n, C = X.shape
    shapes = dict(kv=(kv, (T, (n + 1) * C)), q_weight=(q_weight, (n, C)), k_weight=(k_weight, (n, C)))
    for name, (t, shape) in (shapes | dict(alive=(alive, (T,)))).items():
        require(t.shape == shape, f"{name} {tuple(t.shape)}: allowed is {shape}, as X {tuple(X.shape)} implies")
    require(kv.dtype == X.dtype, f"kv {kv.dtype}: allowed is {X.dtype}, as X has it")
    require(1 <= C <= 16384, f"C = {C}: allowed are 1 to 16,384 channels")
    tile = tile or Tile()
    X, kv, q_weight, k_weight = (t.contiguous() for t in (X, kv, q_weight, k_weight))
    out, gates = torch.empty_like(X), torch.empty(T, n, device=X.device)
    most = 1 << (C.bit_length() - 1)  # two blocks, since 5,120 channels would make one of 8,192
    programs = min(T, tile.programs)
    launch(
        gate, (programs * n,), X=X, kv=kv, q_weight=q_weight, k_weight=k_weight, alive=alive, out=out, gates=gates,
        T=T, eps=eps, stride=programs, n=n, C=C, MOST=most, REST=triton.next_power_of_2(C - most) if most < C else 0,
        STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return out, gates


def specimen(T: int = 4096, n: int = 4, C: int = 5120, tile: Tile | None = None) -> object:
    """A call without data at released widths."""
    on = dict(device="meta")
    X, kv = (torch.empty(T, k, C, dtype=torch.bfloat16, **on) for k in (n, n + 1))
    weight, alive = torch.empty(n, C, **on), torch.empty(T, dtype=torch.bool, **on)
    return engram_gate(X, kv.flatten(1), weight, weight, alive, 1e-20, tile=tile)


SPECIMENS = {"bf16": specimen, "ahead": lambda: specimen(tile=Tile(stages=3))}
