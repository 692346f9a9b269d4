"""Attention over window rows and selected entries, in one softmax with a sink (`ops.sparse_attention`).

One program a query, all heads on the matrix unit's 64 rows; where queries are few, several programs share a query's
keys (see attention_split.py), as they do for those few of many queries that full rounds of the card leave over. Read
once: q, and 288 bytes an FP4 entry or 528 an FP8 window row. Written once: the output, after the inverse rotation. A
query of 64 x 512 with 128 + 512 keys moves 346 KB and costs 84 MFLOP: from 32 queries on, the matrix unit is the floor
(3.4 us at 32, 435 us at 4,096), before that the launch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.formats import MAIN, WINDOW
from minidsv41.kernels.attention_rows import check, generation, multiprocessors, specimen_rows
from minidsv41.kernels.attention_split import PROGRAMS, Tile, attend, tile_for
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
    keys = span.width + topk.shape[1]
    if tile is None:
        packed = None not in (window.format, entries.format)
        tile = tile_for(len(q), q.shape[1], keys, q.dtype, packed=packed, card=generation(q.device))
    given = q.contiguous(), window, entries, topk.contiguous(), sink, span, rotation, tile
    rest = len(q) % multiprocessors(q.device) if tile.even else 0
    if 0 < 2 * rest <= PROGRAMS and rest < len(q):
        out, lse = in_rounds(*given, keys, rest, with_lse=with_lse)
    else:
        out, lse = attend(*given, with_lse=with_lse)
    return (out, lse) if with_lse else out


def in_rounds(
    q: Tensor, window: Rows, entries: Rows, topk: Tensor, sink: Tensor, span: Span,
    rotation: tuple[Tensor, Tensor] | None, tile: Tile, keys: int, rest: int, *, with_lse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `attend`, the last queries split: alone in one more round, they would take as long as all of another."""
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    small = max(16, tile.keys // 2)
    few = tile._replace(keys=small, splits=max(1, min(PROGRAMS // rest, keys // small)), rows=1, ahead=True)
    for at, own in ((slice(-rest), tile), (slice(-rest, None), few)):
        part = Span(span.seq[at], span.first[at], span.last[at], span.width)
        turn = rotation and (rotation[0][at], rotation[1][at])
        attend(
            *(q[at], window, entries, topk[at], sink, part, turn, own), with_lse=with_lse, into=(out[at], lse[at])
        )  # fmt: skip
    return out, lse


def specimen(tokens: int):
    def made(*shape: int, dtype=torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    place, topk = made(tokens, dtype=torch.int64), made(tokens, 512, dtype=torch.int64)
    window, entries = specimen_rows(512, WINDOW), specimen_rows(512, MAIN)
    turn = made(tokens, 32, dtype=torch.float32), made(tokens, 32, dtype=torch.float32)
    sink, span = made(64, dtype=torch.float32), Span(place, place, place, 128)
    return sparse_attention(made(tokens, 64, 512), window, entries, topk, sink, span, rotation=turn)


SPECIMENS = {f"T={tokens}": lambda tokens=tokens: specimen(tokens) for tokens in (32, 4096)}
