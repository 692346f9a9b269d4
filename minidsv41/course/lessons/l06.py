"""Lesson 06: a byte that holds two values, a group of sixteen, and a better scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from minidsv41 import paths
from minidsv41.checkpoint import load
from minidsv41.course.exercise import Exercise, Mistake, same
from minidsv41.course.lessons import said06 as said
from minidsv41.formats import E2M1, E4M3, MAIN
from minidsv41.tokens import load_tokenizer

VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]  # E2M1
SCALES = [c / 512 if c < 8 else (1 + c % 8 / 8) * 2.0 ** (c // 8 - 7) for c in range(127)]  # E4M3


def nearest(x: float, grid: list[float]) -> int:
    return min(range(len(grid)), key=lambda i: (abs(grid[i] - x), i % 2))


def unpacked(byte: int, scale: float) -> tuple[float, float]:
    """What the package reads from one byte."""
    return tuple((E2M1.decode(E2M1.unpack(torch.tensor([byte], dtype=torch.uint8)), torch.float64) * scale).tolist())


def two_values(byte: int, scale: float) -> tuple[float, float]:
    def value(code: int) -> float:
        return (-1 if code >= 8 else 1) * [0, 0.5, 1, 1.5, 2, 3, 4, 6][code % 8]

    return value(byte % 16) * scale, value(byte // 16) * scale


def other_values(decode: Callable[[int], float], *, swapped: bool = False) -> Callable[[int, float], tuple]:
    """A wrong reading of a byte."""

    def answer(byte: int, scale: float) -> tuple[float, float]:
        low, high = decode(byte % 16) * scale, decode(byte // 16) * scale
        return (high, low) if swapped else (low, high)

    return answer


def signed(code: int, grid: list[float] = VALUES) -> float:
    return -grid[code - 8] if code >= 8 else grid[code]


BYTE = Exercise(
    name="06.byte",
    inputs=lambda: [dict(byte=b, scale=s) for b, s in [(0x21, 1), (0x7F, 0.5), (0x0D, 2), (0xB4, 0.375), (0xE9, 448)]],
    reference=unpacked,
    solution=two_values,
    why=said.BYTE_WHY,
    hints=said.BYTE_HINTS,
    mistakes=(
        Mistake(name="high nibble first", answer=other_values(signed, swapped=True), thought=said.NIBBLE),
        Mistake(
            name="two's complement",
            answer=other_values(lambda code: VALUES[code] if code < 8 else -VALUES[min(16 - code, 7)]),
            thought=said.COMPLEMENT,
        ),
        Mistake(name="an integer", answer=other_values(lambda c: signed(c, list(range(8)))), thought=said.INTEGER),
        Mistake(
            name="no subnormal",
            answer=other_values(lambda c: signed(c, [0.5, 0.75, 1, 1.5, 2, 3, 4, 6])),
            thought=said.SUBNORMAL,
        ),
        Mistake(
            name="no scale",
            answer=lambda byte, scale: other_values(signed)(byte, 1),
            thought=said.NO_SCALE,
        ),
    ),
)


def stored(group: list[float]) -> tuple[float, list[int]]:
    """Scale and codes of sixteen values as the package stores them."""
    codes, scale = MAIN.encode(torch.tensor(group, dtype=torch.float64))
    return E4M3.decode(scale, torch.float64).item(), E2M1.unpack(codes).tolist()


def encode(group: list[float]) -> tuple[float, list[int]]:
    largest = max(abs(x) for x in group)
    scale = SCALES[nearest(max(largest / 6, 2**-9), SCALES)]
    return scale, [nearest(abs(x) / scale, VALUES) + 8 * (x < 0) for x in group]


def same_values(answer: tuple[float, list[int]], right: tuple[float, list[int]]) -> bool:
    """Equal scale and codes; a zero may have either sign."""
    (a, codes), (b, others) = answer, right
    plus = [[0 if code == 8 else int(code) for code in found] for found in (codes, others)]
    return same(float(a), b) and plus[0] == plus[1]


def variant(
    scale: Callable[[float], float], code: Callable[[float], int] = lambda x: nearest(x, VALUES)
) -> Callable[[list[float]], tuple[float, list[int]]]:
    """`encode` with another scale for the largest magnitude, or another code for a quotient."""

    def answer(group: list[float]) -> tuple[float, list[int]]:
        s = scale(max(abs(x) for x in group))
        return s, [code(abs(x) / s) + 8 * (x < 0) for x in group]

    return answer


def right_scale(largest: float) -> float:
    return SCALES[nearest(max(largest / 6, 2**-9), SCALES)]


def away(x: float) -> int:
    return min(range(8), key=lambda i: (abs(VALUES[i] - x), -i))


def groups() -> list[dict[str, list[float]]]:
    """Edges first: nothing, almost nothing, a coarse scale, ties, an outlier, out of range; then random ones."""
    ties = [6, 0.25, -0.75, 1.25, 1.75, -2.5, 3.5, 5, -0.25, 0.75, -5, 2.5, 0.5, 0, -6, 4]
    g = torch.Generator().manual_seed(6)
    normal = torch.randn(3, 16, generator=g, dtype=torch.float64)
    normal[1, 5] = 40.0
    normal[2] *= 1e-2
    edges = [[0.0] * 16, [0.0009, -0.0004] * 8, [0.017, 0.004, -0.009, 0.002] * 4, ties, [7000.0, -900, 300, 1] * 4]
    return [dict(group=group) for group in [*edges, *normal.tolist()]]


ENCODE = Exercise(
    name="06.encode",
    inputs=groups,
    reference=stored,
    solution=encode,
    accept=same_values,
    why=said.ENCODE_WHY,
    hints=said.ENCODE_HINTS,
    mistakes=(
        Mistake(
            name="power-of-two scale",
            answer=variant(lambda m: 2.0 ** math.ceil(math.log2(max(m / 6, 2**-9)))),
            thought=said.POWER,
        ),
        Mistake(
            name="power-of-two scale, rounded down",
            answer=variant(lambda m: 2.0 ** math.floor(math.log2(max(m / 6, 2**-9)))),
            thought=said.POWER,
        ),
        Mistake(name="missing floor", answer=variant(lambda m: SCALES[nearest(m / 6, SCALES)]), thought=said.FLOOR),
        Mistake(
            name="floor only for zeros",
            answer=variant(lambda m: SCALES[nearest(m / 6, SCALES)] if m else 1.0),
            thought=said.FLOOR,
        ),
        Mistake(name="exact scale", answer=variant(lambda m: max(m / 6, 2**-9)), thought=said.EXACT),
        Mistake(name="ties away from zero", answer=variant(right_scale, away), thought=said.AWAY),
        Mistake(
            name="rounded down",
            answer=variant(right_scale, lambda x: max(i for i in range(8) if VALUES[i] <= max(x, 0))),
            thought=said.DOWN,
        ),
        Mistake(
            name="seven steps",
            answer=variant(lambda m: SCALES[nearest(max(m / 7, 2**-9), SCALES)], lambda x: min(7, round(x))),
            thought=said.STEPS,
        ),
        Mistake(
            name="a scale that never saturates",
            answer=variant(lambda m: next((s for s in SCALES if s >= max(m / 6, 2**-9)), 448.0)),
            thought=said.UP,
        ),
    ),
)


@cache
def latents() -> Tensor:
    """Groups [n, 16] of float64: the toy's entries before RoPE and rounding, on a play that it was not trained on."""
    text = (paths.text_dir() / "plays" / "midsummer_nights_dream.txt").read_text(encoding="utf-8")
    ids = torch.tensor(load_tokenizer().encode(text[20_000:22_000]).ids[:256])
    model = load(paths.checkpoint_dir("toy"), dtype=torch.float64)
    trace = model.trace(ids)
    rows = torch.cat([trace[f"L{owner}.cmp.latent"] for owner in model.config.kv_source_layer_ids])
    return rows.unflatten(-1, (-1, 16)).flatten(0, 1)


def error(scale: Callable[[Tensor], Tensor]) -> float:
    """Error of real groups in percent of their norm, with this rule for the scale (rounded to E4M3)."""
    x = latents()
    s = E4M3.round((1.0 * scale(x.clone())).to(x.dtype).reshape(-1, 1).expand(len(x), 1).clamp_min(2.0**-9))
    return 100 * float((E2M1.round(x / s) * s - x).norm() / x.norm())


def largest_over(k: float) -> Callable[[Tensor], Tensor]:
    return lambda groups: groups.abs().amax(-1) / k


def better_scale(groups: Tensor) -> Tensor:
    def lost(s: Tensor) -> Tensor:
        s = E4M3.round(s[:, None].clamp_min(2**-9))
        return (E2M1.round(groups / s) * s - groups).square().sum(-1)

    largest = groups.abs().amax(-1)
    four, six = largest / 4, largest / 6
    return torch.where(lost(four) < lost(six), four, six)


SCALE = Exercise(
    name="06.scale",
    inputs=lambda: [{}],
    reference=lambda: error(largest_over(6)),
    use=error,
    accept=lambda value, best: value < 0.97 * best,
    versus=said.SCALE_VERSUS,
    solution=better_scale,
    why=said.SCALE_WHY,
    hints=said.SCALE_HINTS,
    mistakes=(
        Mistake(name="the package's own", answer=largest_over(6), thought=said.SAME),
        Mistake(name="four for all", answer=largest_over(4), thought=said.FOUR),
        Mistake(
            name="power of two",
            answer=lambda groups: 2 ** (groups.abs().amax(-1) / 6).log2().ceil(),
            thought=said.POWER,
        ),
        Mistake(
            name="root mean square", answer=lambda groups: groups.square().mean(-1).sqrt() / 2, thought=said.AVERAGE
        ),
    ),
)

EXERCISES = (BYTE, ENCODE, SCALE)
