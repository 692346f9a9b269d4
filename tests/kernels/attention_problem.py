"""Random attention problems, and their answer in float64."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from minidsv41.formats import MAIN, WINDOW, Format
from minidsv41.model.rope import Rotation, rotate
from minidsv41.ops import Batch, Rows, Span
from minidsv41.ops.attention import gather

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}  # ||error|| / ||exact||; the interpreter cuts bfloat16 off


class Problem:
    """Ragged sequences in shuffled pages, some queries with few entries or none; rows that nobody may read are NaN."""

    def __init__(
        self, lengths: list[int], *, starts: list[int] | None = None, heads: int = 4, width: int = 64, window: int = 8,
        k: int = 5, page: int = 4, packed: bool = True, floor: Tensor | None = None, dims: int = 16,
        dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", seed: int = 0,
    ) -> None:  # fmt: skip
        g = torch.Generator().manual_seed(seed)
        starts = starts or [0] * len(lengths)
        ends = [a + n for a, n in zip(starts, lengths, strict=True)]
        batch = Batch.ragged([torch.zeros(n, dtype=torch.long) for n in lengths], starts, floor=floor)
        tokens, span = sum(lengths), batch.span(window)
        entries = [n // 2 for n in ends]
        self.span = Span(span.seq.to(device), span.first.to(device), span.last.to(device), window)
        self.window = rows(ends, page, width, WINDOW if packed else None, dtype, g, device)
        self.entries = rows(entries, page, width, MAIN if packed else None, dtype, g, device)
        self.topk = chosen(batch.visible(2), k, g).to(device)
        self.q = torch.randn(tokens, heads, width, generator=g).to(device, dtype)
        self.sink = torch.randn(heads, generator=g).to(device)
        angles = torch.rand(tokens, dims // 2, generator=g, dtype=torch.float64).to(device) * 6
        self.rotation = Rotation(angles.cos(), angles.sin())

    @property
    def given(self) -> tuple:
        return self.q, self.window, self.entries, self.topk, self.sink, self.span

    def exact(self, *, entries: bool = True) -> tuple[Tensor, Tensor]:
        """Outputs [T, H, D] and the logarithm of the denominator [T, H] in float64."""
        topk, own = (self.topk, decoded(self.entries)) if entries else (None, None)
        keys, missing = gather(decoded(self.window), own, topk, self.span, slice(None))
        keys = keys.masked_fill(missing[..., None], 0)
        scores = self.q.double() @ keys.transpose(1, 2) * self.q.shape[-1] ** -0.5
        scores = scores.masked_fill(missing[:, None], -torch.inf)
        sink = self.sink.double()[None, :, None].expand(len(scores), -1, 1)
        lse = torch.cat([scores, sink], -1).logsumexp(-1)
        return (scores - lse[..., None]).exp() @ keys, lse

    def turned_back(self, out: Tensor) -> Tensor:
        return rotate(out, self.rotation, inverse=True)

    def float_rotation(self) -> tuple[Tensor, Tensor]:
        return self.rotation.cos.float(), self.rotation.sin.float()


def rows(ends: list[int], page: int, width: int, fmt: Format | None, dtype, g, device) -> Rows:
    """`ends` rows a sequence; all others, and the pages of nobody, hold NaN. Pages that do not exist are -1."""
    pages = max(1, *(-(-n // page) for n in ends))
    table = torch.randperm(len(ends) * pages + 1, generator=g)[:-1].reshape(len(ends), pages)
    values = torch.randn((len(ends) * pages + 1) * page, width, generator=g) * 2
    real = torch.zeros(len(values), dtype=torch.bool)
    for s, n in enumerate(ends):
        at = torch.arange(n)
        real[table[s, at // page] * page + at % page] = True
        table[s, -(-n // page) :] = -1
    if fmt is None:
        values[~real] = torch.nan
        return Rows(values.to(device, dtype), table.to(device), page)
    codes, scales = fmt.encode(values)
    codes[~real], scales[~real] = 0x7F, 0x7F if fmt is MAIN else 0xFF
    return Rows(codes.to(device), table.to(device), page, scales.to(device), fmt, dtype)


def chosen(visible: Tensor, k: int, g: torch.Generator) -> Tensor:
    """[T, k] different entries of those visible, in any order, then -1; every fourth query chooses none."""
    n = max(1, int(visible.max()))
    order = torch.rand(len(visible), n, generator=g).masked_fill(torch.arange(n) >= visible[:, None], 2)
    order[::4] = 2
    picked = order.sort(1).indices.masked_fill(order.sort(1).values == 2, -1)
    return torch.nn.functional.pad(picked, (0, max(0, k - n)), value=-1)[:, :k].contiguous()


def decoded(rows: Rows) -> Rows:
    """The same rows as float64 values."""
    values = rows.data.double()
    if rows.format is not None:
        values = rows.format.decode(rows.data, rows.scales, torch.float64)
    return replace(rows, data=values, scales=None, format=None)


def distance(a: Tensor, b: Tensor) -> float:
    """||a - b|| / ||b||"""
    return float((a.double() - b).norm() / b.norm())
