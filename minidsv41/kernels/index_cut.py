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
FIRST = tl.constexpr(2139095040)  # +infinity
LARGEST = tl.constexpr(2147483647)


@triton.jit
def ordered(x):
    """float32 -> int32 of the same order; both zeros are one number."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0.0 + 0.0 is 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def distance(low, high):
    return high.to(tl.uint32) - low.to(tl.uint32)


@triton.jit
def below(values, bound):
    """How many of every four values are < bound, from which none is 2**31 away: signs of differences count them."""
    return tl.sum(((values - bound).to(tl.uint32) >> 31).to(tl.int32).reshape(values.numel // 4, 4), 1)


@triton.jit
def cut(values, K: tl.constexpr):
    """values [R, L] -> a bound: all above it belong to the K best, and what is missing of those equal to it.

    Fewer than K values above NONE all belong to the best.
    """
    N: tl.constexpr = values.numel
    GROUPS: tl.constexpr = min(N, triton.next_power_of_2(K))
    best = tl.max(values.reshape(GROUPS, N // GROUPS), 1)  # each group has one that reaches the least of these
    most, least = tl.max(tl.join(best, ~best), 0).split()
    low = tl.maximum(~least, NONE + 1)
    high = tl.maximum(tl.minimum(most, LARGEST - 1), NONE) + 1
    values = values.reshape(N)
    if distance(low, high) > LARGEST:  # numbers of one sign are nearer
        if tl.sum((values >= 0).to(tl.int32), 0) >= K:
            low = tl.maximum(low, 0)
        else:
            high = tl.minimum(high, 0)
    values = tl.minimum(tl.maximum(values, low - 1), high)
    more, fewer = tl.full([], K, tl.int32), tl.full([], 0, tl.int32)
    while (distance(low, high) > 1) & (fewer < K - 1):
        # `more` are >= low, K or above, or low is where it began; `fewer` than K are >= high
        step = tl.maximum(distance(low, high) // 8, 1).to(tl.int32)
        near = tl.where((fewer - K) * -4 < more - fewer, 5, 3)  # where counts let expect it
        left = tl.minimum(low + step * tl.where((more - K) * 4 < more - fewer, 1, near), high - 1)
        right = tl.minimum(left + 2 * step, high - 1)
        both = tl.sum(below(values, left) + (below(values, right) << 16), 0)  # two counts in one
        some, few = -(both & 0xFFFF) + N, -((both >> 16) & 0xFFFF) + N
        above, under = few >= K, some < K
        low = tl.where(above, right, tl.where(under, low, left))
        more = tl.where(above, few, tl.where(under, more, some))
        high = tl.where(above, high, tl.where(under, left, right))
        fewer = tl.where(above, fewer, tl.where(under, some, few))
        high = tl.where((some == K) | (few == K), low + 1, high)
    if distance(low, high) > 1:  # one is missing, the best of those below
        low = tl.max(tl.where(values < high, values, low), 0)
    return low


@triton.jit
def fourths(x):
    """[R, L] -> four tensors, every fourth place of all in order: stored so, no value changes its thread."""
    even, odd = x.reshape(x.numel // 4, 2, 2).split()
    a, c = even.split()
    b, d = odd.split()
    return a, b, c, d


@triton.jit
def row_counts(chosen):
    return tl.sum(chosen.to(tl.int32), 1)


@triton.jit
def ranks(chosen, rows):
    """chosen [R, L], so many in each row -> each one's place among all."""
    return tl.cumsum(chosen.to(tl.int32), 1) + (tl.cumsum(rows, 0) - rows - 1)[:, None]


@triton.jit
def places(values, bound, K: tl.constexpr):
    """Which of values [R, L] are the K best, and where each goes, in their order; and how many there are."""
    rows = row_counts(values >= bound)
    count = tl.sum(rows, 0)
    if count > K:  # the last of those that are equal to the bound are too many
        equal = values == bound
        ties = row_counts(equal)
        room = K - count + tl.sum(ties, 0)
        values = tl.where(equal & (ranks(equal, ties) >= room), NONE, values)
        rows = row_counts(values >= bound)
    keep = values >= bound
    return keep, ranks(keep, rows), tl.minimum(count, K)


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
    """Most candidates that one program of the merge takes, if they are twice what it leaves, and its warps."""

    width: int = 8192
    warps: int = 16


def cut_levels(width: int, k: int, cut: Cut) -> list[tuple[int, int]]:
    """(candidates of a program, programs a row) at each level of the merge of `width` candidates.

    Where one program cannot take all, two levels of about sqrt(k * width) each are the shortest way.
    """
    most, levels = max(cut.width, triton.next_power_of_2(2 * k)), []
    require(most <= 32768, f"{k} of a row: allowed are 1 to 16384")
    while not levels or levels[-1][1] > 1:
        taken = triton.next_power_of_2(max(16, width))
        if taken > most:
            taken = min(most, triton.next_power_of_2(max(2 * k, isqrt(k * width))))
        levels.append((taken, triton.cdiv(max(1, width), taken)))
        width = levels[-1][1] * k
    return levels


def cut_bytes(width: int, k: int, cut: Cut) -> int:
    """Scratch of the merge, a row."""
    return sum(parts * k * 8 for _, parts in cut_levels(width, k, cut)[:-1])


def merge(
    values: Tensor, indices: Tensor | None, chosen: Tensor, rowset: Rowset, *, cut: Cut, visible: Tensor | None = None,
    size: int = 1, newest: bool = False, more: bool = False,
) -> None:  # fmt: skip
    """Write chosen [T, k] (ascending, -1 padded) for the rows of a rowset.

    values [slots, width], the bits of float32, width a multiple of 4; indices: the same, or None for the place itself.
    visible [T]: only the first ceil(visible / size) places count. newest: the last that counts is chosen, whatever it
    is. more: what is chosen is for a kernel that starts early.
    """
    k = chosen.shape[1]
    (slots, width), early, raw = values.shape, starts_early(values.device), True
    for taken, parts in cut_levels(width, k, cut):
        final = parts == 1
        to = None if final else values.new_empty(2, slots, parts, k)
        launch(
            cut_kernel,
            (slots, parts),
            **dict(values=values, indices=indices, visible=visible, chosen=chosen if final else None),
            **dict(out_values=None if final else to[0], out_indices=None if final else to[1]),
            **dict(width=width, **rowset.numbers()),
            **dict(K=k, N=taken, L=min(128, taken), SIZE=size, ROOM=triton.next_power_of_2(k)),
            **dict(RAW=raw, NEWEST=newest, MORE=more or not final, PDL=early),
            early=early,
            num_warps=min(cut.warps, max(1, taken // 512)),
        )
        if not final:
            width, visible, raw, newest = parts * k, None, False, False
            values, indices = to.view(2, slots, width)


@triton.jit
def reached(at, limit, K: tl.constexpr):
    """at < limit; four at once where all rows begin at multiples of four, as K each do if it is one."""
    inside = at < limit
    if K % 4 == 0:
        inside = at // 4 * 4 < limit
    return inside


@triton.jit
def load_ordered(values, at, limit, K: tl.constexpr, RAW: tl.constexpr, NEWEST: tl.constexpr):
    """Ordered integers at places below a limit, or floats as such; NONE elsewhere. NEWEST: the last is the largest."""
    found = tl.load(values + at, reached(at, limit, K), other=0)
    if RAW:
        found = ordered(found.to(tl.float32, bitcast=True))
    found = tl.where(at < limit, found, NONE)
    return tl.where(at == limit - 1, FIRST, found) if NEWEST else found


@triton.jit(do_not_specialize=["group0"])  # slices begin anywhere
def cut_kernel(
    values, indices, visible, chosen, out_values, out_indices,
    width, row0, length, group0, per,
    G: tl.constexpr, K: tl.constexpr, N: tl.constexpr, L: tl.constexpr, ROOM: tl.constexpr, SIZE: tl.constexpr,
    RAW: tl.constexpr, NEWEST: tl.constexpr, MORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    slot, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row, exists = row_of(slot, group0, per, length, row0, G)
    limit = width
    if visible is not None:
        limit = tl.minimum(width, (tl.load(visible + row, exists, other=0).to(tl.int32) + SIZE - 1) // SIZE)
    if PDL:
        if MORE:
            tl.extra.cuda.gdc_launch_dependents()  # the next level, or what scores the chosen
        tl.extra.cuda.gdc_wait()  # for what is to be merged
    if exists:
        values += slot.to(tl.int64) * width
        at = part * N + (tl.arange(0, N // L) * L)[:, None] + tl.arange(0, L)[None, :]
        value = load_ordered(values, at, limit, K, RAW, NEWEST)
        keep, place, count = places(value, cut(value, K), K)
        index = at
        if indices is not None:
            index = tl.load(indices + slot.to(tl.int64) * width + at, reached(at, limit, K))
        to = (slot.to(tl.int64) * parts + part) * K
        keep, place, index, value = fourths(keep), fourths(place), fourths(index), fourths(value)
        for i in tl.static_range(4):
            if chosen is not None:
                tl.store(chosen + row.to(tl.int64) * K + place[i], index[i].to(tl.int64), keep[i])
            else:
                tl.store(out_values + to + place[i], value[i], keep[i])
                tl.store(out_indices + to + place[i], index[i], keep[i])
        rest = tl.arange(0, ROOM)
        empty = (rest >= count) & (rest < K)
        if chosen is not None:
            tl.store(chosen + row.to(tl.int64) * K + rest, tl.full([ROOM], -1, tl.int64), empty)
        else:
            tl.store(out_values + to + rest, tl.full([ROOM], NONE, tl.int32), empty)
