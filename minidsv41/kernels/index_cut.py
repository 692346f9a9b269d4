"""The k best of many scores, exactly: device functions, and the kernel that merges candidates.

Scores become integers of the same order; the k-th largest is found by cutting an interval of integers in
three and counting, so nothing is sorted. What is kept stays in its order, that of the indices: among equals the first
wins.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.launch import launch, require, starts_early

NONE = tl.constexpr(-2139095041)  # -infinity as an ordered integer: this, or less, is never chosen
NONE_BITS = tl.constexpr(-8388608)  # of -infinity as a float32
FIRST = tl.constexpr(2139095040)  # +infinity
LARGEST = tl.constexpr(2147483647)


@triton.jit
def ordered(x):
    """float32 -> int32 of the same order; both zeros are one number."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(x):
    """The float32 of an ordered integer."""
    return (x ^ ((x >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def distance(low, high):
    return high.to(tl.uint32) - low.to(tl.uint32)


@triton.jit
def cut(values, K: tl.constexpr):
    """values [N] -> a bound, and how many of those equal to it belong to the K best; all above it do.

    Fewer than K values above NONE all belong to the best.
    """
    N: tl.constexpr = values.shape[0]
    GROUPS: tl.constexpr = min(N, triton.next_power_of_2(K))
    least = tl.min(tl.max(values.reshape(GROUPS, N // GROUPS), 1), 0)  # each group has one that reaches it
    low = tl.maximum(least, NONE + 1)
    high = tl.maximum(tl.minimum(tl.max(values, 0), LARGEST - 1), NONE) + 1
    while distance(low, high) > 1:  # K values or more are >= low, or low is where it began; fewer than K are >= high
        step = tl.maximum(distance(low, high) // 3, 1).to(tl.int32)
        left, right = low + step, high - step
        both = tl.sum((values >= left).to(tl.int32) + ((values >= right).to(tl.int32) << 16), 0)  # two counts in one
        more, fewer = both & 0xFFFF, both >> 16
        at, count = tl.where(fewer >= K, right, left), tl.where(fewer >= K, fewer, more)
        high = tl.where(fewer >= K, high, tl.where(more >= K, right, left))
        high = tl.where(count == K, at + 1, high)
        low = tl.where(count >= K, at, low)
    return low, K - tl.sum((values > low).to(tl.int32), 0)


@triton.jit
def places(values, bound, room, before):
    """Which of the next values [N] are kept, and where; before: values above the bound so far, 2**16 for each at it.

    -> keep, place, and what came before the values after these.
    """
    counts = (values > bound).to(tl.int32) + ((values == bound).to(tl.int32) << 16)  # two in one
    ranks = before + tl.cumsum(counts, 0)
    at = ranks >> 16
    keep = (values > bound) | ((values == bound) & (at <= room))
    return keep, (ranks & 0xFFFF) + tl.minimum(at, room) - 1, before + tl.sum(counts, 0)


@triton.jit
def row_of(slot, group0, per, length, row0, G: tl.constexpr):
    """A slot of a slice of groups of G -> its row, and whether it exists: a sequence's last group may be incomplete."""
    group = group0 + slot // G
    member = group % per * G + slot % G
    return row0 + group // per * length + member, member < length


class Rowset(NamedTuple):
    """A slice of the groups of sequences of equal length: groups group0 .. group0 + groups - 1, of `size` rows each."""

    row0: int
    seq0: int
    length: int
    group0: int
    groups: int
    size: int

    @property
    def slots(self) -> int:
        return self.groups * self.size

    def numbers(self) -> dict[str, int]:
        """Kernel arguments."""
        per = -(-self.length // self.size)
        return dict(row0=self.row0, length=self.length, group0=self.group0, per=per, G=self.size)


class Cut(NamedTuple):
    """Most candidates that one program of the merge takes, how many it puts in their places at once, and its warps."""

    width: int = 16384
    step: int = 8192
    warps: int = 16


def cut_levels(width: int, k: int, cut: Cut) -> list[tuple[int, int]]:
    """(candidates of a program, programs a row) at each level of the merge of `width` candidates.

    Where one program cannot take all, two levels of about sqrt(k * width) each are the shortest way.
    """
    require(2 * k <= cut.width <= 16384, f"cut width {cut.width}: allowed are {2 * k} (twice k) to 16384")
    levels = []
    while not levels or levels[-1][1] > 1:
        taken = triton.next_power_of_2(max(16, width))
        if taken > cut.width:
            taken = min(cut.width, triton.next_power_of_2(max(2 * k, isqrt(k * width))))
        levels.append((taken, triton.cdiv(max(1, width), taken)))
        width = levels[-1][1] * k
    return levels


def cut_bytes(width: int, k: int, cut: Cut) -> int:
    """Scratch of the merge, a row."""
    return sum(parts * k * 8 for _, parts in cut_levels(width, k, cut)[:-1])


def merge(
    values: Tensor,
    indices: Tensor | None,
    chosen: Tensor,
    rowset: Rowset,
    *,
    run: int,
    cut: Cut,
    visible: Tensor | None = None,
    size: int = 1,
    raw: bool = False,
    more: bool = False,
) -> None:
    """Write chosen [T, k] (ascending, -1 padded) for the rows of a rowset.

    values [slots, runs, stride]: of each run the first `run` count; indices: the same, or None for the place itself.
    visible [T]: only the first ceil(visible / size) places count. raw: values are the bits of float32, not ordered.
    more: what is chosen is for a kernel that starts early.
    """
    k = chosen.shape[1]
    slots, runs, stride = values.shape
    width, early = runs * run, starts_early(values.device)
    for taken, parts in cut_levels(width, k, cut):
        final = parts == 1
        to = None if final else values.new_empty(2, slots, parts, k)
        launch(
            cut_kernel,
            (slots, parts),
            **dict(values=values, indices=indices, visible=visible, chosen=chosen if final else None),
            **dict(out_values=None if final else to[0], out_indices=None if final else to[1]),
            **dict(width=width, row_stride=runs * stride, **rowset.numbers()),
            **dict(RUN=run if runs > 1 else 0, STRIDE=stride if runs > 1 else 0),
            **dict(K=k, N=taken, STEP=min(cut.step, taken), SIZE=size, ROOM=triton.next_power_of_2(k)),
            **dict(RAW=raw, MORE=more or not final, PDL=early),
            early=early,
            num_warps=min(cut.warps, max(1, taken // 512)),
        )
        if not final:
            values, indices, visible, raw = to[0], to[1], None, False
            runs, stride, width = 1, parts * k, parts * k


@triton.jit
def spread(at, RUN: tl.constexpr, STRIDE: tl.constexpr):
    """Where candidates `at` lie, if RUN of them follow each other every STRIDE places; RUN = 0: all do."""
    if RUN == 0:
        return at
    return at // RUN * STRIDE + at % RUN


@triton.jit
def load_ordered(at, held, RAW: tl.constexpr):
    """Ordered integers at `at`, or floats as such; NONE where none is held."""
    if RAW:
        return ordered(tl.load(at, held, other=NONE_BITS).to(tl.float32, bitcast=True))
    return tl.load(at, held, other=NONE)


@triton.jit
def cut_kernel(
    values, indices, visible, chosen, out_values, out_indices,
    width, row_stride, row0, length, group0, per,
    RUN: tl.constexpr, STRIDE: tl.constexpr,
    G: tl.constexpr, K: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr, ROOM: tl.constexpr, SIZE: tl.constexpr,
    RAW: tl.constexpr, MORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        if MORE:
            tl.extra.cuda.gdc_launch_dependents()  # the next level, or what scores the chosen
        tl.extra.cuda.gdc_wait()  # for what is to be merged
    slot, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row, exists = row_of(slot, group0, per, length, row0, G)
    if exists:
        limit = width
        if visible is not None:
            limit = tl.minimum(width, (tl.load(visible + row).to(tl.int32) + SIZE - 1) // SIZE)
        values += slot.to(tl.int64) * row_stride
        every = part * N + tl.arange(0, N)
        bound, room = cut(load_ordered(values + spread(every, RUN, STRIDE), every < limit, RAW), K)
        before, to = 0, (slot.to(tl.int64) * parts + part) * K
        for first in range(part * N, tl.minimum(part * N + N, limit), STEP):
            at = first + tl.arange(0, STEP)
            where = spread(at, RUN, STRIDE)
            value = load_ordered(values + where, at < limit, RAW)
            index = at
            if indices is not None:
                index = tl.load(indices + slot.to(tl.int64) * row_stride + where, at < limit, other=0)
            keep, place, before = places(value, bound, room, before)
            if chosen is not None:
                tl.store(chosen + row.to(tl.int64) * K + place, index.to(tl.int64), keep)
            else:
                tl.store(out_values + to + place, value, keep)
                tl.store(out_indices + to + place, index, keep)
        rest = tl.arange(0, ROOM)
        empty = (rest >= (before & 0xFFFF) + tl.minimum(before >> 16, room)) & (rest < K)
        if chosen is not None:
            tl.store(chosen + row.to(tl.int64) * K + rest, tl.full([ROOM], -1, tl.int64), empty)
        else:
            tl.store(out_values + to + rest, tl.full([ROOM], NONE, tl.int32), empty)
