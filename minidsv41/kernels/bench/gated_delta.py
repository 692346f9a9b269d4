"""The gated delta rule at the heads of Qwen3-Next and its relatives, one sequence a call.

The plain twin runs in float32 (its triangular solve knows no bfloat16) with keys repeated for every head; its solve
may synchronise, so it is timed without a graph, and only where its launches are few enough to wait for. Targets are
twice the times of flash_qla 0.1.3 on the same card.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from minidsv41.families import delta
from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.kernels.gated_delta import SIZE, chunked


def case(T: int, Hk: int, H: int, D: int, target_us: float | None = None) -> Case:
    """q, k, v and o in bfloat16 once, decay and rate in float32, the state in and out. flops: the chunked form's."""
    moved = T * (2 * Hk * D + 2 * H * D) * 2 + T * 2 * H * 4 + 2 * H * D * D * 4
    flops = 2 * T * H * (4 * SIZE * D + 3 * D * D)  # A, M, R x and M w; k S, q S and the update
    build = partial(contest, T, Hk, H, D)
    return Case("gated_delta", f"T={T:,} heads={Hk}/{H} D={D}", moved, flops, target_us, build)


def contest(T: int, Hk: int, H: int, D: int, device: torch.device, seed: int) -> Contest:
    given = inputs(T, Hk, H, D, device=device, seed=seed)
    runs = dict(kernel=partial(chunked, *given)) | libraries(given) | (loops(given) if T <= 4096 else {})
    chunks = -(-T // SIZE)
    workspace = chunks * H * SIZE * (2 * SIZE * 2 + 2 * 4)
    return Contest(runs, partial(error, given), 1.2e-2, workspace, frozenset({"plain", "compile"}))


def loops(given: list[Tensor]) -> dict[str, Callable[[], object]]:
    """The plain twin, and its chunks compiled."""
    *rows, state = repeated(given, torch.float32)
    compiled = torch.compile(delta.chunk, dynamic=False)

    def in_chunks() -> tuple[Tensor, Tensor]:
        out, S = [], state
        for part in zip(*(x.split(SIZE) for x in rows), strict=True):
            o, S = compiled(*part, S)
            out.append(o)
        return torch.cat(out), S

    return dict(plain=partial(delta.chunked, *rows, state), compile=in_chunks)


def inputs(T: int, Hk: int, H: int, D: int, *, device: torch.device, seed: int) -> list[Tensor]:
    """q, k, v, g, beta, S: directions of length 1, decays of 0.1 a token on average, rates between 0 and 1."""
    generator = torch.Generator(device).manual_seed(seed)
    normal = partial(torch.randn, generator=generator, device=device)
    q, k = (F.normalize(normal(T, Hk, D), dim=-1) for _ in range(2))
    wide = [x.bfloat16() for x in (q * D**-0.5, k, normal(T, H, D))]
    g, beta = -0.2 * torch.rand(T, H, generator=generator, device=device), normal(T, H).sigmoid()
    return [*wide, g, beta, normal(H, D, D)]


def repeated(given: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """As the plain twin takes them: as many heads of q and k as of v, everything in one type."""
    q, k, v, *rest = given
    share = v.shape[1] // q.shape[1]
    return [x.to(dtype) for x in (q.repeat_interleave(share, 1), k.repeat_interleave(share, 1), v, *rest)]


def error(given: list[Tensor]) -> float:
    """The larger relative error of output and state, against float64."""
    pairs = zip(chunked(*given), delta.chunked(*repeated(given, torch.float64)), strict=True)
    return max(float((found.double() - wanted).norm() / wanted.norm()) for found, wanted in pairs)


def libraries(given: list[Tensor]) -> dict[str, Callable[[], object]]:
    """flash_qla, or the Triton kernels of fla where flash_qla, to which fla hands the work, is not installed."""
    q, k, v, g, beta, S = (x[None] for x in given)
    options = dict(scale=1.0, initial_state=S, output_final_state=True)
    try:
        from flash_qla import chunk_gated_delta_rule as rule

        name = "flash_qla"
    except Exception:  # an import that compiles fails in its own ways
        try:
            from fla.ops.gated_delta_rule import chunk_gated_delta_rule as rule

            name = "fla"
        except Exception:
            return {}
    return {name: partial(rule, q, k, v, g, beta, **options)}


CASES = [
    case(4096, 16, 32, 128, 316),
    case(32768, 16, 32, 128, 1368),
    case(32768, 16, 16, 128),
    case(32768, 16, 64, 128),
]
