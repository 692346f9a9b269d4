"""Engram's rows and gate, at the sizes of V4.1: 24 rows of 256 a token, four streams of 5,120.

Fewest bytes of a token: 24 stored rows of 264 B in, 512 B of bfloat16 out for each; the gate reads X, a key for each
stream and v, and writes X. Targets of both together are 1 / 0.8 of what stored rows and streams alone cost (84 us at
4,096 tokens); values for the projection and what it returns are no less needed, and make it 146 us. A table in host
memory counts its stored rows over the link, 472 us at 55 GB/s; nothing of it is in device memory but the values.
Tables here have one head's share of the released rows, 2**24, cut in 24 parts, one for each column.
"""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.kernels.engram import engram_read
from minidsv41.kernels.gate import engram_gate
from minidsv41.ops import engram as ops
from minidsv41.ops.engram import Table

EPS = 1e-20
ROWS = 1 << 24
K, W, N, C = 24, 256, 4, 5120
PIECE = 1024  # tokens that a reference computes at once


def read_case(T: int, target_us: float | None = None, *, where: str = "device", K: int = K, W: int = W, rows=ROWS):
    """where: device or host."""
    moved = T * K * (W + W // 32 + 2 * W) if where == "device" else T * K * 2 * W
    build = partial(read_contest, T, K, W, rows, where)
    return Case("engram_read", f"{where} table T={T:,}", moved, 0, target_us, build)


def read_contest(T: int, K: int, W: int, rows: int, where: str, device: torch.device, seed: int) -> Contest:
    own, ids = table(rows, W, where, device), places(T, K, rows, device, seed)
    runs = dict(kernel=partial(engram_read, ids, own))
    if where != "device":
        runs["staged"] = staged(ids, own)
    else:
        runs |= dict(
            plain=partial(ops.engram_read, ids, own),
            compile=partial(torch.compile(ops.engram_read, dynamic=False), ids, own),
        )

    def error() -> float:
        found, wanted = engram_read(ids, own), ops.engram_read(ids, own)
        return (found != wanted).double().mean().item()

    return Contest(runs, error, tolerance=0.0, eager=frozenset({"staged"}))


def gate_case(T: int, target_us: float | None = None, *, n: int = N, C: int = C) -> Case:
    build = partial(gate_contest, T, n, C)
    return Case("engram_gate", f"T={T:,}", T * (3 * n + 1) * C * 2, 0, target_us, build)


def gate_contest(T: int, n: int, C: int, device: torch.device, seed: int) -> Contest:
    given = gated(T, n, C, device, seed)
    runs = dict(
        kernel=partial(engram_gate, *given, EPS),
        plain=partial(ops.engram_gate, *given, EPS),
        compile=partial(torch.compile(ops.engram_gate, dynamic=False), *given, EPS),
    )
    return Contest(runs, partial(gate_error, given), tolerance=5e-3)


def both_case(
    T: int, target_us: float | None = None, *, n: int = N, C: int = C, K: int = K, W: int = W, rows: int = ROWS
) -> Case:
    moved = T * (K * (W + W // 32 + 2 * W) + (3 * n + 1) * C * 2)
    build = partial(both_contest, T, n, C, K, W, rows)
    return Case("engram", f"read and gate T={T:,}", moved, 0, target_us, build)


def both_contest(T: int, n: int, C: int, K: int, W: int, rows: int, device: torch.device, seed: int) -> Contest:
    read, gate = read_contest(T, K, W, rows, "device", device, seed), gate_contest(T, n, C, device, seed)

    def after(name: str) -> tuple[object, object]:
        return read.runs[name](), gate.runs[name]()

    runs = {name: partial(after, name) for name in gate.runs}
    return Contest(runs, lambda: max(read.error(), gate.error()), tolerance=5e-3)


@lru_cache(maxsize=2)
def table(rows: int, W: int, where: str, device: torch.device) -> Table:
    """Random codes below 2 and scales of a few binades; one for all slots, far larger than a cache."""
    generator = torch.Generator(device).manual_seed(0)
    random = partial(torch.randint, dtype=torch.uint8, generator=generator, device=device)
    codes, scales = random(0, 256, (rows, W)), random(122, 128, (rows, W // 32))
    own = Table(codes.bitwise_and_(0xBF), scales)
    if where == "device":
        return own
    on = dict(dtype=torch.uint8, pin_memory=device.type == "cuda")
    return Table(*(torch.empty(t.shape, **on).copy_(t) for t in own))


def places(T: int, K: int, rows: int, device: torch.device, seed: int) -> Tensor:
    """[T, K] rows, each column's in a part of the table of its own."""
    generator = torch.Generator(device).manual_seed(seed)
    part = rows // K
    own = torch.randint(0, part, (T, K), generator=generator, device=device)
    return own + part * torch.arange(K, device=device)


def staged(ids: Tensor, own: Table):
    """The processor gathers into pinned memory, one copy takes it over, and the device decodes."""
    at, (T, K), pinned = ids.flatten().cpu(), ids.shape, ids.is_cuda
    stage = [torch.empty(T * K, t.shape[1], dtype=torch.uint8, pin_memory=pinned) for t in own]
    arrived = Table(*(torch.empty_like(t, device=ids.device) for t in stage))
    order = torch.arange(T * K, device=ids.device).view(T, K)

    def run() -> Tensor:
        for t, s, a in zip(own, stage, arrived, strict=True):
            torch.index_select(t, 0, at, out=s)
            a.copy_(s, non_blocking=True)
        return engram_read(order, arrived)

    return run


def gated(T: int, n: int, C: int, device: torch.device, seed: int) -> list[Tensor]:
    """X, kv, both weights, alive."""
    generator = torch.Generator(device).manual_seed(seed)
    normal = partial(torch.randn, generator=generator, device=device)
    X, kv = normal(T, n, C, dtype=torch.bfloat16), normal(T, (n + 1) * C, dtype=torch.bfloat16)
    weights = [1 + 0.1 * normal(n, C) for _ in range(2)]
    return [X, kv, *weights, torch.rand(T, generator=generator, device=device) < 0.9]


def gate_error(given: list[Tensor]) -> float:
    """Relative error of the streams against float64, in pieces."""
    X, kv, *weights, alive = given
    found, off, size = engram_gate(*given, EPS)[0], 0.0, 0.0
    doubles = [w.double() for w in weights]
    for first in range(0, len(X), PIECE):
        now = slice(first, first + PIECE)
        wanted, _ = ops.engram_gate(X[now].double(), kv[now].double(), *doubles, alive[now], EPS)
        off += (found[now].double() - wanted).square().sum().item()
        size += wanted.square().sum().item()
    return (off / size) ** 0.5


CASES = [
    read_case(32),
    read_case(4096),
    read_case(32768),
    gate_case(32),
    gate_case(4096),
    gate_case(32768),
    both_case(4096, 105.0),
    both_case(32768, 840.0),
    read_case(32, where="host"),
    read_case(128, where="host"),
    read_case(4096, 700.0, where="host"),
]
