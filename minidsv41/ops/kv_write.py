"""Keys on their way into packed rows: norm, rotation, number format, and for m = 2 the pooling in front of them."""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.ops.rows import Batch, Rows
from minidsv41.ops.seam import rms_norm


def kv_write(
    x: Tensor,
    norm: Tensor,
    eps: float,
    rotation_cos: Tensor,
    rotation_sin: Tensor,
    into: Rows,
    seq: Tensor,
    index: Tensor,
) -> None:
    """Norm x [n, D], turn it, round it, and store it as rows `index` [n] of sequences `seq` [n]; -1: not stored.

    norm [D] weight; rotation_cos and rotation_sin [n, R / 2], the angles of each row. Raises ValueError unless
    `into` is packed.
    """
    packed(into)
    store(rotated(rms_norm(x, norm, eps), rotation_cos, rotation_sin), into, seq, index)


def pool_write(
    pairs: Tensor,
    before: Tensor,
    norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    into: Rows,
    batch: Batch,
    *,
    index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Two tokens become one entry: pooled, then as `kv_write` -> latents [T, D], the new open pair [S, 2, D].

    pairs [T, 2, D] (content, gate) of this call's tokens, before [S, 2, D] of the last token before it. A latent,
    normed but neither turned nor rounded, is in the row of the token that closes its pair; other rows are zero.
    cos and sin [T, R / 2] are those of positions // 2 * 2, where an entry stands. index [T]: the entry that each
    token closes, -1 where none is stored; `closed(batch)` if None. Latents have the dtype of `into`.
    """
    packed(into)
    index = closed(batch) if index is None else index
    wide = pairs.to(torch.promote_types(into.dtype, torch.float32))
    earlier = torch.where((batch.offset == 0)[:, None, None], before.to(wide.dtype)[batch.seq], wide.roll(1, 0))
    content, gate = torch.stack([earlier, wide], 1).unbind(2)  # [T, 2, D] each: 2 tokens
    pooled = (content * gate.softmax(1)).sum(1).to(into.dtype)  # [T, D]
    latents = torch.where((index >= 0)[:, None], rms_norm(pooled, norm, eps), 0)
    store(rotated(latents, cos, sin), into, batch.seq, index)
    filled = (batch.cu_seqlens.diff() > 0)[:, None, None]
    return latents, torch.where(filled, pairs[(batch.cu_seqlens[1:] - 1).clamp(min=0)].to(before.dtype), before)


def closed(batch: Batch) -> Tensor:
    """[T] the pair that each token completes, -1 where it begins one."""
    return torch.where(batch.positions % 2 == 1, batch.positions // 2, -1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (2j, 2j + 1) of the last R dims of x [n, D] by each row's angles [n, R / 2]."""
    still, tail = x.split([x.shape[-1] - 2 * cos.shape[-1], 2 * cos.shape[-1]], -1)
    a, b = tail.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([still, turned.to(x.dtype)], -1)


def store(values: Tensor, into: Rows, seq: Tensor, index: Tensor) -> None:
    """Values [n, D] as rows `index` [n] of sequences `seq` [n], except where the index is -1."""
    kept = index >= 0
    at = into.locate(seq[kept], index[kept])
    into.data[at], into.scales[at] = into.format.encode(values[kept])


def packed(into: Rows) -> None:
    """Raises ValueError unless the rows are codes with scales."""
    if into.format is None:
        raise ValueError(f"into: rows of {into.data.dtype}: allowed are packed rows, codes with scales in a format")
