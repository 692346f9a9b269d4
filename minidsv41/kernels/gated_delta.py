"""The gated delta rule in chunks of 64 tokens: twin of `families.delta.chunked` with one decay a head.

With G the sum of g within the chunk, S the state in front of it and A[i, j] = exp(G_i - G_j) k_i . k_j for j < i,
    w = (1 + beta A)^-1 beta (v - exp(G) k S),   o = exp(G) q S + M w,   S <- exp(G_63) S + (exp(G_63 - G) k)^T w,
where M[i, j] = exp(G_i - G_j) q_i . k_j for j <= i. Only S binds a chunk to the one before. So `prepare`, a program
for each chunk and value head, makes R = (1 + beta A)^-1 beta and M; `walk`, a program for each value head and 64
values, goes through the chunks with its part of S in registers. It keeps S^T, so that S^T, w^T and what S already
held for the keys, all of them computed, are left operands out of registers, and all that it loads (k, q, v, R, M)
is multiplied as it lies in shared memory.

Bytes a token with 16 key heads, 32 value heads, 128 channels, bfloat16: 24,832 in and out once; R and M, 8,192
written and read again; `walk` reads k and q once a head and block of values, four times, from L2. 21 GFLOP for
4,096 tokens. The matrix unit and memory would both do with 28 us; what limits is the chain in `walk`: six products
of a chunk one after the other on 64 programs, T / 64 times.

bfloat16 products add in float32 and S stays float32; against float64 o and S err by about 0.4 %, whatever T is, decay
or none, keys new or repeated. float32 is multiplied as three TF32 products and errs by 1e-6.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.launch import dot_type, launch, require
from minidsv41.kernels.triangle import inverse

SIZE = 64  # tokens of a chunk


class Tile(NamedTuple):
    """Values of a program of `walk`, warps of both kernels, stages of the loads in `walk`.

    registers: what a thread of `prepare` may take, 128 for four programs at once; products: how `inverse` multiplies.
    """

    values: int = 64
    prepare_warps: int = 4
    walk_warps: int = 4
    walk_stages: int = 3
    registers: int | None = 128
    products: str = "ieee"


def tile_of(value_dim: int, dtype: torch.dtype) -> Tile:
    """bfloat16: 64 values are the rows of one warp group. float32 fills registers and shared memory sooner."""
    if dtype == torch.float32:
        return Tile(values=16, walk_warps=8, walk_stages=1, registers=None)
    return Tile(values=max(16, min(64, triton.next_power_of_2(value_dim))))


@triton.jit
def within(rows, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows that are live and columns below WIDTH; blocks that divide it need no second mask."""
    if WIDTH % BLOCK == 0:
        return rows
    else:
        return rows & (columns < WIDTH)


@triton.jit
def prepare(
    q, k, g, beta, solve, mix, kept, left, T, chunks, Hk, H,
    K: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr, DOT: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    head, chunk = tl.program_id(0) % H, tl.program_id(0) // H
    i, d = tl.arange(0, SIZE), tl.arange(0, WIDE)
    t = chunk.to(tl.int64) * SIZE + i
    live = t < T
    rows = (t[:, None] * Hk + head // (H // Hk)) * K + d[None, :]
    inside = within(live[:, None], d[None, :], K, WIDE)
    keys = tl.load(k + rows, inside, 0.0).to(DOT)
    queries = tl.load(q + rows, inside, 0.0).to(DOT)
    decay = tl.load(g + t * H + head, live, 0.0).to(tl.float32)
    rate = tl.load(beta + t * H + head, live, 0.0).to(tl.float32)
    G, total = tl.cumsum(decay, 0), tl.sum(decay, 0)
    place = (head.to(tl.int64) * chunks + chunk) * SIZE + i
    tl.store(kept + place, tl.exp(G))
    tl.store(left + place, tl.exp(total - G))
    between = tl.exp(tl.where(i[:, None] >= i[None, :], G[:, None] - G[None, :], float("-inf")))
    square = place[:, None] * SIZE + i[None, :]
    M = tl.dot(queries, tl.trans(keys), input_precision="tf32x3") * between
    tl.store(mix + square, M.to(mix.dtype.element_ty))
    L = tl.dot(keys, tl.trans(keys), input_precision="tf32x3") * between * rate[:, None]
    R = inverse(tl.where(i[:, None] > i[None, :], L, 0.0), PRODUCTS) * rate[None, :]
    tl.store(solve + square, R.to(solve.dtype.element_ty))


@triton.jit
def walk(
    q, k, v, solve, mix, kept, left, S, out, last, T, chunks, Hk, H,
    K: tl.constexpr, WIDE: tl.constexpr, V: tl.constexpr, VALUES: tl.constexpr, SIZE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    i, d, n = tl.arange(0, SIZE), tl.arange(0, WIDE), tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    rows = i[:, None] * (Hk * K) + d[None, :]
    cells = i[:, None] * (H * V) + n[None, :]
    square = i[:, None] * SIZE + i[None, :]
    held = (n[:, None] < V) & (d[None, :] < K)
    states = head * (K * V) + d[None, :] * V + n[:, None]
    state = tl.load(S + states, held, 0.0)  # [VALUES, WIDE], the transpose of S
    for chunk in range(chunks):
        start = chunk * SIZE
        live = i[:, None] < T - start
        keyed = (tl.cast(start, tl.int64) * Hk + head // (H // Hk)) * K
        valued = (tl.cast(start, tl.int64) * H + head) * V
        place = (head * chunks + chunk) * SIZE
        inside, aside = within(live, d[None, :], K, WIDE), within(live, n[None, :], V, VALUES)
        keys = tl.load(k + keyed + rows, inside, 0.0).to(DOT)
        queries = tl.load(q + keyed + rows, inside, 0.0).to(DOT)
        values = tl.load(v + valued + cells, aside, 0.0).to(DOT)
        R = tl.load(solve + place * SIZE + square).to(DOT)
        M = tl.load(mix + place * SIZE + square).to(DOT)
        decay, total = tl.load(kept + place + i), tl.load(kept + place + SIZE - 1)
        before = state.to(DOT)
        old = tl.dot(before, tl.trans(keys), input_precision="tf32x3") * -decay[None, :]
        w = tl.dot(tl.trans(values), tl.trans(R), input_precision="tf32x3")
        w += tl.dot(old.to(DOT), tl.trans(R), input_precision="tf32x3")
        read = tl.dot(before, tl.trans(queries), input_precision="tf32x3") * decay[None, :]
        read = tl.dot(w.to(DOT), tl.trans(M), read, input_precision="tf32x3")
        tl.store(out + valued + cells, tl.trans(read).to(out.dtype.element_ty), aside)
        w *= tl.load(left + place + i)[None, :]
        state = tl.dot(w.to(DOT), keys, state * total, input_precision="tf32x3")
    tl.store(last + states, state, held)


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, *, size: int = SIZE, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """As the plain twin; q and k [T, Hk, K] may have fewer heads than v [T, H, V], each for H / Hk neighbours."""
    check(q, k, v, g, beta, S, size)
    (T, Hk, K), (H, V) = k.shape, v.shape[1:]
    tile = tile or tile_of(V, v.dtype)
    q, k, v, g, beta, S = (x.contiguous() for x in (q, k, v, g, beta, S))
    chunks = triton.cdiv(T, SIZE)
    solve, mix = (v.new_empty(H, chunks, SIZE, SIZE) for _ in range(2))
    kept, left = (S.new_empty(H, chunks, SIZE) for _ in range(2))
    out, last = torch.empty_like(v), torch.empty_like(S)
    shared = dict(T=T, chunks=chunks, Hk=Hk, H=H, K=K, WIDE=max(16, triton.next_power_of_2(K)), SIZE=SIZE)
    shared |= dict(q=q, k=k, solve=solve, mix=mix, kept=kept, left=left, DOT=dot_type(v.dtype))
    prepared = dict(g=g, beta=beta, PRODUCTS=tile.products, num_warps=tile.prepare_warps, maxnreg=tile.registers)
    launch(prepare, (chunks * H,), **prepared, **shared)
    shared |= dict(num_warps=tile.walk_warps, num_stages=tile.walk_stages)
    launch(walk, (H, triton.cdiv(V, tile.values)), v=v, S=S, out=out, last=last, V=V, VALUES=tile.values, **shared)
    return out, last


def check(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, size: int) -> None:
    """Raises Unsupported where a shape or type does not fit."""
    require(size == SIZE, f"size = {size}: chunks of the kernel have {SIZE} tokens")
    require(k.dim() == v.dim() == 3, f"k {tuple(k.shape)}, v {tuple(v.shape)}: allowed are [T, Hk, K] and [T, H, V]")
    (T, Hk, K), (H, V) = k.shape, v.shape[1:]
    require(T > 0 and H % Hk == 0, f"T = {T}, H = {H}, Hk = {Hk}: allowed are T > 0 and H a multiple of Hk")
    require(1 <= K <= 128, f"K = {K}: allowed are 1 to 128 channels of a key")
    require(g.dim() == 2, f"g {tuple(g.shape)}: allowed is one decay a head, [T, H]; a decay a channel has no kernel")
    shapes = dict(q=(q, (T, Hk, K)), v=(v, (T, H, V)), g=(g, (T, H)), beta=(beta, (T, H)), S=(S, (H, K, V)))
    for name, (x, shape) in shapes.items():
        require(x.shape == shape, f"{name} {tuple(x.shape)}: allowed is {shape}, as k {tuple(k.shape)} and v imply")
    require(q.dtype == k.dtype == v.dtype, f"q {q.dtype}, k {k.dtype}, v {v.dtype}: allowed is one type for the three")
    require(S.dtype == torch.float32, f"S {S.dtype}: the state is float32")
    dot_type(v.dtype)


def specimen(T: int = 4096, Hk: int = 16, H: int = 32, D: int = 128) -> object:
    """A call without data, at the sizes of Qwen3-Next."""
    q, v = (torch.empty(T, heads, D, dtype=torch.bfloat16, device="meta") for heads in (Hk, H))
    g, S = torch.empty(T, H, device="meta"), torch.empty(H, D, D, device="meta")
    return chunked(q, q, v, g, g, S)


SPECIMENS = {"bf16": specimen}
