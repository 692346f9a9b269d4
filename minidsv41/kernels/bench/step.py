"""One kind of step of the whole model: what it must read, and what its context adds to it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from minidsv41 import ops
from minidsv41.cache.state import CacheFormat
from minidsv41.config import ModelConfig
from minidsv41.replaced import replaced


@dataclass(frozen=True)
class Step:
    """One kind of step. rows: tokens of each sequence; cache: packed, or float in the compute dtype."""

    context: int
    batch: int
    rows: int = 1
    pool: bool = True
    cache: CacheFormat = "packed"

    @property
    def decodes(self) -> bool:
        """Whether it is what a user waits for: a token of each sequence, as the model is released."""
        return self.rows == 1 and self.pool and self.cache == "packed"

    def scanned(self, c: ModelConfig, row_bytes: int) -> int:
        """Bytes of index keys that the step must read; a sequence's queries share them."""
        keys = 0
        for layer in c.index_source_layer_ids:
            n = self.context // c.ratio(layer)
            if self.pool and c.mode(layer) == "reindex" and c.kv_owner(layer) == c.candidate_source_layer_id:
                n = min(n, c.candidate_topk_blocks * c.candidate_block_size)
            keys += n
        return self.batch * keys * row_bytes

    def restricted(self) -> AbstractContextManager:
        """The block in which the step runs."""
        return nullcontext() if self.pool else unrestricted()


def unrestricted() -> AbstractContextManager:
    """No pool is built, so that every selection looks at all that is visible."""
    return replaced(
        ops,
        "index_select",
        lambda select: lambda q, w, keys, visible, k, pool, **kw: select(q, w, keys, visible, k, None, **kw),
    )


def compare(steps: list[dict[str, Any]], speed: float) -> None:
    """To each step, what its context adds to the same step at the shortest one, and the time of those bytes alone."""
    kinds = ("batch", "rows", "pool", "cache")
    for row in steps:
        same = [r for r in steps if all(r[k] == row[k] for k in kinds) and "us" in r]
        if not same or "us" not in row:
            continue
        base = min(same, key=lambda r: r["context"])
        row["added_us"] = row["us"]["median"] - base["us"]["median"]
        row["added_floor_us"] = 1e6 * (row["scanned_bytes"] - base["scanned_bytes"]) / speed
        row["growth"] = row["us"]["median"] / base["us"]["median"]


def line(row: dict[str, Any]) -> str:
    """A step, to be read."""
    kind = f"{row['context']:9,} tokens x {row['batch']:2} x {row['rows']} rows {row['cache']:6}"
    kind += " with pool" if row["pool"] else "   no pool"
    if "failed" in row:
        return f"{kind}: {row['failed']}"
    graph = "in a graph" if row["captured"] else "not in a graph"
    added = f"{row['added_us']:+.1f} us (floor {row['added_floor_us']:.1f}), growth {row['growth']:.3f}"
    return f"{kind} {row['us']['median']:10.1f} us {graph}, {added}"
