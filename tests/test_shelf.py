"""Window rows of finished sequences: found by the next turn, gone in time, never more than the budget."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minidsv41.cache import Cache, State
from minidsv41.cache.shelf import Shelf
from minidsv41.model import Model
from minidsv41.serve.generate import step
from minidsv41.serve.prefill import prefill
from tests.tiny import TINY, prompt, tiny


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache() -> Cache:
    return Cache(TINY, dtype=torch.float64, cache_format="packed")


@pytest.fixture
def shelf(cache, clock) -> Shelf:
    return Shelf(cache, ttl=60, budget=10**9, clock=clock)


def blank(cache: Cache, length: int) -> State:
    """A sequence of that length with its pages, whatever they hold."""
    state = cache.new()
    for page in range(-(-length // 64)):
        state.entries[page] = cache.entries.take()
    state.windows[page] = cache.windows.take()
    state.length = length
    return state


def in_use(cache: Cache) -> int:
    return sum(a.pages - len(a.free) for a in (cache.entries, cache.windows))


def test_the_next_turn_goes_on_as_if_nothing_had_happened():
    model: Model = tiny()
    ids, more = prompt(75).tolist(), prompt(9, seed=2)
    cache = Cache(model.config, dtype=model.dtype, cache_format="packed")
    shelf = Shelf(cache, ttl=60, budget=10**9)
    state, undisturbed = cache.new(), cache.new()
    prefill(model, cache, state, torch.tensor(ids))
    prefill(model, cache, undisturbed, torch.tensor(ids))
    shelf.put(ids, state)
    prefill(model, cache, cache.new(), prompt(130, seed=5))  # somebody else meanwhile
    state = shelf.take([*ids, *more.tolist()])
    assert state.length == len(ids)
    assert torch.equal(step(model, cache, state, more).hidden, step(model, cache, undisturbed, more).hidden)


def test_the_longest_sequence_that_the_prompt_goes_on_from_is_taken(shelf, cache):
    for n in (3, 70, 100):
        shelf.put(range(n), blank(cache, n))
    shelf.put([*range(50), 7], blank(cache, 51))
    assert shelf.take(range(100)).length == 70  # nothing would be left to compute of the one of 100
    assert shelf.take(range(100)).length == 3
    assert shelf.take(range(100)) is None
    assert shelf.take([*range(50), 8]) is None  # 51 tokens begin otherwise
    assert shelf.take([]) is None
    assert (shelf.counters.hits, shelf.counters.misses) == (2, 3)


def test_token_ids_are_compared_whole_not_byte_by_byte(shelf, cache):
    shelf.put([1, 2], blank(cache, 2))
    assert shelf.take([1, 2 + (3 << 8), 5]) is None and shelf.take([1, 2 << 8, 2]) is None


def test_states_leave_when_their_time_is_up_and_give_their_pages_back(shelf, cache, clock):
    shelf.put(range(10), blank(cache, 10))
    clock.now += 40
    shelf.put(range(70), blank(cache, 70))
    clock.now += 20
    shelf.expire()
    assert shelf.counters.expired == 0 and in_use(cache) == 5
    clock.now += 0.1
    shelf.expire()
    assert shelf.counters.expired == 1 and in_use(cache) == 3
    clock.now += 60
    assert shelf.take(range(100)) is None
    assert shelf.counters.expired == 2 and in_use(cache) == 0 == shelf.nbytes


def test_a_clock_that_jumps_ahead_empties_the_shelf_and_nothing_else(shelf, cache, clock):
    shelf.put(range(10), blank(cache, 10))
    clock.now += 1e9
    assert shelf.take(range(20)) is None and in_use(cache) == 0
    shelf.put(range(10), blank(cache, 10))
    assert shelf.take(range(20)).length == 10


def test_a_clock_that_jumps_back_keeps_nothing_for_longer(shelf, cache, clock):
    shelf.put(range(10), blank(cache, 10))
    clock.now += 30
    shelf.expire()
    clock.now -= 500
    shelf.expire()
    clock.now += 29
    shelf.expire()
    assert shelf.counters.expired == 0
    clock.now += 2
    shelf.expire()
    assert shelf.counters.expired == 1


def test_the_budget_is_kept_by_letting_the_oldest_go(cache, clock):
    size = sum(cache.nbytes(blank(cache, 10), "allocated").values())
    before = in_use(cache)
    shelf = Shelf(cache, ttl=60, budget=2 * size, clock=clock)
    for first in range(3):
        shelf.put([first, *range(9)], blank(cache, 10))
    assert shelf.nbytes == 2 * size and shelf.counters.evicted == 1 and in_use(cache) == before + 4
    assert shelf.take([0, *range(20)]) is None
    used_again = shelf.take([1, *range(20)])
    shelf.put([1, *range(9)], used_again)
    shelf.put([3, *range(9)], blank(cache, 10))
    assert shelf.take([2, *range(20)]) is None and shelf.take([1, *range(20)]) is used_again


def test_a_state_larger_than_the_budget_is_not_kept(cache, clock):
    shelf = Shelf(cache, ttl=60, budget=10, clock=clock)
    shelf.put(range(10), blank(cache, 10))
    assert not shelf.states and in_use(cache) == 0 and shelf.counters.evicted == 1


def test_the_same_tokens_again_replace_the_older_state(shelf, cache):
    shelf.put(range(10), blank(cache, 10))
    newer = blank(cache, 10)
    shelf.put(range(10), newer)
    assert in_use(cache) == 2 and shelf.counters.replaced == 1
    assert shelf.take(range(11)) is newer


def test_tokens_and_state_must_agree(shelf, cache):
    with pytest.raises(AssertionError, match="9 tokens, but the sequence holds 10"):
        shelf.put(range(9), blank(cache, 10))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "take", "wait", "clear"]),
        st.lists(st.integers(0, 1), min_size=1, max_size=4),
        st.floats(-100, 100),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, room=st.integers(0, 5))
def test_no_page_is_ever_lost_or_given_twice(steps, room):
    cache, clock = Cache(TINY, dtype=torch.float64, cache_format="packed"), Clock()
    size = sum(cache.nbytes(probe := blank(cache, 1), "allocated").values())
    cache.release(probe)
    shelf, out = Shelf(cache, ttl=50, budget=room * size, clock=clock), []
    for what, ids, seconds in steps:
        if what == "put":
            shelf.put(ids, blank(cache, len(ids)))
        elif what == "wait":
            clock.now += seconds
        elif what == "clear":
            shelf.clear()
        elif state := shelf.take(ids):
            out.append(state)
        kept = [state for _, state in shelf.states.values()]
        assert len(kept) <= room and in_use(cache) == 2 * (len(kept) + len(out))
        for allocator, held in ((cache.entries, "entries"), (cache.windows, "windows")):
            used = [p for s in [*kept, *out] for p in getattr(s, held).values()]
            assert sorted(used + allocator.free) == list(range(1, allocator.pages + 1))
