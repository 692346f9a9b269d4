"""From 389,120 bytes a token to 890, one change at a time: every step is a real config or a real row."""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.config import ModelConfig
from minidsv41.course.sharing import scheduled
from minidsv41.ledger import bytes as books
from minidsv41.ledger.line import Line, fields
from minidsv41.ledger.models import V1_67B
from minidsv41.ledger.parts import HeadRows


@dataclass(frozen=True)
class Step:
    """What changes, the lesson that explains it ("" if none does), the kind of colour, B/token afterwards."""

    change: str
    lesson: str
    kind: str
    line: Line

    @property
    def size(self) -> float:
        return float(self.line.value)


def kept(ratios: str, owners: str, layout: books.Layout = books.BF16) -> Line:
    """Entries and index keys of a schedule written in short."""
    return books.kv_bytes_per_token(scheduled(ratios, owners), layout)


def steps(c: ModelConfig) -> list[Step]:
    """In this order; another one would split the same 437 differently. `c` is the release."""
    layers, owners = c.num_hidden_layers, " ".join(map(str, c.kv_source_layer_ids))
    first, half = c.kv_source_layer_ids[0], c.decoder_start
    old = V1_67B
    heads = HeadRows(layers=layers, kv_heads=old.kv_heads, head_dim=old.head_dim)
    (count,) = fields(c, "num_hidden_layers")
    single, alone = f"0x{first} 1x{layers - first}", f"{first}-{layers - 1}"
    released = f"0x{first} 2x{half - first} 1x{layers - half}"
    return [
        Step("DeepSeek-67B, BF16", "", "other", old.books()["kv_bytes_per_token"]),
        Step(f"{layers} layers instead of {old.layers}", "", "other", heads.per_token),
        Step("one row is key and value of all heads", "01", "main", count * books.window_row_bytes(c, books.BF16)),
        Step("an index key beside each row", "05", "index", kept(f"1x{layers}", f"0-{layers - 1}")),
        Step(f"windows only in {first} layers", "00", "window", kept(single, alone)),
        Step("one owner for the whole decoder", "02", "decoder", kept(single, f"{first}-{half}")),
        Step("three owners for the encoder", "04", "encoder", kept(single, owners)),
        Step("pairs in the encoder", "04", "encoder", kept(released, owners)),
        Step("eight bits", "06", "main", kept(released, owners, books.FP8)),
        Step("four bits", "06", "main", kept(released, owners, books.PACKED)),
    ]


def factors(found: list[Step]) -> list[float]:
    """By how much each step divides what was there before it; below 1 it costs."""
    return [before.size / after.size for before, after in zip(found, found[1:], strict=False)]
