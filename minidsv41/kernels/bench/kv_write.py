"""New keys into the cache: main rows of 288 B, window rows of 528 B, index keys of 68 B, and pairs that are pooled.

Fewest bytes of a row: bf16 channels in, cos and sin of 64 dims in float32 in, the packed row out; the place it goes
to (16 B) is not counted. Pooling reads content and gate in float32 and also writes the latent.
Targets are 70 % of the 4.25 TB/s at which this card copies.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.formats import INDEX, MAIN, WINDOW, Format
from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.kernels.kv_write import kv_write, pool_write
from minidsv41.ops import Batch, Rows
from minidsv41.ops.kv_write import rotated

EPS = 1e-20
PAGE = 64
R = 64


def case(form: Format, T: int, target_us: float | None = None, *, D: int = 512, R: int = R) -> Case:
    moved = T * (2 * D + 4 * R + form.row_bytes(D))
    return Case("kv_write", f"{form.name} T={T:,}", moved, 0, target_us, partial(contest, form, T, D, R))


def contest(form: Format, T: int, D: int, R: int, device: torch.device, seed: int) -> Contest:
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(T, D, generator=generator, device=device, dtype=torch.bfloat16)
    norm, rotation = given(T, D, R, generator, device)
    into, seq, index = place(form, T, D, generator, device)
    run = partial(kv_write, x, norm, EPS, *rotation, into, seq, index)
    theirs = Rows(torch.empty_like(into.data), into.table, PAGE, torch.empty_like(into.scales), form, into.dtype)
    plain = partial(store, x, norm, *rotation, theirs, seq, index)

    def error() -> float:
        run()
        plain()
        return apart(into, theirs, into.locate(seq, index))

    runs = dict(kernel=run, plain=plain, compile=partial(torch.compile(store, dynamic=False), *plain.args))
    return Contest(runs, error, tolerance=5e-3)


def pool_case(T: int, target_us: float | None = None, *, D: int = 512, R: int = R) -> Case:
    """Half of the tokens close a pair; a latent's row is written for each token, since positions are not known."""
    moved = T * (2 * 4 * D + 2 * D) + T // 2 * (4 * R + MAIN.row_bytes(D))
    return Case("pool_write", f"T={T:,}", moved, 0, target_us, partial(pool_contest, T, D, R))


def pool_contest(T: int, D: int, R: int, device: torch.device, seed: int) -> Contest:
    generator = torch.Generator(device).manual_seed(seed)
    pairs = torch.randn(T, 2, D, generator=generator, device=device)
    batch = Batch(torch.zeros(T, dtype=torch.int64, device=device), (1,), (T,))
    norm, rotation = given(T, D, R, generator, device)
    into, seq, index = place(MAIN, (T + 1) // 2, D, generator, device)
    theirs = Rows(torch.empty_like(into.data), into.table, PAGE, torch.empty_like(into.scales), MAIN, into.dtype)
    arguments = pairs, pairs[:1].clone(), norm, EPS, *rotation
    run = partial(pool_write, *arguments, into, batch, index=ops.closed(batch))
    plain = partial(ops.pool_write.plain, *arguments, theirs, batch)

    def error() -> float:
        run()
        plain()
        return apart(into, theirs, into.locate(seq, index))

    return Contest(dict(kernel=run, plain=plain), error, tolerance=5e-3, eager=frozenset({"plain"}))


def given(T: int, D: int, R: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Weight of the norm in bfloat16, as in the model; cos and sin of random angles."""
    angles = 6.28 * torch.rand(T, R // 2, generator=generator, device=device)
    norm = 1 + 0.1 * torch.randn(D, generator=generator, device=device)
    return norm.to(torch.bfloat16), [angles.cos(), angles.sin()]


def place(
    form: Format, T: int, D: int, generator: torch.Generator, device: torch.device
) -> tuple[Rows, Tensor, Tensor]:
    """Room for T rows of one sequence, its pages in no order, and a place for each row."""
    pages = -(-T // PAGE)
    table = torch.randperm(pages, generator=generator, device=device)[None]
    codes, groups = form.row_bytes(D) - D // form.group, D // form.group
    data, scales = (torch.empty(pages * PAGE, n, dtype=torch.uint8, device=device) for n in (codes, groups))
    index = torch.arange(T, device=device)
    return Rows(data, table, PAGE, scales, form, torch.bfloat16), torch.zeros_like(index), index


def store(x: Tensor, norm: Tensor, cos: Tensor, sin: Tensor, into: Rows, seq: Tensor, index: Tensor) -> None:
    """The plain version for rows that are all stored: nothing in it waits for the device."""
    at = into.locate(seq, index)
    codes, scales = into.format.encode(rotated(ops.rms_norm(x, norm, EPS), cos, sin))
    into.data.index_copy_(0, at, codes)
    into.scales.index_copy_(0, at, scales)


def apart(a: Rows, b: Rows, at: Tensor) -> float:
    """Share of the bytes of rows `at` that differ."""
    differ = [(x[at] != y[at]).double().mean().item() for x, y in ((a.data, b.data), (a.scales, b.scales))]
    return max(differ)


CASES = [
    case(MAIN, 32),
    case(MAIN, 4096),
    case(MAIN, 32768, 17.3),
    case(WINDOW, 32),
    case(WINDOW, 4096),
    case(WINDOW, 32768, 19.9),
    case(INDEX, 32768, D=128),
    pool_case(32),
    pool_case(4096),
    pool_case(32768),
]
