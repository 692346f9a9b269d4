"""Window attention on stored rows: a chunk of one prompt, a decode step. Floor: q in, output out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from minidsv41 import ops
from minidsv41.formats import WINDOW
from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.kernels.bench.sparse_attention import at_once, attend, error, inputs
from minidsv41.kernels.window_attention import Tile, window_attention

FLEX = 4096  # most queries of FlexAttention, which is slow at this width


def contest(T: int, S: int, H: int, D: int, W: int, device: torch.device, seed: int) -> Contest:
    x = inputs(T, S, 0, H, D, W, 0, device, seed)
    given = (x.q, x.window, x.sink, x.span)
    kernel = partial(window_attention, *given)
    runs: dict[str, Callable] = {"kernel": kernel, "plain": partial(ops.sparse_attention.plain, *x.given)}
    if T > S:
        runs["kernel, one query a program"] = partial(window_attention, *given, tile=Tile(min(64, max(16, H)), 64))
    if T <= FLEX:
        runs["compile"] = partial(at_once, torch.compile(attend, dynamic=False), x)
        if S == 1 and device.type == "cuda":
            runs["flex"] = flex(x.q, x.window.gather(x.span.seq, x.span.last), x.sink, W)
    return Contest(runs, partial(error, kernel, x), 1e-2, 4 * T * W)


def flex(q: Tensor, keys: Tensor, sink: Tensor, window: int) -> Callable[[], Tensor]:
    """FlexAttention on rows that are already values [T, D]; the sink scales its output."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def visible(b, h, at, key):
        return (key <= at) & (at - key < window)

    length = len(q)
    mask = create_block_mask(visible, None, None, length, length, device=q.device)
    compiled, q, keys = torch.compile(flex_attention), q.transpose(0, 1)[None], keys[None, None]

    def run() -> Tensor:
        out, lse = compiled(q, keys, keys, block_mask=mask, enable_gqa=True, return_lse=True)
        return out * (lse - sink[None, :, None]).sigmoid()[..., None].to(out.dtype)

    return run


def case(kind: str, T: int, S: int, H: int, D: int, W: int, target_us: float | None = None) -> Case:
    moved = S * (T // S + W) * WINDOW.row_bytes(D) + T * (2 * H * D * 2 + 24)
    shape = f"{kind} heads={H}x{D} window={W}"
    return Case(
        "window_attention", shape, moved, 4 * T * H * D * W, target_us, partial(contest, T, S, H, D, W)
    )  # fmt: skip


CASES = [
    case("T=4,096", 4096, 1, 64, 512, 128, 250.0),
    case("T=32,768", 32768, 1, 64, 512, 128, 2000.0),
    case("T=1,024", 1024, 1, 64, 512, 128),
    case("B=32", 32, 32, 64, 512, 128),
]
