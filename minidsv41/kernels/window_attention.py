"""Attention over window rows alone, with a sink (`ops.window_attention`; layers without entries, and replay).

Queries of a prompt are taken in runs that share their rows (window_runs.py); those that are few, or of many sequences,
one a program (attention_split.py). In runs, read once: q, and 528 bytes an FP8 row and 32 queries; written once: the
output, after the inverse rotation. 2 x 64 KB a query at 64 x 512 are the floor (126 us at 4,096 queries, 1,000 us at
32,768); the products of 160 rows cost 21 MFLOP a query (126 us at 4,096 and 680 TFLOP/s).
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.formats import MAIN, WINDOW
from minidsv41.kernels.attention_rows import check, generation, specimen_rows
from minidsv41.kernels.attention_split import Tile, attend, tile_for
from minidsv41.kernels.launch import capability, native_fp8, require
from minidsv41.kernels.window_runs import RunTile, by_run
from minidsv41.ops.rows import Rows, Span

TILES = {"runs": [RunTile(32, ahead=2), RunTile(32), RunTile(16, ahead=2), RunTile(8)]}  # worth timing on a new card


def run_tile_for(
    tokens: int, heads: int, width: int, sequences: int, dtype: torch.dtype, card: int = 9
) -> RunTile | None:  # fmt: skip
    """None where queries share too little, being few or of many sequences, and where memory is not as on Hopper."""
    if dtype == torch.float32 or heads < 64 or width != 512 or card != 9:
        return None
    queries = min(32, tokens // max(128, 2 * sequences))
    if queries < 4:
        return None
    return RunTile(1 << (queries.bit_length() - 1), ahead=2 if queries >= 16 else 4)


def window_attention(
    q: Tensor,
    window: Rows,
    sink: Tensor,
    span: Span,
    *,
    tile: RunTile | Tile | None = None,
    with_lse: bool = False,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`sparse_attention` without entries: q [T, H, D] over rows span.first..last of each query's sequence.

    rotation: cos and sin [T, R / 2], each query's own, undone on the last R dims of the output. with_lse: also
    [T, H] float32, the logarithm of the softmax's denominator, sink included. Not differentiable by itself.
    Raises Unsupported.
    """
    check(q, sink, span, rotation, window=window)
    tokens, heads, width = q.shape
    q, sequences, card = q.contiguous(), len(window.table), generation(q.device)
    if tile is None and window.format is not MAIN:
        tile = run_tile_for(tokens, heads, width, sequences, q.dtype, card)
    if isinstance(tile, RunTile):
        supported = card == 9 or card == 8 and not native_fp8(q.device)
        require(supported, f"queries in runs on {capability(q.device)}: allowed is one query a program")
        require(window.format is not MAIN, "window.format = main in runs: allowed are window rows and plain ones")
        out, lse = by_run(q, window, sink, span, rotation, tile, with_lse=with_lse)
    else:
        packed = window.format is not None
        tile = tile or tile_for(tokens, heads, span.width, q.dtype, packed=packed, card=card)
        out, lse = attend(q, window, None, None, sink, span, rotation, tile)
    return (out, lse) if with_lse else out


def specimen(tokens: int, sequences: int):
    def made(*shape: int, dtype=torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    place, turn = made(tokens, dtype=torch.int64), (made(tokens, 32), made(tokens, 32))
    q, window = made(tokens, 64, 512, dtype=torch.bfloat16), specimen_rows(512, WINDOW, sequences)
    return window_attention(q, window, made(64), Span(place, place, place, 128), rotation=turn)


SPECIMENS = {"T=4096": lambda: specimen(4096, 1), "T=128": lambda: specimen(128, 128)}
