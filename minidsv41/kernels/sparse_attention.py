"""Attention over window rows and selected entries, in one softmax with a sink (`ops.sparse_attention`).

One program a query, all heads on the matrix unit's 64 rows; where queries are few, several programs share a query's
keys (see attention_split.py). Read once: q, and 288 bytes an FP4 entry or 528 an FP8 window row. Written once: the
output, after the inverse rotation. A query of 64 x 512 with 128 + 512 keys moves 346 KB and costs 84 MFLOP: from 32
queries on, the matrix unit is the floor (3.4 us at 32, 435 us at 4,096), before that the launch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.formats import MAIN, WINDOW
from minidsv41.kernels.attention_rows import check, generation, specimen_rows
from minidsv41.kernels.attention_split import Tile, attend, tile_for
from minidsv41.kernels.launch import require
from minidsv41.kernels.window_attention import window_attention
from minidsv41.ops.rows import Rows, Span


def sparse_attention(
    q: Tensor,
    window: Rows,
    entries: Rows | None,
    topk: Tensor | None,
    sink: Tensor,
    span: Span,
    *,
    tile: Tile | None = None,
    with_lse: bool = False,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `ops.sparse_attention` -> [T, H, D]; entries or topk None: window only.

    rotation: cos and sin [T, R / 2], each query's own, undone on the last R dims of the output. with_lse: also
    [T, H] float32, the logarithm of the softmax's denominator, sink included. Not differentiable by itself.
    Raises Unsupported.
    """
    if entries is None or topk is None:
        return window_attention(q, window, sink, span, with_lse=with_lse, rotation=rotation)
    check(q, sink, span, rotation, window=window, entries=entries)
    require(topk.dim() == 2 and len(topk) == len(q), f"topk.shape = {tuple(topk.shape)}: allowed is [{len(q)}, k]")
    if tile is None:
        packed = None not in (window.format, entries.format)
        keys = span.width + topk.shape[1]
        tile = tile_for(len(q), q.shape[1], keys, q.dtype, packed=packed, card=generation(q.device))
    given = q.contiguous(), window, entries, topk.contiguous(), sink, span, rotation, tile
    out, lse = attend(*given, with_lse=with_lse)
    return (out, lse) if with_lse else out


def specimen(tokens: int):
    def made(*shape: int, dtype=torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    place, topk = made(tokens, dtype=torch.int64), made(tokens, 512, dtype=torch.int64)
    window, entries = specimen_rows(512, WINDOW), specimen_rows(512, MAIN)
    turn = made(tokens, 32, dtype=torch.float32), made(tokens, 32, dtype=torch.float32)
    sink, span = made(64, dtype=torch.float32), Span(place, place, place, 128)
    return sparse_attention(made(tokens, 64, 512), window, entries, topk, sink, span, rotation=turn)


SPECIMENS = {f"T={tokens}": lambda tokens=tokens: specimen(tokens) for tokens in (32, 4096)}
