"""Prefill here, decode there: the same sequence goes on, and whatever goes wrong stays one request's misfortune."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minidsv41.cache import Cache, State
from minidsv41.cache.pages import fingerprint, identity, persist
from minidsv41.cache.pool import PAGE
from minidsv41.cache.store import Store
from minidsv41.config import ModelConfig
from minidsv41.ledger.handoff import handoff_bytes, handoff_lines
from minidsv41.ops import Batch
from minidsv41.serve import handoff, prefill
from minidsv41.serve.handoff import Received, receive, send
from minidsv41.serve.link import GroupLink, LinkError, pipe
from minidsv41.serve.manifest import HandoffError, Manifest, parse
from minidsv41.serve.parts import parts
from tests.handoff_peer import go_on, start
from tests.test_ledger import check_formulas
from tests.tiny import TINY, prompt, tiny

W = TINY.sliding_window
LENGTHS = (1, 2, W - 1, W, W + 1, 2 * W, 2 * W + 1, PAGE - 1, PAGE, PAGE + 1, PAGE + W - 1, 2 * PAGE + W - 1, 140)
ROOT = Path(__file__).parents[1]
MODEL = tiny()
MINE = fingerprint(MODEL)

Edit = Callable[[int, torch.Tensor], list[torch.Tensor]]


class Edited:
    """A link with somebody in between: every sent piece, numbered from 0, becomes what `edit` makes of it."""

    def __init__(self, link, edit: Edit = lambda i, data: [data]) -> None:
        self.link, self.edit, self.sent, self.asked = link, edit, [], []

    def send(self, data: torch.Tensor) -> None:
        for piece in self.edit(len(self.sent), data):
            self.link.send(piece)
        self.sent.append(data.clone())

    def receive(self, size: int) -> torch.Tensor:
        self.asked.append(size)
        return self.link.receive(size)


def both(sender: Callable, receiver: Callable) -> tuple[object, object]:
    """Run the two sides -> what each returned or raised."""

    def outcome(side: Callable) -> object:
        try:
            return side()
        except HandoffError as error:
            return error

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(outcome, sender)
        return outcome(receiver), sending.result(60)


def over(cache: Cache, state: State, there: Cache, *, token: int = 5, edit: Edit | None = None, **options):
    """Hand over within this process -> the receiver's outcome, the sender's."""
    a, b = pipe(timeout=0.5)
    left = Edited(a, edit) if edit else a
    return both(
        lambda: send(left, cache, state, model=MINE, token=token, **options), lambda: receive(b, there, model=MINE)
    )


def same_bytes(cache: Cache, state: State, there: Cache, taken: State) -> None:
    here, got = (list(parts(c, s, draft=True)) for c, s in ((cache, state), (there, taken)))
    assert [p.name for p in here] == [p.name for p in got]
    for one, other in zip(here, got, strict=True):
        assert one.size == len(one.give()) and torch.equal(one.give(), other.give()), one.name


def nothing_held(cache: Cache) -> None:
    for allocator in (cache.windows, cache.entries):
        assert sorted(allocator.free) == list(range(1, allocator.pages + 1))


@pytest.mark.parametrize(
    ("length", "packed"), [*((n, True) for n in LENGTHS), (1, False), (71, False), (130, False)], ids=str
)
def test_the_receiver_goes_on_as_the_sender_would(length: int, packed: bool) -> None:
    cache, state, logits = start(MODEL, length, packed=packed)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed" if packed else "float")
    other = there.new()
    prefill(MODEL, there, other, prompt(100, seed=1))  # so that pages are others than the sender's
    got, _ = over(cache, state, there, token=int(logits.argmax()))
    assert got.state.length == length and got.replay is None
    same_bytes(cache, state, there, got.state)
    here, gone_on = go_on(MODEL, cache, state, got.token), go_on(MODEL, there, got.state, got.token)
    assert here[0] == gone_on[0]
    torch.testing.assert_close(here[1], gone_on[1], rtol=0, atol=1e-9)
    for sequence in (other, got.state):
        there.release(sequence)
    nothing_held(there)


@pytest.mark.parametrize("length", [7, 64, PAGE + W - 1, 130])
def test_drafts_come_out_as_they_would_have(length: int) -> None:
    def draft(cache: Cache, state: State) -> torch.Tensor:
        keys = cache.keys([state], Batch.ragged([torch.tensor([5])], [state.length]))
        anchor, seq, last = torch.tensor([5]), torch.tensor([0]), torch.tensor([state.length - 1])
        return MODEL.mtp.draft(anchor, seq, last, MODEL.embed, MODEL.head, keys).logits

    cache, state, _ = start(MODEL, length, packed=True)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    got, _ = over(cache, state, there)
    torch.testing.assert_close(draft(there, got.state), draft(cache, state), rtol=0, atol=1e-9)


@pytest.mark.parametrize("length", [1, W, W + 1, PAGE, 99, 130])
def test_a_replay_order_equals_a_replay_here(length: int) -> None:
    ids = prompt(length)
    cache, state, _ = start(MODEL, length, packed=True)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    got, sent = over(cache, state, there, replay=ids)
    assert not got.state.windows
    got.follow(MODEL, there)
    assert got.replay is None
    cache.truncate(state, length)
    prefill(MODEL, cache, state, ids)
    same_bytes(cache, state, there, got.state)
    here, gone_on = go_on(MODEL, cache, state, 5), go_on(MODEL, there, got.state, 5)
    assert here[0] == gone_on[0]
    torch.testing.assert_close(here[1], gone_on[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "options", [{}, {"draft": False}, {"replay": True}], ids=["windows", "without DSpark", "replay order"]
)
@pytest.mark.parametrize("length", [1, W, W + 1, PAGE + W - 1, 140])
def test_bytes_on_the_wire_are_the_ledgers(length: int, options: dict) -> None:
    model = tiny(dtype=torch.float32)
    cache, state, _ = start(model, length, packed=True)
    ledger = int(handoff_bytes(TINY, length, **options))
    if "replay" in options:
        options = {"replay": prompt(length)}
    a, b = pipe(timeout=5)
    wire, there = Edited(a), Cache(TINY, cache_format="packed")
    draft = options.get("draft", True)
    _, sent = both(
        lambda: send(wire, cache, state, model=MINE, token=1, **options),
        lambda: receive(b, there, model=MINE, draft=draft),
    )
    preamble, text, *sections = (len(piece) for piece in wire.sent)
    assert (sent.payload, sent.envelope) == (sum(sections), preamble + text)
    assert sent.payload == ledger


def test_a_replay_order_saves_the_windows_of_the_release() -> None:
    windows, order = (int(handoff_bytes(ModelConfig(), 4096, replay=r)) for r in (False, True))
    assert windows == 890 * 4096 + 2_906_112 + 12_288 + 24  # entries, 43 rings, 3 open pairs, 3 compressed ids
    assert order == 890 * 4096 + 131 * 8
    for length in (1, 131, 4096):
        for options in ({}, {"draft": False}, {"replay": True}):
            check_formulas(handoff_lines(TINY, length, **options), TINY)


def flags(folder: Path, cache: Cache, state: State, ids: torch.Tensor) -> list[bool]:
    """Which pages of a sequence a store beside its cache has as replayed ones, once it has stored them."""
    with Store(folder, identity(MODEL, cache)) as store:
        persist(store, cache, state, ids.tolist(), replayed=state.replayed)
        return [record.replayed for record in store.match(ids.tolist())]


@pytest.mark.parametrize("replayed", [False, True])
def test_the_receiver_stores_entries_under_the_flag_that_the_sender_would_use(replayed: bool, tmp_path: Path) -> None:
    ids = prompt(2 * PAGE)
    cache, state, _ = start(MODEL, PAGE, packed=True)
    if replayed:
        cache.truncate(state, PAGE)
    prefill(MODEL, cache, state, ids)
    assert state.replayed is replayed
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    got, _ = over(cache, state, there)
    assert got.state.replayed is replayed
    assert flags(tmp_path / "here", cache, state, ids) == flags(tmp_path / "there", there, got.state, ids)
    assert flags(tmp_path / "there", there, got.state, ids) == [replayed] * 2


def test_what_comes_behind_a_followed_order_is_stored_as_replayed(tmp_path: Path) -> None:
    ids = prompt(3 * PAGE)
    cache, state, _ = start(MODEL, 2 * PAGE, packed=True)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    got, _ = over(cache, state, there, replay=ids[: 2 * PAGE])
    assert not got.state.replayed
    assert flags(tmp_path, there, got.state, ids) == [False] * 2
    got.follow(MODEL, there)
    prefill(MODEL, there, got.state, ids)
    assert flags(tmp_path, there, got.state, ids) == [False, False, True]


def flipped(piece: int, at: int = 0) -> Edit:
    def edit(i: int, data: torch.Tensor) -> list[torch.Tensor]:
        if i == piece:
            data = data.clone()
            data[at // 8 % len(data)] ^= 1 << at % 8
        return [data]

    return edit


def manifest_changed(change: Callable[[Manifest], Manifest]) -> Edit:
    """Another manifest, with a preamble that fits: what a wrong or malicious sender might announce."""
    kept: dict[str, torch.Tensor] = {}

    def edit(i: int, data: torch.Tensor) -> list[torch.Tensor]:
        if i == 0:
            kept["preamble"] = data
            return []
        if i == 1:
            changed = change(parse(bytes(kept["preamble"].numpy()), bytes(data.numpy())))
            return [torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in changed.to_bytes()]
        return [data]

    return edit


def section_changed(place: int, **changes) -> Edit:
    def change(m: Manifest) -> Manifest:
        sections = list(m.sections)
        sections[place] = replace(sections[place], **changes)
        return replace(m, sections=tuple(sections))

    return manifest_changed(change)


def swapped(i: int, data: torch.Tensor, held: list) -> list[torch.Tensor]:
    """The first two sections, which have the same size, in the other order."""
    if i == 2:
        held.append(data)
        return []
    return [data, held.pop()] if i == 3 else [data]


def first_sections_swapped(m: Manifest) -> Manifest:
    a, b, *rest = m.sections
    return replace(m, sections=(b, a, *rest))


HUGE = 10**15
REFUSED = {
    "flipped bit in a section": (flipped(4), "damaged on the way: window 2 "),
    "flipped bit in the manifest": (flipped(1, 99), "the manifest was damaged on the way"),
    "flipped bit in the manifest's checksum": (flipped(0, 140), "the manifest was damaged on the way"),
    "another version": (flipped(0, 88), "manifest version 3: this side reads version 2"),
    "sections in another order": (partial(swapped, held=[]), "damaged on the way: window 0, window 1 "),
    "sections announced in another order": (
        manifest_changed(first_sections_swapped),
        r"sections\[0\] is 'window 1', due is 'window 0'",
    ),
    "an oversized section": (section_changed(3, size=HUGE), f"'window 3': {HUGE} bytes are announced, due are"),
    "a negative size": (section_changed(3, size=-8), "'window 3': -8 bytes are announced, due are"),
    "an oversized length": (manifest_changed(lambda m: replace(m, length=HUGE)), f"length = {HUGE}: allowed are 1 to"),
    "another length": (manifest_changed(lambda m: replace(m, length=72)), "bytes are announced, due are"),
    "a missing section": (
        manifest_changed(lambda m: replace(m, sections=m.sections[:-1])),
        "18 sections are announced, due are 19",
    ),
    "another model": (manifest_changed(lambda m: replace(m, model="0" * 32)), "model: the sender runs '00000.*other"),
    "no token": (manifest_changed(lambda m: replace(m, token=64)), "token = 64: allowed are 0 to 63"),
}


@contextmanager
def bystander(cache: Cache) -> Iterator[None]:
    """Another sequence of the decode side, which goes on afterwards as if nothing had happened."""
    state = cache.new()
    logits = prefill(MODEL, cache, state, prompt(90, seed=3))
    yield
    alone = Cache(TINY, dtype=cache.dtype, cache_format="packed")
    twin = alone.new()
    prefill(MODEL, alone, twin, prompt(90, seed=3))
    token = int(logits.argmax())
    got, wanted = (go_on(MODEL, c, s, token, steps=3) for c, s in ((cache, state), (alone, twin)))
    assert got[0] == wanted[0]
    torch.testing.assert_close(got[1], wanted[1], rtol=0, atol=1e-9)
    cache.release(state)
    nothing_held(cache)


@pytest.mark.parametrize(("edit", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_refused_in_words_and_the_next_hand_over_works(edit: Edit, said: str) -> None:
    cache, state, _ = start(MODEL, 71, packed=True)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    a, b = pipe(timeout=5)
    right = Edited(b)
    give = partial(send, cache=cache, state=state, model=MINE, token=5)
    with bystander(there):
        refused, heard = both(lambda: give(Edited(a, edit)), lambda: receive(right, there, model=MINE))
        assert isinstance(refused, HandoffError) and not isinstance(refused, LinkError)
        with pytest.raises(HandoffError, match=said):
            raise refused
        assert str(heard) == f"the receiver refuses: {refused}"
        assert max(right.asked) < 10_000, "asked for more than any section has"
        got, _ = both(lambda: give(a), lambda: receive(b, there, model=MINE))
        same_bytes(cache, state, there, got.state)
        there.release(got.state)


BROKEN = {
    "a section cut short": (lambda i, data: [data[:-1] if i == 5 else data], "sent nothing more for 0.5 s after"),
    "a section missing": (lambda i, data: [] if i == 5 else [data], "sent nothing more for 0.5 s after"),
    "nothing after the manifest": (lambda i, data: [data] if i < 2 else [], r"sent nothing more .* after 0 of \d+"),
    "a stream of something else": (flipped(0, 3), "the stream begins with b'EINIDSV4', expected b'MINIDSV4'"),
    "an oversized manifest": (flipped(0, 103), r"a manifest of \d{10} bytes is announced: allowed are up to 1048576"),
}


@pytest.mark.parametrize(("edit", "said"), BROKEN.values(), ids=BROKEN)
def test_a_stream_that_breaks_off_fails_the_request_alone(edit: Edit, said: str) -> None:
    cache, state, _ = start(MODEL, 71, packed=True)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    with bystander(there):
        failed, heard = over(cache, state, there, edit=edit)
        with pytest.raises(LinkError, match=said):
            raise failed
        assert isinstance(heard, HandoffError)
        got, _ = over(cache, state, there)  # over a new link
        same_bytes(cache, state, there, got.state)
        there.release(got.state)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_flipped_bit_is_ever_believed(data: st.DataObject) -> None:
    cache, state, _ = start(MODEL, data.draw(st.sampled_from([1, 7, 65])), packed=True)
    pieces = 2 + sum(1 for p in parts(cache, state, draft=True) if p.size)
    edit = flipped(data.draw(st.integers(0, pieces - 1)), data.draw(st.integers(0, 10**6)))
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    failed, heard = over(cache, state, there, edit=edit)
    assert isinstance(failed, HandoffError) and isinstance(heard, HandoffError)
    nothing_held(there)


def test_both_sides_must_draft_or_neither() -> None:
    cache, state, _ = start(MODEL, 20, packed=True)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    for here, far in ((True, False), (False, True)):
        a, b = pipe(timeout=5)
        refused, heard = both(
            lambda a=a, here=here: send(a, cache, state, model=MINE, token=5, draft=here),
            lambda b=b, far=far: receive(b, there, model=MINE, draft=far),
        )
        assert "DSpark: the sender " in str(refused) and "both must, or neither" in str(refused)
        assert str(heard) == f"the receiver refuses: {refused}"
    a, b = pipe(timeout=5)
    got, _ = both(
        lambda: send(a, cache, state, model=MINE, token=5, draft=False),
        lambda: receive(b, there, model=MINE, draft=False),
    )
    here, gone_on = go_on(MODEL, cache, state, 5), go_on(MODEL, there, got.state, 5)
    torch.testing.assert_close(here[1], gone_on[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (Cache(TINY, dtype=torch.float64), "stores '1: packed rows, float64 pairs', this side '1: float64 rows"),
        (
            Cache(TINY, cache_format="packed"),
            "stores '1: packed rows, float64 pairs', this side '1: packed rows, float32 pairs'",
        ),
    ],
    ids=["values", "another dtype"],
)
def test_another_layout_is_refused(there: Cache, said: str) -> None:
    cache, state, _ = start(MODEL, 20, packed=True)
    refused, heard = over(cache, state, there)
    assert said in str(refused) and said in str(heard)


def test_another_model_is_refused() -> None:
    others = {fingerprint(m) for m in (tiny(seed=1), tiny(dtype=torch.float32), tiny(index_topk=4))}
    assert len(others | {MINE}) == 4 and fingerprint(tiny()) == MINE
    cache, state, _ = start(MODEL, 20, packed=True)
    a, b = pipe(timeout=5)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    refused, _ = both(
        lambda: send(a, cache, state, model=MINE, token=5),
        lambda: receive(b, there, model=fingerprint(tiny(seed=1))),
    )
    assert str(refused).startswith(f"model: the sender runs '{MINE[:19]}")


def test_a_replay_order_of_no_tokens_is_refused() -> None:
    cache, state, _ = start(MODEL, 20, packed=True)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed")
    for wrong in (64, -1):
        refused, _ = over(cache, state, there, replay=prompt(20).index_fill(0, torch.tensor([15]), wrong))
        assert "allowed are 0 to 63" in str(refused)
    nothing_held(there)


def test_a_full_receiver_says_so() -> None:
    cache, state, _ = start(MODEL, 130, packed=True)
    there = Cache(TINY, dtype=torch.float64, cache_format="packed", limit=2)
    refused, heard = over(cache, state, there)
    assert "no room for 130 tokens: all 2 pages of 64 tokens are in use" in str(heard) and str(refused) in str(heard)
    nothing_held(there)


def test_a_sequence_without_windows_is_not_sent_as_if_it_had_them() -> None:
    cache, state, _ = start(MODEL, 20, packed=True)
    cache.truncate(state, 20)
    a, _ = pipe()
    wire = Edited(a)
    with pytest.raises(HandoffError, match=r"the cache no longer holds rows 14\.\.19"):
        send(wire, cache, state, model=MINE, token=5)
    assert not wire.sent


def test_a_closed_link_is_noticed_at_once() -> None:
    a, b = pipe(timeout=60)
    a.close()
    with pytest.raises(LinkError, match="closed the link after 0 of 32 bytes"):
        receive(b, Cache(TINY), model=MINE)
    with pytest.raises(LinkError, match="the peer closed the link"):
        b.send(torch.zeros(1, dtype=torch.uint8))


def test_a_long_refusal_is_cut_to_the_answers_size() -> None:
    a, b = pipe(timeout=5)
    handoff.answer(a, "é" * 400)
    with pytest.raises(HandoffError, match="the receiver refuses: é{255}$"):
        handoff.hear(b)


def test_a_hand_over_needs_no_store() -> None:
    alone = "import sys; sys.modules['lmdb'] = None; import minidsv41.serve.handoff, tests.handoff_peer"
    assert subprocess.run([sys.executable, "-c", alone], cwd=ROOT).returncode == 0


# Two OS processes over gloo.


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupLink]:
    def forbidden(*args, **kwargs) -> None:
        raise AssertionError("an object was pickled or unpickled")

    for name in ("dump", "dumps", "load", "loads"):
        monkeypatch.setattr(pickle, name, forbidden)
    for name in ("_object_to_tensor", "_tensor_to_object"):
        monkeypatch.setattr(torch.distributed.distributed_c10d, name, forbidden)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    link = GroupLink.host(timeout=20)
    yield link
    link.close()


@contextmanager
def peer(role: str, link: GroupLink, *jobs: dict) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "tests.handoff_peer", role, str(link.port), json.dumps(jobs)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        link.connect()
        yield process
    finally:
        process.kill()
        process.wait(20)


def goes_on_alike(got: Received, cache: Cache, job: dict) -> None:
    """What was taken over from another process equals the same in this one."""
    here, state, logits = start(MODEL, job["length"], packed=job["packed"])
    if job.get("replay"):
        got.follow(MODEL, cache)
        here.truncate(state, job["length"])
        prefill(MODEL, here, state, prompt(job["length"]))
    assert got.token == int(logits.argmax())
    same_bytes(here, state, cache, got.state)
    wanted, gone_on = go_on(MODEL, here, state, got.token), go_on(MODEL, cache, got.state, got.token)
    assert wanted[0] == gone_on[0]
    torch.testing.assert_close(wanted[1], gone_on[1], rtol=0, atol=1e-9)


def test_two_processes_equal_one(host: GroupLink) -> None:
    jobs = [dict(length=n, packed=p) for n in (1, 71, 130) for p in (True, False)]
    jobs.append(dict(length=99, packed=True, replay=True))
    with peer("prefiller", host, *jobs) as process:
        for job in jobs:
            cache = Cache(TINY, dtype=torch.float64, cache_format="packed" if job["packed"] else "float")
            goes_on_alike(receive(host, cache, model=MINE), cache, job)
        assert process.wait(20) == 0


def test_a_killed_prefill_process_fails_its_request_and_the_next_one_is_served(host: GroupLink) -> None:
    cache = Cache(TINY, dtype=torch.float64, cache_format="packed")
    job = dict(length=71, packed=True)
    with bystander(cache):
        for dies in (1, 3, 9):  # before the manifest, before the payload, within it
            with peer("prefiller", host, job | {"dies": dies}) as process:
                with pytest.raises(LinkError, match=r"the peer is gone: \d+ bytes did not come"):
                    receive(host, cache, model=MINE)
                assert process.wait(20) == -9
        with peer("prefiller", host, job):
            got = receive(host, cache, model=MINE)
            goes_on_alike(got, cache, job)
            cache.release(got.state)


def test_a_killed_decode_process_fails_the_request(host: GroupLink) -> None:
    cache, state, _ = start(MODEL, 71, packed=True)
    with (
        peer("decoder", host, dict(packed=True, dies=9)),  # within the payload
        pytest.raises(LinkError, match=r"the peer is gone: \d+ bytes not delivered"),
    ):
        send(host, cache, state, model=MINE, token=5)


def test_a_frame_of_another_size_is_not_read(host: GroupLink) -> None:
    with (
        peer("prefiller", host, {"announce": HUGE}, {"silent": 60}),
        pytest.raises(LinkError, match=f"the peer sends {HUGE} bytes where 32 are due"),
    ):
        receive(host, Cache(TINY), model=MINE)


@pytest.mark.slow
def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    link = GroupLink.host(timeout=10)
    with peer("prefiller", link, {"silent": 60}), pytest.raises(LinkError, match="32 bytes did not come"):
        receive(link, Cache(TINY), model=MINE)
    link.close()


def test_nobody_there() -> None:
    lonely = GroupLink.host(timeout=0.2)
    with pytest.raises(LinkError, match="no peer came"):
        lonely.connect()
    with pytest.raises(LinkError, match=r"no host at 127\.0\.0\.1:9 \("):
        GroupLink.join("127.0.0.1", 9, timeout=0.2)
