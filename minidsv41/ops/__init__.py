"""The hot operations by name, plain versions. Queries come as `Batch`, keys as `Rows`."""

from minidsv41.ops.attention import sparse_attention
from minidsv41.ops.rows import Batch, Rows, Span
from minidsv41.ops.seam import Next, collapse, rms_norm, seam, update
from minidsv41.ops.select import Pool, PoolSize, index_scores, index_select

__all__ = [
    "Batch",
    "Next",
    "Pool",
    "PoolSize",
    "Rows",
    "Span",
    "collapse",
    "index_scores",
    "index_select",
    "rms_norm",
    "seam",
    "sparse_attention",
    "update",
]
