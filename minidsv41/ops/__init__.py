"""The hot operations by name. Queries come as `Batch`, keys as `Rows`.

Each operation of the model has two versions, and `versions` chooses. The plain ones are in the files of this package.
"""

from minidsv41.ops import attention as _attention
from minidsv41.ops import engram as _engram
from minidsv41.ops import kv_write as _kv_write
from minidsv41.ops import seam as _seam
from minidsv41.ops import select as _select
from minidsv41.ops.kv_write import closed
from minidsv41.ops.rows import Batch, Rows, Span
from minidsv41.ops.seam import Next, collapse, rms_norm, update
from minidsv41.ops.select import Pool, PoolSize, index_scores
from minidsv41.ops.twins import Versions, twin, versions, wanted

seam = twin(_seam.seam, kernel="seam.seam", training="seam.seam")
index_select = twin(_select.index_select, kernel="index_select.index_select", training="index_select.index_select")
sparse_attention = twin(
    _attention.sparse_attention, kernel="sparse_attention.sparse_attention", training="attention.sparse_attention"
)
kv_write = twin(_kv_write.kv_write, kernel="kv_write.kv_write", training="kv_write.kv_write")
pool_write = twin(_kv_write.pool_write, kernel="kv_write.pool_write", training="kv_write.pool_write")
engram_read = twin(_engram.engram_read, kernel="engram.engram_read")
engram_gate = twin(_engram.engram_gate, kernel="gate.engram_gate")

__all__ = [
    "Batch",
    "Next",
    "Pool",
    "PoolSize",
    "Rows",
    "Span",
    "Versions",
    "closed",
    "collapse",
    "engram_gate",
    "engram_read",
    "index_scores",
    "index_select",
    "kv_write",
    "pool_write",
    "rms_norm",
    "seam",
    "sparse_attention",
    "update",
    "versions",
    "wanted",
]
