"""Two n-grams that no head can tell apart: equal mixes, found by a search that uses the low bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FREE, JOINED = 14, 16  # bits that agree by construction, bits that the first join makes agree


def differences(multiplier: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of ids [N, 2] that differ by a multiple of 2^FREE, and the XOR of their products [N].

    The products agree in their last FREE bits, because the multiplier is a whole number.
    """
    ids = np.arange(size, dtype=np.int64)
    pairs = np.concatenate([np.stack([ids[:-step], ids[step:]], 1) for step in range(1 << FREE, size, 1 << FREE)])
    return pairs, (pairs[:, 0] * multiplier) ^ (pairs[:, 1] * multiplier)


def joined(a: np.ndarray, b: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Places (i, j) for all pairs with a[i] and b[j] equal in their last `bits` bits."""
    mask = (1 << bits) - 1
    order = np.argsort(b & mask, kind="stable")
    keys = (b & mask)[order]
    first, last = (np.searchsorted(keys, a & mask, side) for side in ("left", "right"))
    count = last - first
    i = np.repeat(np.arange(len(a)), count)
    return i, order[np.repeat(first - count.cumsum() + count, count) + np.arange(count.sum())]


def twins(multipliers: Sequence[int], size: int) -> np.ndarray:
    """[N, 2, 4] pairs of 4-grams, newest id first, with one mix each; a pair differs in every place.

    multipliers: four, of one layer; ids are below `size`, which must exceed 2^FREE.
    """
    pairs, found = zip(*(differences(m, size) for m in multipliers), strict=True)
    halves = []
    for a, b in ((0, 1), (2, 3)):
        i, j = joined(found[a], found[b], FREE + JOINED)
        halves.append((i, j, found[a][i] ^ found[b][j]))
    (i, j, left), (k, m, right) = halves
    x, y = joined(left, right, 63)
    places = (i[x], j[x], k[y], m[y])
    return np.stack([pair[at] for pair, at in zip(pairs, places, strict=True)], 2)
