"""Sinkhorn on the 4 x 4 matrix of each token, and back: every number of a token in one thread.

It scales rows and columns of a 4 x 4 matrix K in turn, so the result is K[i, j] u[i] v[j]: only u and v are
carried from step to step (32 instructions each), and only they are remembered for the gradient.
K is a tuple of rows (sources), a row is a tuple of entries, and an entry is a vector over tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels import launch as launching

INTERPRETED = tl.constexpr(launching.INTERPRETED)


@triton.jit
def mixed(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


@triton.jit
def times(a, b):
    return a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]


@triton.jit
def plus(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@triton.jit
def by(a, x):
    return a[0] * x, a[1] * x, a[2] * x, a[3] * x


@triton.jit
def inverse(x):
    """1 / x to the last bit but one, in one instruction: numbers here are far from the ends of float32."""
    if INTERPRETED:
        y = 1.0 / x
    else:
        y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return y


@triton.jit
def over(a):
    return inverse(a[0]), inverse(a[1]), inverse(a[2]), inverse(a[3])


@triton.jit
def ones(like):
    one = like * 0.0 + 1.0
    return one, one, one, one


@triton.jit
def rows(K, v):
    """Sums over destinations of K[i, j] v[j]."""
    return mixed(K[0], v), mixed(K[1], v), mixed(K[2], v), mixed(K[3], v)


@triton.jit
def columns(K, u):
    """Sums over sources of K[i, j] u[i]."""
    return plus(plus(plus(by(K[0], u[0]), by(K[1], u[1])), by(K[2], u[2])), by(K[3], u[3]))


@triton.jit
def outer(K, u, v):
    """K[i, j] + u[i] v[j]."""
    return plus(K[0], by(v, u[0])), plus(K[1], by(v, u[1])), plus(K[2], by(v, u[2])), plus(K[3], by(v, u[3]))


@triton.jit
def cofactors(a):
    """Four numbers and one that they take to become 1 / a: of a step's reciprocals, one is left, beside its sums."""
    p, q = a[0] * a[1], a[2] * a[3]
    return (a[1] * q, a[0] * q, p * a[3], p * a[2]), inverse(p * q)


@triton.jit
def carried(sums, r, a, eps):
    """sums * r + eps * a, of which r comes last."""
    a = by(a, eps)
    return tl.fma(sums[0], r, a[0]), tl.fma(sums[1], r, a[1]), tl.fma(sums[2], r, a[2]), tl.fma(sums[3], r, a[3])


@triton.jit
def sinkhorn(K, eps, ITERS: tl.constexpr):
    """x becomes x / (x * sums + eps): its inverse becomes sums + eps * inverse, and is what is carried."""
    a = ones(K[0][0])
    b = plus(columns(K, a), by(a, eps))
    for _ in range(ITERS - 1):
        v, r = cofactors(b)
        a = carried(rows(K, v), r, a, eps)
        u, r = cofactors(a)
        b = carried(columns(K, u), r, b, eps)
    return over(a), over(b)


@triton.jit
def before(grad, new, old, eps):
    """Gradients of x and of sums where new = x / (x * sums + eps), x = old."""
    ratio = times(new, over(old))
    return by(times(grad, times(ratio, ratio)), eps), by(times(grad, times(new, new)), -1.0)


@triton.jit
def remember(at, a, T, live):
    tl.store(at, a[0], live)
    tl.store(at + T, a[1], live)
    tl.store(at + 2 * T, a[2], live)
    tl.store(at + 3 * T, a[3], live)


@triton.jit
def recall(at, T, live):
    a, b = tl.load(at, live, other=1.0), tl.load(at + T, live, other=1.0)
    return a, b, tl.load(at + 2 * T, live, other=1.0), tl.load(at + 3 * T, live, other=1.0)


@triton.jit
def sinkhorn_backward(grad, K, steps, T, live, eps, ITERS: tl.constexpr):
    """Gradients of K from those of the result; steps: where each token begins in a room [ITERS, 8, T] for u and v."""
    one = ones(K[0][0])
    a, b = one, plus(columns(K, one), by(one, eps))
    u, v = one, over(b)
    for t in range(ITERS - 1):
        remember(steps + t * 8 * T, u, T, live)
        remember(steps + (t * 8 + 4) * T, v, T, live)
        a = plus(by(a, eps), rows(K, v))
        u = over(a)
        b = plus(by(b, eps), columns(K, u))
        v = over(b)
    g = times(grad[0], K[0]), times(grad[1], K[1]), times(grad[2], K[2]), times(grad[3], K[3])
    d_u, d_v = rows(g, v), columns(g, u)
    a, b = by(times(grad[0], v), u[0]), by(times(grad[1], v), u[1])
    d = a, b, by(times(grad[2], v), u[2]), by(times(grad[3], v), u[3])
    for back in range(ITERS - 1):
        t = ITERS - 2 - back
        old_u, old_v = recall(steps + t * 8 * T, T, live), recall(steps + (t * 8 + 4) * T, T, live)
        d_v, d_sum = before(d_v, v, old_v, eps)
        d = outer(d, u, d_sum)
        d_u = plus(d_u, rows(K, d_sum))
        d_u, d_sum = before(d_u, u, old_u, eps)
        d = outer(d, d_sum, old_v)
        d_v = plus(d_v, columns(K, d_sum))
        u, v = old_u, old_v
    _, d_sum = before(d_v, v, one, eps)
    return outer(d, one, d_sum)
