"""Lesson 10: what a diary records, what a bill sums up, and whose windows a full shelf gives up."""

from __future__ import annotations

import pytest
import torch

from minidsv41.cache import Cache
from minidsv41.cache.store import Identity, Store
from minidsv41.config import ModelConfig
from minidsv41.course import crash, figures, retention
from minidsv41.course.conversation import Clock, Diary, Sample, deaths, hour, sections, span
from minidsv41.course.pictures import lifecycle
from minidsv41.course.retention import Terms, bill, described, policies, sizes
from minidsv41.course.rush import afternoon, package_share, share_found
from minidsv41.ledger.handoff import handoff_bytes
from minidsv41.ledger.persistent import persistent_bytes_per_token_with_windows, v4_persistent_bytes_per_token
from minidsv41.serve.prefill import prefill
from tests.tiny import TINY, prompt, tiny

FLASH = ModelConfig.preset("flash")
USUAL = dict(tokens=10_000, hours=72, minutes=10, disk=50, memory=2)


def test_a_diary_records_what_the_cache_counts():
    model, clock = tiny(), Clock()
    cache = Cache(TINY, dtype=model.dtype, cache_format="packed")
    diary, state = Diary(cache), cache.new()
    for length in (5, 6):
        prefill(model, cache, state, prompt(length))
        clock.wait(2)
        diary.note(clock(), "1", pages=3, states=[(cache, state)])
    cache.release(state)
    diary.note(clock())
    odd, even, empty = (sample.held for sample in diary.samples)
    assert [s.seconds for s in diary.samples] == [2, 4, 4]
    assert odd["open pair"] == cache.nbytes(state)["open pair"] > 0 == even["open pair"]
    assert even["window"] == 8 * 6 * cache.pools["window", 0].row_bytes
    on_disk = even["entry on disk"] + even["index on disk"]
    assert on_disk == 3 * sum(p.page * p.row_bytes for (kind, _), p in cache.pools.items() if kind != "window")
    assert not any(empty.values())


def test_deaths_are_where_nothing_is_left():
    def sample(**held):
        return Sample(0, "", dict.fromkeys(lifecycle_kinds(), 0) | held)

    found = deaths([sample(), sample(window=5, entry=2), sample(window=4, entry=2), sample(entry=2), sample()])
    assert [(d.kind, d.at, d.nbytes) for d in found] == [("window", 3, 4), ("entry", 4, 2)]


def lifecycle_kinds() -> list[str]:
    return [kind for _, kinds in lifecycle.PANELS for kind, _, _ in kinds]


@pytest.mark.parametrize("length", [1, 5, 64, 65])
def test_sections_of_a_hand_over_are_those_of_the_ledger(length: int):
    model = tiny(dtype=torch.float32)
    cache = Cache(TINY, dtype=model.dtype, cache_format="packed")
    state = cache.new()
    prefill(model, cache, state, prompt(length))
    found = sections(cache, state)
    assert list(found) == ["window", "draft window", "entry", "index", "open pair", "engram ids"]
    assert sum(found.values()) == handoff_bytes(TINY, length).value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(40, "40 s"), (601, "10 min"), (9900, "2 h 45 min"), (90_000, "25 h"), (259_200, "3 days")],
)
def test_durations_in_words(seconds: float, text: str):
    assert span(seconds) == text


def test_times_of_day_begin_at_eleven():
    assert [hour(s) for s in (0, 91, 13 * 3600, 48 * 3600)] == ["11:00", "11:01", "+1 day 00:00", "+2 days 11:00"]


def test_idle_stretches_are_one_gap_wide_and_steps_one():
    samples = [Sample(s, t, {}) for s, t in ((0, ""), (0.1, "1"), (0.2, "1"), (90, ""), (90, ""))]
    assert lifecycle.places(samples) == [0, 1, 2, 2 + lifecycle.GAP, 3 + lifecycle.GAP]


@pytest.mark.parametrize("tokens", [128, 1829, 1 << 20])
def test_bytes_on_disk_are_those_of_the_ledger_at_any_length(tokens: int):
    own, kept, v4 = (sum(sizes(p, tokens).values()) - p.memory for p in policies(FLASH))
    assert own == 890 * tokens
    assert kept == pytest.approx(float(persistent_bytes_per_token_with_windows(FLASH, tokens).value) * tokens)
    assert v4 == pytest.approx(float(v4_persistent_bytes_per_token(tokens).value) * tokens)


def test_a_bill_is_bytes_times_time_times_price():
    t = Terms(tokens=1000, hours=retention.MONTH, minutes=60 * retention.MONTH, disk=1, memory=1)
    assert bill(policies(FLASH)[0], t) == pytest.approx({"global": 0.89, "window": 0, "memory": 2703.36})


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("hours", ["global"]),
        ("disk", ["global"]),
        ("minutes", ["memory"]),
        ("memory", ["memory"]),
        ("conversations", ["global", "memory"]),
    ],
)
def test_each_term_weighs_on_its_own_kind(name: str, kinds: list[str]):
    own, usual = policies(FLASH)[0], Terms(**USUAL)
    before, after = bill(own, usual), bill(own, Terms(**USUAL | {name: 2 * getattr(usual, name)}))
    assert after == pytest.approx({kind: (2 if kind in kinds else 1) * before[kind] for kind in before})


def test_terms_out_of_range_are_refused():
    for wrong in ({"tokens": 0}, {"hours": -1}, {"disk": -0.5}):
        ((name, value),) = wrong.items()
        with pytest.raises(ValueError, match=f"{name} = {value}: must be"):
            Terms(**USUAL | wrong)


def test_widget_says_and_draws_what_changes():
    texts = {described(FLASH, Terms(**USUAL | {"tokens": n})) for n in (1000, 10_000, 11_000)}
    pictures = {figures.png(lifecycle.billed(FLASH, Terms(**USUAL | {"tokens": n}))) for n in (1000, 10_000, 11_000)}
    assert len(texts) == len(pictures) == 3
    assert "V4.1-Flash: $45.12" in described(FLASH, Terms(**USUAL))
    assert figures.png(lifecycle.kept_by_length(FLASH))[:4] == b"\x89PNG"
    assert lifecycle.billed(FLASH, Terms(**USUAL | {"disk": 0, "memory": 0}))  # a bill of nothing can be drawn


@pytest.mark.parametrize("room", [3, 12])
def test_giving_up_the_longest_idle_is_what_the_packages_shelf_does(room: int):
    turns = afternoon(conversations=150, seconds=3600)
    own = package_share(turns, room=room)
    assert own == share_found(lambda waiting: 0, turns, room=room)
    assert 0 < own < share_found(lambda waiting: 0, turns, room=1000) == 100


def test_an_afternoon_is_in_order_and_the_same_each_time():
    turns = afternoon(conversations=50)
    assert turns == afternoon(conversations=50)
    assert [t.seconds for t in turns] == sorted(t.seconds for t in turns)
    assert sum(t.last for t in turns) == len({t.conversation for t in turns}) == 50


def test_a_dead_writer_leaves_whole_batches(tmp_path):
    who = Identity("model", "layout", page=2, page_bytes=8)
    assert crash.writer_dies(tmp_path / "dies", who, pages=100, at=70)
    assert not crash.writer_dies(tmp_path / "lives", who, pages=100, at=100)
    for name, pages in (("dies", 64), ("lives", 100)):
        with Store(tmp_path / name, who) as store:
            assert (len(store.match(crash.prompt_of(who, 100))), store.verify()) == (pages, (pages, 0))
