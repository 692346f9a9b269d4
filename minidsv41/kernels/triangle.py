"""The inverse of 1 + L for a strictly lower triangular L of 64 x 64, inside a kernel.

Blocks of 16 on the diagonal by substitution (exact to rounding whatever L is, where powers of L grow without bound
when keys repeat), then twice: two inverted blocks and what stands below the first make one of double size,
    [A 0; C B]^-1 = [A^-1 0; -B^-1 C A^-1 B^-1].
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def inverse(L, PRODUCTS: tl.constexpr):
    """(1 + L)^-1 of a float32 [64, 64]; PRODUCTS: how its small products are computed, see `tl.dot`."""
    X = substitution(diagonal(L, 4, 16), 4, 16)
    X = doubled(X, diagonal(L, 2, 32), 2, 16, PRODUCTS)
    L = L.reshape(2, 32, 2, 32).permute(1, 3, 0, 2)
    left, _ = L.split()
    _, C = left.split()
    A, D = X.permute(1, 2, 0).split()
    E = -tl.dot(tl.dot(D, C, input_precision=PRODUCTS), A, input_precision=PRODUCTS)
    return tl.join(tl.join(A, tl.zeros_like(A)), tl.join(E, D)).permute(3, 0, 2, 1).reshape(64, 64)


@triton.jit
def diagonal(L, N: tl.constexpr, B: tl.constexpr):
    """[N * B, N * B] -> the N blocks on the diagonal, [N, B, B]."""
    n = tl.arange(0, N)
    own = n[:, None, None, None] == n[None, None, :, None]
    return tl.sum(tl.where(own, L.reshape(N, B, N, B), 0.0), 2)


@triton.jit
def substitution(L, N: tl.constexpr, B: tl.constexpr):
    """(1 + L)^-1 of N strictly lower triangular blocks: row j is final once the rows above it are taken out."""
    i = tl.arange(0, B)
    row, column = i[None, :, None], i[None, None, :]
    X = tl.where(row == column, 1.0, tl.zeros_like(L))
    for j in tl.static_range(B - 1):
        below = tl.sum(tl.where(column == j, L, 0.0), 2)  # [N, B]: what row j has to be multiplied by
        final = tl.sum(tl.where(row == j, X, 0.0), 1)
        X -= below[:, :, None] * final[:, None, :]
    return X


@triton.jit
def doubled(X, L, N: tl.constexpr, B: tl.constexpr, PRODUCTS: tl.constexpr):
    """2N inverted blocks of B and N blocks of L of 2B -> N inverted blocks of 2B."""
    left, _ = L.reshape(N, 2, B, 2, B).permute(0, 2, 4, 1, 3).split()  # the columns of A and C
    _, C = left.split()
    A, D = X.reshape(N, 2, B, B).permute(0, 2, 3, 1).split()
    E = -tl.dot(tl.dot(D, C, input_precision=PRODUCTS), A, input_precision=PRODUCTS)
    upper, lower = tl.join(A, tl.zeros_like(A)), tl.join(E, D)
    return tl.join(upper, lower).permute(0, 4, 1, 3, 2).reshape(N, 2 * B, 2 * B)
