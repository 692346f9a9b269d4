"""A manifest is believed only after every field of it was compared with what is due."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from minidsv41.serve.manifest import (
    LARGEST,
    MAGIC,
    PREAMBLE,
    VERSION,
    HandoffError,
    Manifest,
    Section,
    check,
    check_sections,
    digest,
    manifest_size,
    parse,
)

GOOD = Manifest(
    model="ab" * 16,
    layout="1: packed rows, float32 pairs",
    length=17,
    token=3,
    windows="rows",
    draft=True,
    replayed=False,
    sections=(Section("window 0", 10, "00" * 16), Section("entry 1", 0, "11" * 16)),
)
HERE = dict(model=GOOD.model, layout=GOOD.layout, draft=True, context=512, vocab=64)


def sent(raw: object) -> tuple[bytes, bytes]:
    """What a sender of any content would put on the wire, with a preamble that fits."""
    text = raw if isinstance(raw, bytes) else json.dumps(raw).encode("utf-8")
    return PREAMBLE.pack(MAGIC, VERSION, len(text), digest(text)), text


def raw(**changes: object) -> dict:
    return json.loads(GOOD.to_bytes()[1]) | changes


def test_a_manifest_comes_back_as_it_was() -> None:
    preamble, text = GOOD.to_bytes()
    assert manifest_size(preamble) == len(text)
    assert parse(preamble, text) == GOOD
    assert GOOD.payload == 10
    check(GOOD, **HERE)
    check_sections(GOOD.sections, [("window 0", 10), ("entry 1", 0)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"length": "17"}, r"manifest.length = '17': expected int"),
        ({"length": True}, r"manifest.length = True: expected int"),
        ({"length": 17.0}, r"manifest.length = 17.0: expected int"),
        ({"draft": 1}, r"manifest.draft = 1: expected bool"),
        ({"token": None}, r"manifest.token = None: expected int"),
        ({"sections": {}}, r"manifest.sections = {}: expected list"),
        ({"sections": [3]}, r"sections\[0\] = 3: expected an object with the fields name, size, digest"),
        ({"sections": [{"name": "a", "size": "1", "digest": ""}]}, r"sections\[0\].size = '1': expected int"),
        ({"sections": [{"name": "a", "size": 1}]}, r"sections\[0\] = {'name': 'a', 'size': 1}: expected an object"),
        ({"extra": 1}, r"expected an object with the fields model, layout"),
    ],
)
def test_fields_of_another_type_are_refused(change: dict, said: str) -> None:
    with pytest.raises(HandoffError, match=said):
        parse(*sent(raw(**change)))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"9" * 5000, b"[" * 100_000, b"null"])
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(HandoffError, match="not JSON|expected an object"):
        parse(*sent(text))


def test_no_python_object_is_ever_unpickled() -> None:
    import pickle

    with pytest.raises(HandoffError, match="not JSON"):
        parse(*sent(pickle.dumps(GOOD)))


def test_a_preamble_is_checked_before_its_manifest_is_read() -> None:
    with pytest.raises(HandoffError, match="the stream begins with b'XINIDSV4'"):
        manifest_size(b"X" + GOOD.to_bytes()[0][1:])
    with pytest.raises(
        HandoffError, match=rf"a manifest of {2**32 - 1} bytes is announced: allowed are up to {LARGEST}"
    ):
        manifest_size(PREAMBLE.pack(MAGIC, VERSION, 2**32 - 1, b""))


def test_another_version_is_refused() -> None:
    _, text = GOOD.to_bytes()
    with pytest.raises(HandoffError, match="manifest version 1: this side reads version 2"):
        parse(PREAMBLE.pack(MAGIC, 1, len(text), digest(text)), text)


def believed(stream: bytearray) -> bool:
    """Whether a manifest is read from the stream; one that announces more bytes than come is waited for in vain."""
    preamble, text = bytes(stream[: PREAMBLE.size]), bytes(stream[PREAMBLE.size :])
    try:
        size = manifest_size(preamble)
        return size <= len(text) and parse(preamble, text[:size]) is not None
    except HandoffError:
        return False


def test_any_flipped_bit_of_a_manifest_is_noticed() -> None:
    stream = bytearray(b"".join(GOOD.to_bytes()))
    assert believed(stream)
    for bit in range(8 * len(stream)):
        stream[bit // 8] ^= 1 << bit % 8
        assert not believed(stream), f"bit {bit}"
        stream[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layout": "2: packed"}, "layout: the sender stores '2: packed', this side '1: packed rows, float32 pairs'"),
        ({"model": "cd" * 16}, "model: the sender runs 'cdcdcdcdc.*, this side 'abababab.*: other weights"),
        ({"draft": False}, "DSpark: the sender does not send its rings, this side drafts: both must, or neither"),
        ({"windows": "some"}, "windows = 'some': allowed are rows, replay"),
        ({"length": 0}, "length = 0: allowed are 1 to 512 tokens"),
        ({"length": 513}, "length = 513: allowed are 1 to 512 tokens"),
        ({"length": 10**30}, "allowed are 1 to 512 tokens"),
        ({"token": -1}, "token = -1: allowed are 0 to 63"),
        ({"token": 64}, "token = 64: allowed are 0 to 63"),
    ],
)
def test_what_this_side_cannot_go_on_with_is_refused(change: dict, said: str) -> None:
    with pytest.raises(HandoffError, match=said):
        check(replace(GOOD, **change), **HERE)


def test_rings_for_a_side_that_does_not_draft_are_refused() -> None:
    with pytest.raises(HandoffError, match="DSpark: the sender sends its rings, this side does not draft"):
        check(GOOD, **HERE | {"draft": False})


@pytest.mark.parametrize(
    ("due", "said"),
    [
        ([("entry 1", 0), ("window 0", 10)], r"sections\[0\] is 'window 0', due is 'entry 1'"),
        ([("window 0", 9), ("entry 1", 0)], "section 'window 0': 10 bytes are announced, due are 9"),
        ([("window 0", 10)], "2 sections are announced, due are 1"),
        ([("window 0", 10), ("entry 1", 0), ("index 1", 3)], "2 sections are announced, due are 3"),
    ],
)
def test_sections_are_those_that_are_due(due: list[tuple[str, int]], said: str) -> None:
    with pytest.raises(HandoffError, match=said):
        check_sections(GOOD.sections, due)
