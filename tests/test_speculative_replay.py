"""Drafts behind a hit: entries are kept, windows are computed again, and the greedy text is that of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.cache.pages import identity, persist, restore
from minidsv41.cache.pool import PAGE
from minidsv41.cache.store import Store
from minidsv41.serve import Engine, Prefill, prefill
from minidsv41.serve.generate import step
from minidsv41.serve.speculative import Sampling, advance
from tests.test_replay import held, lose
from tests.test_speculative import SMALL, assert_same_state
from tests.tiny import TINY, prompt, tiny

W, BLOCK, NEW = TINY.sliding_window, TINY.dspark_block_size, TINY.sliding_window + 3
HITS = (1, 2, W - 1, W, W + 1, 2 * W + 1, 33, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1)
SUFFIXES = (0, 1, W, 2 * W + 1)
MODEL = tiny(**SMALL)


def plain(cache: Cache, state: State, ids: Tensor, cut: str | None, new: int = NEW) -> list[int]:
    """Greedy tokens behind a prompt whose first ones the sequence holds; the last of them is not fed."""
    tokens = [int(prefill(MODEL, cache, state, ids, cut=cut).argmax())]
    while len(tokens) < new:
        tokens.append(int(MODEL.logits(step(MODEL, cache, state, torch.tensor(tokens[-1:])).hidden)[0].argmax()))
    return tokens


def drafted(cache: Cache, state: State, ids: Tensor, cut: str | None, new: int = NEW) -> tuple[list[int], list[int]]:
    """The same with drafts, and how many of them each step accepted."""
    tokens, accepted = [int(prefill(MODEL, cache, state, ids, cut=cut, chunk=5).argmax())], []
    while (left := new - len(tokens)) > 0:
        [gain] = advance(MODEL, cache, [state], torch.tensor(tokens[-1:]), [Sampling()], most=[left - 1])
        tokens += gain.tokens.tolist()
        accepted.append(len(gain.tokens) - 1)
    return tokens, accepted


def kept(ids: Tensor, hit: int, *, packed: bool) -> tuple[Cache, State]:
    """A hit without windows: rows that are not computed again hold NaN."""
    cache, state = held(MODEL, ids[:hit], packed=packed)
    lose(cache, state, hit)
    return cache, state


@pytest.mark.parametrize("cut", ["late", "report", None])
def test_after_a_replay_of_any_hit_drafts_give_the_plain_text(cut: str | None) -> None:
    seen = set()
    for i, hit in enumerate(HITS):
        ids = prompt(hit + SUFFIXES[i % len(SUFFIXES)], seed=i, vocab=8)
        here, there = kept(ids, hit, packed=bool(i % 2)), kept(ids, hit, packed=bool(i % 2))
        wanted, (got, accepted) = plain(*here, ids, cut), drafted(*there, ids, cut)
        assert got == wanted, hit
        assert_same_state(there, here, atol=1e-9)
        seen |= set(accepted)
    assert {0, 1, 2} <= seen <= set(range(BLOCK + 1))


@pytest.mark.parametrize("cut", ["late", "report"])
def test_turn_after_turn(cut: str) -> None:
    """Each turn finds the entries of those before it, drafted ones too, and no windows; some lose their last tokens."""
    ids, lost, odd = prompt(33, seed=5, vocab=8), (0, 1, 2, 0), set()
    here, there = (held(MODEL, ids[:0]) for _ in range(2))
    for turn, less in enumerate(lost):
        wanted, (got, _) = plain(*here, ids, cut), drafted(*there, ids, cut)
        assert got == wanted, turn
        assert_same_state(there, here, atol=1e-9)
        ids = torch.cat([ids, torch.tensor(got), prompt(1 + 4 * turn, seed=turn, vocab=8)])
        for cache, state in (here, there):
            lose(cache, state, state.length - less)
        odd.add(state.length % 2)
    assert odd == {0, 1}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    cache = Cache(MODEL.config, dtype=MODEL.dtype, cache_format="packed")
    with Store(tmp_path, identity(MODEL, cache)) as opened:
        yield opened


@pytest.mark.parametrize("suffix", [0, 1, W + 1])
def test_entries_from_disk(store: Store, suffix: int) -> None:
    ids = prompt(2 * PAGE + suffix, seed=7, vocab=8)
    cache, state = held(MODEL, ids[: 2 * PAGE], packed=True)
    assert persist(store, cache, state, ids[: 2 * PAGE].tolist(), replayed=False) == 2
    texts = []
    for how in (plain, drafted):
        there = Cache(MODEL.config, dtype=MODEL.dtype, cache_format="packed")
        state, replayed = restore(store, there, ids.tolist())
        assert (state.length, replayed, state.windows) == (2 * PAGE, False, {})
        texts.append((how(there, state, ids, "late"), there, state))
    (wanted, *here), ((got, accepted), *there) = texts
    assert got == wanted and len(accepted) < NEW
    assert_same_state(tuple(there), tuple(here), atol=1e-9)


def test_an_engine_that_drafts_behind_stored_prefixes(tmp_path: Path) -> None:
    """A crowd of continuations of one stored prompt, turn after turn; no shelf, so every turn is replayed."""
    shared, texts = prompt(2 * PAGE + 5, seed=9, vocab=8), {}
    asked = [torch.cat([shared, prompt(n, seed=n, vocab=8)]) for n in (1, W, 2 * W + 1)]
    for speculative in (False, True):
        cache = Cache(MODEL.config, dtype=MODEL.dtype, cache_format="packed")
        with (
            Store(tmp_path / str(speculative), identity(MODEL, cache)) as disk,
            Engine(MODEL, cache=cache, store=disk, speculative=speculative, stop=frozenset()) as engine,
        ):
            engine.submit(shared, max_new=0)
            engine.run()
            first = [engine.submit(ids, max_new=NEW) for ids in asked]
            engine.run()
            turns = [torch.tensor([*r.prompt.tolist(), *r.tokens, *range(PAGE % 8, 8)]) for r in first]
            second = [engine.submit(ids, max_new=NEW) for ids in turns]
            engine.run()
            assert [r.hit for r in first + second] == [2 * PAGE] * 6
            assert [r.replayed for r in first + second] == [W] * 6
            texts[speculative] = [r.tokens for r in first + second]
            accepted = engine.counters.accepted
    assert texts[True] == texts[False] and accepted > 0


def test_windows_that_are_not_computed_again_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first property has teeth: a replay that begins a token late leaves a NaN behind."""
    init = Prefill.__init__

    def late(self: Prefill, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        self.start = self.at = self.start + 1

    monkeypatch.setattr(Prefill, "__init__", late)
    ids = prompt(40, vocab=8)
    cache, state = kept(ids, 33, packed=False)
    assert prefill(MODEL, cache, state, ids, cut=None).isnan().any()
