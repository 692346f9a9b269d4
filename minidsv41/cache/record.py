"""The bytes of one stored page: checksum, flag, links, tokens, data."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

VERSION = 1
TOKEN_BYTES = 4
HEADER = struct.Struct("<IIQQ")  # checksum of all that follows, replayed, link, parent; then tokens and data


@dataclass(frozen=True)
class Identity:
    """Whose pages these are. model, layout: fingerprints; page: tokens of a page; page_bytes: of its data."""

    model: str
    layout: str
    page: int
    page_bytes: int


@dataclass(frozen=True)
class Record:
    """link: a number that no other record of the store ever had; parent: the link of the page before.

    replayed: computed after a bounded replay, or upon such a page.
    """

    link: int
    parent: int
    replayed: bool
    tokens: bytes
    data: bytes

    def pack(self) -> bytes:
        body = HEADER.pack(0, self.replayed, self.link, self.parent)[4:] + self.tokens + self.data
        return struct.pack("<I", zlib.crc32(body)) + body

    @classmethod
    def unpack(cls, raw: bytes | memoryview, *, page: int, page_bytes: int) -> Record | None:
        """Undoes `pack` for pages of that size; None for anything that was not packed so."""
        start = HEADER.size + TOKEN_BYTES * page
        if len(raw) != start + page_bytes:
            return None
        checksum, replayed, link, parent = HEADER.unpack_from(raw)
        if zlib.crc32(memoryview(raw)[4:]) != checksum:
            return None
        return cls(link, parent, bool(replayed), bytes(raw[HEADER.size : start]), bytes(raw[start:]))


def token_bytes(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)
