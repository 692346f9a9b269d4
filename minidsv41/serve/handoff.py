"""Hand-over: one process computes a prompt, another goes on from its cache.

The receiver answers twice, to the manifest and to the payload, so that a refusal reaches the sender in words.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.model import Model
from minidsv41.serve.link import Link, LinkError
from minidsv41.serve.manifest import (
    PREAMBLE,
    HandoffError,
    Manifest,
    Section,
    check,
    check_sections,
    digest,
    manifest_size,
    parse,
)
from minidsv41.serve.parts import Part, layout, parts, replay_tokens, reserve
from minidsv41.serve.prefill import prefill

ANSWER = struct.Struct(">H510s")  # bytes of the text, the text: empty is yes


@dataclass(frozen=True)
class Sent:
    """Bytes of one hand-over: the payload, which the ledger knows, and preamble with manifest."""

    payload: int
    envelope: int


@dataclass
class Received:
    """A sequence taken over: feed `token` next, but follow the replay order first if there is one.

    replay: ids [n] of its last tokens. Store the pages before following it: those that come after are replayed ones.
    """

    state: State
    token: int
    replay: Tensor | None

    def follow(self, model: Model, cache: Cache) -> None:
        """Compute windows, pairs and rings from the order: a bounded replay behind a hit of the whole prompt."""
        ids = self.replay.new_zeros(self.state.length)  # those before the order are never looked at
        ids[-len(self.replay) :] = self.replay
        prefill(model, cache, self.state, ids.to(model.device))
        self.replay = None


def send(
    link: Link,
    cache: Cache,
    state: State,
    *,
    model: str,
    token: int,
    draft: bool = True,
    replay: Tensor | None = None,
) -> Sent:
    """Hand a sequence over; it stays here as it is.

    model: the fingerprint of config and weights; token: the one to feed next; draft: send DSpark's rings;
    replay: the prompt's ids [>= replay_tokens], whose end is sent instead of windows.
    Raises HandoffError with the receiver's words if it refuses, LinkError if it is gone.
    """
    if replay is not None:
        replay = replay[-replay_tokens(cache, state.length) :]
    content = list(parts(cache, state, draft=draft, replay=replay))
    sections = tuple(Section(p.name, p.size, digest(p.give().numpy()).hex()) for p in content)
    manifest = Manifest(
        model=model,
        layout=layout(cache),
        length=state.length,
        token=token,
        windows="rows" if replay is None else "replay",
        draft=draft,
        replayed=state.replayed,
        sections=sections,
    )
    preamble, text = manifest.to_bytes()
    for data in (preamble, text):
        link.send(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    hear(link)
    for part in content:
        if part.size:
            link.send(part.give())
    hear(link)
    return Sent(manifest.payload, len(preamble) + len(text))


def receive(link: Link, cache: Cache, *, model: str, draft: bool = True) -> Received:
    """Take a sequence over into `cache`.

    Nothing is allocated before its size is checked, and nothing stays behind after a failure. Raises HandoffError,
    which the sender hears too, or LinkError: then neither hears the other, and the link must be connected again.
    """
    state, config = cache.new(), cache.config
    try:
        with answering(link):
            manifest = read_manifest(link)
            vocab, context = config.vocab_size, config.max_position_embeddings
            check(manifest, model=model, layout=layout(cache), draft=draft, context=context, vocab=vocab)
            state.length, state.replayed, replay = manifest.length, manifest.replayed, None
            if manifest.windows == "replay":
                replay = torch.zeros(replay_tokens(cache, state.length), dtype=torch.int64)
            content = list(parts(cache, state, draft=draft, replay=replay))
            check_sections(manifest.sections, [(p.name, p.size) for p in content])
            reserve(cache, state, windows=replay is None)
        with answering(link):
            read_payload(link, content, manifest)
            if replay is not None and not 0 <= int(replay.min()) <= int(replay.max()) < vocab:
                raise HandoffError(f"replay ids {replay.min()}..{replay.max()}: allowed are 0 to {vocab - 1}")
    except BaseException:
        cache.release(state)
        raise
    return Received(state, manifest.token, replay)


def read_manifest(link: Link) -> Manifest:
    preamble = bytes(link.receive(PREAMBLE.size).numpy())
    try:
        size = manifest_size(preamble)
    except HandoffError as error:
        raise LinkError(str(error)) from None  # where the next hand-over begins cannot be known
    return parse(preamble, bytes(link.receive(size).numpy()))


def read_payload(link: Link, content: list[Part], manifest: Manifest) -> None:
    """Read all sections, so that the next hand-over finds its beginning even if one of these is damaged."""
    damaged = []
    for part, section in zip(content, manifest.sections, strict=True):
        data = link.receive(part.size) if part.size else torch.empty(0, dtype=torch.uint8)
        if digest(data.numpy()).hex() != section.digest:
            damaged.append(part.name)
        else:
            part.take(data)
    if damaged:
        raise HandoffError(f"damaged on the way: {', '.join(damaged)} (the checksum does not fit)")


@contextmanager
def answering(link: Link) -> Iterator[None]:
    """Tell the sender how it went, and in what words it failed, unless the link itself did."""
    try:
        yield
    except LinkError:
        raise
    except HandoffError as error:
        answer(link, str(error))
        raise
    answer(link, "")


def answer(link: Link, text: str) -> None:
    said = text.encode("utf-8")[: ANSWER.size - 2]
    link.send(torch.frombuffer(bytearray(ANSWER.pack(len(said), said)), dtype=torch.uint8))


def hear(link: Link) -> None:
    """Raise HandoffError if the receiver's answer is a refusal."""
    size, said = ANSWER.unpack(bytes(link.receive(ANSWER.size).numpy()))
    if size:
        raise HandoffError(f"the receiver refuses: {said[:size].decode('utf-8', 'replace')}")
