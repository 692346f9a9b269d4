"""Sparse attention on stored rows: decode steps of many sequences, and a chunk of one prompt.

Floor of decode: 346 KB a query at 64 x 512 with 128 + 512 keys, or the matrix unit's 84 MFLOP, whichever is later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from minidsv41 import ops
from minidsv41.formats import MAIN, WINDOW, Format
from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.kernels.sparse_attention import sparse_attention
from minidsv41.ops import Rows, Span

PAGE = 64
SAMPLE = 64  # queries compared with float64


@dataclass(frozen=True)
class Inputs:
    """What attention takes, in its order; both None: window only."""

    q: Tensor
    window: Rows
    entries: Rows | None
    topk: Tensor | None
    sink: Tensor
    span: Span

    @property
    def given(self) -> tuple:
        return self.q, self.window, self.entries, self.topk, self.sink, self.span

    def sample(self) -> Inputs:
        """Some queries in float64."""
        at = torch.linspace(0, len(self.q) - 1, min(SAMPLE, len(self.q)), device=self.q.device).long()
        span = Span(self.span.seq[at], self.span.first[at], self.span.last[at], self.span.width)
        wide = [r and replace(r, dtype=torch.float64) for r in (self.window, self.entries)]
        topk = None if self.topk is None else self.topk[at]
        return Inputs(self.q[at].double(), *wide, topk, self.sink.double(), span)


def stored(rows: int, sequences: int, width: int, fmt: Format, g: torch.Generator) -> Rows:
    """Random records of `rows` rows a sequence in pages out of order: no NaN, scales of a few binades."""
    pages, device = -(-rows // PAGE) * sequences, g.device
    made = partial(torch.randint, generator=g, device=device, dtype=torch.uint8)
    codes = made(0, 256, (pages * PAGE, fmt.row_bytes(width) - width // fmt.group))
    codes = codes & 0xBF if fmt is WINDOW else codes  # below 2
    low, high = (0x28, 0x38) if fmt is MAIN else (125, 130)
    scales = made(low, high, (pages * PAGE, width // fmt.group))
    table = torch.randperm(pages, generator=g, device=device).reshape(sequences, -1)
    return Rows(codes, table, PAGE, scales, fmt, torch.bfloat16)


def inputs(T: int, S: int, L: int, H: int, D: int, W: int, k: int, device: torch.device, seed: int) -> Inputs:
    """T / S neighbouring tokens of each of S sequences, which have L entries."""
    g = torch.Generator(device).manual_seed(seed)
    each = T // S
    seq = torch.arange(S, device=device).repeat_interleave(each)
    last = W + torch.arange(T, device=device) % each
    span = Span(seq, (last - W + 1).clamp(min=0), last, W)
    topk, entries = None, None
    if k:
        step = L // k
        slots = torch.arange(k, device=device) * step
        topk = slots + torch.randint(0, step, (T, k), generator=g, device=device)
        entries = stored(L, S, D, MAIN, g)
    q = torch.randn(T, H, D, generator=g, device=device, dtype=torch.float32).bfloat16()
    sink = torch.randn(H, generator=g, device=device)
    return Inputs(q, stored(W + each, S, D, WINDOW, g), entries, topk, sink, span)


def at_once(attend: Callable, x: Inputs) -> Tensor:
    """The plain version without tiles, which a compiler can see through."""
    return attend(*x.given)


def attend(q: Tensor, window: Rows, entries: Rows | None, topk: Tensor | None, sink: Tensor, span: Span) -> Tensor:
    at = span.rows()
    keys = window.gather(span.seq[:, None], at)
    if topk is not None:
        keys, at = torch.cat([keys, entries.gather(span.seq[:, None], topk)], 1), torch.cat([at, topk], 1)
    scores = (q @ keys.transpose(1, 2)).float() * q.shape[-1] ** -0.5
    scores = F.pad(scores.masked_fill((at < 0)[:, None], -torch.inf), (0, 1)) + F.pad(
        sink[None, :, None], (keys.shape[1], 0)
    )
    return scores.softmax(-1)[..., :-1].to(q.dtype) @ keys


def error(run: Callable[[], Tensor], x: Inputs) -> float:
    at = torch.linspace(0, len(x.q) - 1, min(SAMPLE, len(x.q)), device=x.q.device).long()
    exact = ops.sparse_attention.plain(*x.sample().given)
    return float((run()[at].double() - exact).norm() / exact.norm())


def contest(
    T: int, S: int, L: int, H: int, D: int, W: int, k: int, device: torch.device, seed: int
) -> Contest:  # fmt: skip
    x = inputs(T, S, L, H, D, W, k, device, seed)
    kernel = partial(sparse_attention, *x.given)
    runs: dict[str, Callable] = {"kernel": kernel, "plain": partial(ops.sparse_attention.plain, *x.given)}
    runs["compile"] = partial(at_once, torch.compile(attend, dynamic=False), x)
    return Contest(runs, partial(error, kernel, x), 1e-2, T * (W + k) * 4)


def case(
    kind: str, T: int, S: int, L: int, H: int, D: int, W: int, k: int, target_us: float | None = None
) -> Case:  # fmt: skip
    """Rows are counted once: k entries a query, or all entries of the sequences where those are fewer."""
    own = min(T * k, S * L) * MAIN.row_bytes(D) + min(T * W, S * (T // S + W)) * WINDOW.row_bytes(D)
    moved = own + T * (2 * H * D * 2 + k * 8 + 24)
    shape = f"{kind} L={L:,} heads={H}x{D} keys={W + k}"
    build = partial(contest, T, S, L, H, D, W, k)
    return Case("sparse_attention", shape, moved, 4 * T * H * D * (W + k), target_us, build)


CASES = [
    case("B=1", 1, 1, 16384, 64, 512, 128, 512, 13.0),
    case("B=32", 32, 32, 16384, 64, 512, 128, 512, 20.0),
    case("B=128", 128, 128, 8192, 64, 512, 128, 512, 45.0),
    case("verify B=32 x 6", 192, 32, 16384, 64, 512, 128, 512),
    case("T=4,096", 4096, 1, 32768, 64, 512, 128, 512, 1100.0),
    case("T=32,768", 32768, 1, 32768, 64, 512, 128, 512),
]
