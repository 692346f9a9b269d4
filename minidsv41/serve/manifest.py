"""What a handed-over sequence announces before its bytes: the manifest, and everything that can be wrong with it.

The stream: a preamble (magic, version, size and digest of the manifest), the manifest as JSON, then the sections in
the manifest's order, each of the announced size and digest. Digests find damage; they are no signature.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

MAGIC = b"MINIDSV4"
VERSION = 2
PREAMBLE = struct.Struct(">8sII16s")  # magic, version, bytes of the manifest, their digest
LARGEST = 1 << 20  # bytes of a manifest

FIELDS = {"model": str, "layout": str, "length": int, "token": int, "windows": str, "draft": bool, "replayed": bool}
FIELDS |= {"sections": list}
SECTION = {"name": str, "size": int, "digest": str}
WINDOWS = ("rows", "replay")


class HandoffError(RuntimeError):
    """A hand-over failed, and with it one request; the message says what was found and what was due."""


def digest(data: Any) -> bytes:
    """16 bytes that change with any bit of `data` (anything that offers its bytes)."""
    return blake2b(data, digest_size=16).digest()


@dataclass(frozen=True)
class Section:
    """A run of bytes in the stream; digest in hexadecimal."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """One sequence on its way.

    model: fingerprint of config and weights; layout: how rows are stored; length: tokens that the sequence holds;
    token: the one to feed next; windows: "rows" are sent, or a "replay" order instead; draft: DSpark's rings too;
    replayed: as in `State`, for whoever stores the entries.
    """

    model: str
    layout: str
    length: int
    token: int
    windows: str
    draft: bool
    replayed: bool
    sections: tuple[Section, ...]

    def to_bytes(self) -> tuple[bytes, bytes]:
        """Preamble and JSON."""
        text = json.dumps(asdict(self)).encode("utf-8")
        return PREAMBLE.pack(MAGIC, VERSION, len(text), digest(text)), text

    @property
    def payload(self) -> int:
        """Bytes of all sections."""
        return sum(s.size for s in self.sections)


def manifest_size(preamble: bytes) -> int:
    """Bytes of the manifest that follows. Raises HandoffError for what is no preamble, or announces too much."""
    magic, _, size, _ = PREAMBLE.unpack(preamble)
    if magic != MAGIC:
        raise HandoffError(f"the stream begins with {magic!r}, expected {MAGIC!r}: no hand-over, or bytes were lost")
    if size > LARGEST:
        raise HandoffError(f"a manifest of {size} bytes is announced: allowed are up to {LARGEST}")
    return size


def parse(preamble: bytes, text: bytes) -> Manifest:
    """Raises HandoffError for a damaged manifest, one of another version, or with other fields than `Manifest`."""
    _, version, _, expected = PREAMBLE.unpack(preamble)
    if digest(text) != expected:
        raise HandoffError("the manifest was damaged on the way: its checksum does not fit")
    if version != VERSION:
        raise HandoffError(f"manifest version {version}: this side reads version {VERSION}")
    try:
        raw = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HandoffError(f"the manifest is not JSON: {error}") from None
    typed("manifest", raw, FIELDS)
    for i, section in enumerate(raw["sections"]):
        typed(f"sections[{i}]", section, SECTION)
    return Manifest(**raw | {"sections": tuple(Section(**s) for s in raw["sections"])})


def typed(place: str, found: object, wanted: dict[str, type]) -> None:
    """Raise HandoffError unless `found` is an object with exactly these fields of these types."""
    if type(found) is not dict or found.keys() != wanted.keys():
        raise HandoffError(f"{place} = {found!r:.80}: expected an object with the fields {', '.join(wanted)}")
    for name, kind in wanted.items():
        if type(found[name]) is not kind:
            raise HandoffError(f"{place}.{name} = {found[name]!r:.80}: expected {kind.__name__}")


def check(manifest: Manifest, *, model: str, layout: str, draft: bool, context: int, vocab: int) -> None:
    """Raise HandoffError unless this side can go on with the sequence.

    context: most tokens of a sequence; vocab: number of token ids. Sizes of sections are left to `check_sections`.
    """
    if manifest.layout != layout:
        raise HandoffError(f"layout: the sender stores {manifest.layout!r}, this side {layout!r}")
    if manifest.model != model:
        raise HandoffError(f"model: the sender runs {manifest.model!r:.20}, this side {model!r:.20}: other weights")
    if manifest.draft != draft:
        sender, here = ("sends", "does not draft") if manifest.draft else ("does not send", "drafts")
        raise HandoffError(f"DSpark: the sender {sender} its rings, this side {here}: both must, or neither")
    if manifest.windows not in WINDOWS:
        raise HandoffError(f"windows = {manifest.windows!r:.80}: allowed are {', '.join(WINDOWS)}")
    if not 0 < manifest.length <= context:
        raise HandoffError(f"length = {manifest.length}: allowed are 1 to {context} tokens (max_position_embeddings)")
    if not 0 <= manifest.token < vocab:
        raise HandoffError(f"token = {manifest.token}: allowed are 0 to {vocab - 1} (vocab_size)")


def check_sections(sections: tuple[Section, ...], due: list[tuple[str, int]]) -> None:
    """Raise HandoffError unless the sections have the names and sizes that are due, in that order."""
    for i, (section, (name, size)) in enumerate(zip(sections, due, strict=False)):
        if section.name != name:
            raise HandoffError(f"sections[{i}] is {section.name!r:.80}, due is {name!r}")
        if section.size != size:
            raise HandoffError(f"section {name!r}: {section.size} bytes are announced, due are {size}")
    if len(sections) != len(due):
        raise HandoffError(f"{len(sections)} sections are announced, due are {len(due)}")
