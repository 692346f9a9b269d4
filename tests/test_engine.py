"""The engine: a crowd of requests gets what each would get alone, and leaves nothing behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.cache.pages import identity, page_bytes
from minidsv41.cache.pool import CacheFull
from minidsv41.cache.shelf import Shelf
from minidsv41.cache.store import Store
from minidsv41.model import Model
from minidsv41.serve import Busy, Engine, RequestError, decode, generate, speak, speculate
from minidsv41.serve.generate import choose, step
from minidsv41.serve.prefill import Prefill
from minidsv41.serve.request import Request
from minidsv41.serve.speculative import Sampling
from minidsv41.serve.transcript import Transcript
from minidsv41.tokens import load_tokenizer
from tests.tiny import TINY, prompt, tiny

W = TINY.sliding_window
TOKENIZER = load_tokenizer()
DEFAULTS = dict(stop=frozenset(), token_budget=24, max_requests=5)


def engine(model: Model, cache: Cache | None = None, **settings) -> Engine:
    cache = cache or Cache(model.config, dtype=model.dtype, cache_format="packed")
    return Engine(model, cache=cache, **(DEFAULTS | settings))


def in_use(e: Engine) -> int:
    return sum(a.pages - len(a.free) for a in (e.cache.entries, e.cache.windows))


def nothing_held(e: Engine) -> None:
    e.close()
    for allocator in (e.cache.entries, e.cache.windows):
        assert sorted(allocator.free) == list(range(1, allocator.pages + 1))


def ask(rng: random.Random, seed: int) -> tuple[Tensor, dict]:
    """A random prompt and its settings."""
    ids = prompt(rng.choice([1, 2, W, W + 1, 3 * W, 40, 64, 65]), seed)
    temperature = rng.choice([0.0, 0.8, 1.3])
    settings = dict(max_new=rng.choice([0, 1, 2, 9, 20]), temperature=temperature, top_p=rng.choice([0.7, 1.0]))
    return ids, settings


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def crowd(e: Engine, asked: list[tuple[Tensor, dict]], rng: random.Random) -> list[Request]:
    """Serve all: some join while others run, and some are cancelled at random."""
    requests: list[Request] = []
    while len(requests) < len(asked) or e.running or e.waiting:
        while len(requests) < len(asked) and rng.random() < 0.4:
            ids, settings = asked[len(requests)]
            requests.append(e.submit(ids, generator=seeded(len(requests)), **settings))
        if rng.random() < 0.12 and (some := [*e.running, *e.waiting]):
            e.cancel(rng.choice(some))
        e.step()
    return requests


@pytest.mark.parametrize(("cut", "drafted"), [("late", False), ("late", True), ("report", False), (None, True)])
def test_in_a_crowd_each_request_gets_its_own_text(cut: str | None, drafted: bool) -> None:
    model, rng = tiny(), random.Random(f"{cut} {drafted}")
    asked = [ask(rng, seed) for seed in range(10)]
    e = engine(model, cut=cut, speculative=drafted)
    requests = crowd(e, asked, rng)
    ends = [r.end for r in requests]
    assert "cancelled" in ends and ends.count("length") >= 5
    for i, (r, (ids, how)) in enumerate(zip(requests, asked, strict=True)):
        wanted = list((speculate if drafted else generate)(model, ids, generator=seeded(i), cut=cut, **how))
        assert r.tokens == (wanted if r.end == "length" else wanted[: len(r.tokens)])
    assert in_use(e) == 0
    nothing_held(e)
    c = e.counters
    assert (c.submitted, c.finished, c.cancelled, c.failed) == (10, ends.count("length"), ends.count("cancelled"), 0)
    assert c.new_tokens == sum(len(r.tokens) for r in requests)
    assert c.prompt_rows <= sum(len(ids) for ids, _ in asked)
    assert 0 < c.accepted < c.drafted if drafted else c.drafted == 0


def test_in_a_crowd_the_logits_are_the_same_to_1e_9(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = tiny(), {}

    def noting(logits: Tensor, *, generator: torch.Generator, **settings) -> Tensor:
        seen.setdefault(generator.initial_seed(), []).append(logits)
        return choose(logits, generator=generator, **settings)

    monkeypatch.setattr(decode, "choose", noting)
    e = engine(model, token_budget=11)
    prompts = [prompt(n, seed=n) for n in (1, W, 30, 64)]
    for i, ids in enumerate(prompts):
        e.submit(ids, max_new=8, temperature=1.0, generator=seeded(i))
        e.step()
    e.run()
    for i, ids in enumerate(prompts):
        cache = Cache(TINY, dtype=model.dtype)
        _, wanted = alone(model, cache, cache.new(), ids, 8, seeded(i))
        torch.testing.assert_close(torch.stack(seen[i]), wanted, rtol=0, atol=1e-9)


@torch.no_grad()
def alone(
    model: Model, cache: Cache, state: State, ids: Tensor, n: int, generator: torch.Generator
) -> tuple[list[int], Tensor]:
    """n tokens behind a prompt of which the state may hold a part, and the logits [n, V] that drew them."""
    hidden, tokens, logits = Prefill(model, cache, state, ids).finish()[-1:], [], []
    while True:
        logits.append(model.logits(hidden)[0])
        tokens.append(choose(logits[-1], temperature=1.0, top_p=1.0, generator=generator))
        if len(tokens) == n:
            return torch.stack(tokens).tolist(), torch.stack(logits)
        hidden = step(model, cache, state, tokens[-1][None]).hidden


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Makes an engine with a shelf and a store."""
    with ExitStack() as stores:

        def make(model: Model, **settings) -> Engine:
            cache = Cache(model.config, dtype=model.dtype, cache_format="packed", limit=settings.pop("limit", None))
            store = stores.enter_context(Store(tmp_path / "store", identity(model, cache)))
            shelf = Shelf(cache, ttl=600, budget=10**9)
            return engine(model, cache=cache, shelf=shelf, store=store, **settings)

        yield make


def test_in_a_crowd_hits_give_what_they_would_alone(warm) -> None:
    model, rng, settings = tiny(), random.Random(3), dict(max_new=9, temperature=1.0)
    e, shared = warm(model), prompt(140, seed=99)
    e.submit(shared, max_new=0)
    e.run()
    e.prefixes.shelf.clear()
    firsts = [torch.cat([shared, torch.tensor([i]), prompt(rng.randint(0, 2 * W), seed=i)]) for i in range(5)]
    some = crowd(e, [(ids, settings) for ids in firsts], rng)
    finished = [i for i, r in enumerate(some) if r.end == "length"]
    assert 2 <= len(finished) < len(some)
    turns = [torch.tensor([*some[i].prompt, *some[i].tokens, *prompt(5, seed=i)]) for i in finished]
    again = crowd(e, [(ids, settings) for ids in turns], random.Random(0))
    for j, (i, r) in enumerate(zip(finished, again, strict=True)):
        cache = Cache(TINY, dtype=model.dtype)
        state = cache.new()
        with torch.no_grad():
            step(model, cache, state, shared[:128])
        cache.truncate(state, 128)
        assert (some[i].hit, some[i].replayed) == (128, W)
        assert some[i].tokens == alone(model, cache, state, firsts[i], 9, seeded(i))[0]
        if r.end == "length":
            assert (r.hit, r.replayed) == (len(firsts[i]) + 8, 0)
            assert r.tokens == alone(model, cache, state, turns[j], 9, seeded(j))[0]
    c = e.counters
    assert [r.end for r in again].count("length") >= 2
    assert c.store_hits <= len(some) and c.shelf_hits <= len(again) and c.cold == 1
    assert c.replayed_rows == sum(r.replayed for r in some + again) == c.store_hits * W
    assert c.hit_tokens == sum(r.hit for r in some + again)
    size = page_bytes(e.cache)
    assert c.bytes_read == 2 * size * c.store_hits
    assert c.bytes_written == size * e.prefixes.store.verify()[0]
    nothing_held(e)


def test_entries_after_a_bounded_replay_are_flagged_in_the_store(warm) -> None:
    model, ids = tiny(), prompt(200, seed=1)
    e = warm(model)
    e.submit(ids[:100], max_new=0)  # page 0, exact
    e.run()
    e.prefixes.shelf.clear()
    e.submit(ids[:110], max_new=0)  # replayed behind page 0; no new page is complete
    e.run()
    e.submit(ids, max_new=0)  # goes on from there, windows and all
    e.run()
    assert (e.counters.store_hits, e.counters.shelf_hits) == (1, 1)
    assert [r.replayed for r in e.prefixes.store.match(ids.tolist())] == [False, True, True]


def test_a_hit_of_the_whole_prompt(warm) -> None:
    model, ids = tiny(), prompt(128, seed=1)
    e = warm(model)
    for _ in range(2):
        r = e.submit(ids, max_new=3)
        e.run()
        assert r.end == "length"
        e.prefixes.shelf.clear()
    assert (r.hit, r.replayed) == (128, W)


def broken(logits: Tensor, *, generator: torch.Generator, **settings) -> Tensor:
    if generator.initial_seed() == 13:
        raise RuntimeError("broken")
    return choose(logits, generator=generator, **settings)


def test_an_error_in_one_request_fails_that_one_alone(monkeypatch: pytest.MonkeyPatch, warm) -> None:
    model = tiny()
    e = warm(model)
    bad = e.submit(prompt(5), max_new=20, temperature=1.0, generator=seeded(13))
    good = [e.submit(prompt(n, seed=n), max_new=9, temperature=1.0, generator=seeded(n)) for n in (3, 40, 70)]
    for _ in range(4):
        e.step()
    assert len(bad.tokens) > 1
    monkeypatch.setattr(decode, "choose", broken)
    with pytest.raises(RuntimeError, match="^broken$"):
        list(e.tokens(bad))
    e.run()
    assert bad.end == "failed" and (e.counters.failed, e.counters.finished) == (1, 3)
    for n, r in zip((3, 40, 70), good, strict=True):
        assert r.tokens == list(generate(model, prompt(n, seed=n), max_new=9, temperature=1.0, generator=seeded(n)))
    nothing_held(e)


def test_drafting_an_error_in_one_request_leaves_the_luck_of_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, real = tiny(), Sampling.distribution

    def distribution(self: Sampling, logits: Tensor) -> Tensor:
        if len(bad.tokens) > 4 and self.generator.initial_seed() == 13 and logits.dim() > 1:
            raise RuntimeError("broken")  # at verification: drafts have been drawn
        return real(self, logits)

    monkeypatch.setattr(Sampling, "distribution", distribution)
    e = engine(model, speculative=True)
    good = [e.submit(prompt(n, seed=n), max_new=20, temperature=1.0, generator=seeded(n)) for n in (3, 40)]
    bad = e.submit(prompt(5), max_new=20, temperature=1.0, generator=seeded(13))
    e.run()
    assert [r.end for r in (bad, *good)] == ["failed", "length", "length"]
    assert str(bad.error) == "broken"
    for n, r in zip((3, 40), good, strict=True):
        assert r.tokens == list(speculate(model, prompt(n, seed=n), max_new=20, temperature=1.0, generator=seeded(n)))
    nothing_held(e)


@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "drafted"])
def test_a_full_cache_takes_the_shelf_first_and_then_fails_one_request(drafted: bool, warm) -> None:
    model = tiny()
    e = warm(model, limit=3, speculative=drafted)
    e.submit(prompt(60, seed=1), max_new=1)
    e.run()
    assert len(e.prefixes.shelf.states) == 1
    some = [e.submit(prompt(60, seed=s), max_new=9) for s in (2, 3, 4)]
    e.run()
    ends = [r.end for r in some]
    assert ends.count("failed") >= 1 and ends.count("length") >= 1
    assert all(isinstance(r.error, CacheFull) for r in some if r.end == "failed")
    for s, r in zip((2, 3, 4), some, strict=True):
        wanted = list(generate(model, prompt(60, seed=s), max_new=9))
        assert r.tokens == wanted[: len(r.tokens)] and (r.end == "failed" or r.tokens == wanted)
    assert e.prefixes.shelf.counters.evicted >= 1
    nothing_held(e)


def test_without_its_store_an_engine_goes_on(warm, monkeypatch: pytest.MonkeyPatch) -> None:
    e = warm(tiny())
    e.prefixes.store.env.close()
    r = e.submit(prompt(70), max_new=5)
    e.run()
    assert r.end == "length" and e.prefixes.store.counters.refused

    def broken(*args, **kwargs) -> int:
        raise OSError("broken")

    e.submit(prompt(3, seed=1), max_new=30)
    e.submit(prompt(70, seed=2), max_new=5)
    cancelled = e.submit(prompt(4, seed=1), max_new=30)
    for _ in range(9):
        e.step()
    monkeypatch.setattr(e.prefixes.store, "put", broken)
    e.cancel(cancelled)
    e.run()
    assert e.counters.failed >= 2 and cancelled.end == "failed"
    nothing_held(e)


def test_a_full_queue_refuses_in_words() -> None:
    e = engine(tiny(), max_waiting=2, max_requests=1)
    first = e.submit(prompt(4), max_new=3)
    e.step()
    waiting = [e.submit(prompt(4), max_new=3) for _ in range(2)]
    with pytest.raises(Busy, match=r"2 requests are waiting already: try again"):
        e.submit(prompt(4))
    assert e.counters.refused == 1
    e.cancel(waiting[0])
    e.cancel(waiting[0])
    e.submit(prompt(4), max_new=3)
    e.run()
    assert [r.end for r in (first, *waiting)] == ["length", "cancelled", "length"]
    assert (e.counters.finished, e.counters.cancelled) == (3, 1)
    nothing_held(e)


def test_no_step_feeds_more_rows_than_the_budget() -> None:
    for drafted in (False, True):
        e = engine(tiny(), token_budget=21, speculative=drafted)
        for n in (40, 7, 3, 64):
            e.submit(prompt(n), max_new=12)
        fed, mixed = 0, 0
        while e.step():
            c = e.counters
            now = c.prompt_rows + c.decode_rows
            assert now - fed <= 21
            mixed += now - fed == 21
            fed = now
        assert mixed > 2 and e.counters.finished == 4


def test_what_cannot_be_served_is_said_before_any_work() -> None:
    model = tiny()
    with pytest.raises(RequestError, match="token_budget = 5: must exceed 5"):
        engine(model, token_budget=5)
    with pytest.raises(RequestError, match="token_budget = 20: must exceed 20"):
        engine(model, token_budget=20, speculative=True)
    with pytest.raises(RequestError, match="max_requests = 0"):
        engine(model, max_requests=0)
    e = engine(model)
    for wrong, words in [
        (dict(prompt=prompt(0)), "prompt of 0 tokens"),
        (dict(prompt=prompt(3), temperature=-1.0), "temperature"),
        (dict(prompt="text"), "need a tokenizer"),
        (dict(prompt=prompt(3), stop_strings=("x",)), "need a tokenizer"),
    ]:
        with pytest.raises(RequestError, match=words):
            e.submit(**wrong)
    assert e.counters.submitted == 0 and not e.waiting


def test_leaving_a_stream_cancels_its_request_and_the_others_go_on() -> None:
    model = tiny()
    e = engine(model)
    one, two = (e.submit(prompt(9, seed=s), max_new=12) for s in (1, 2))
    stream = e.tokens(one)
    got = [next(stream) for _ in range(3)]
    stream.close()
    assert one.end == "cancelled" and got == one.tokens[:3]
    assert list(e.tokens(two)) == list(generate(model, prompt(9, seed=2), max_new=12)) == list(e.tokens(two))


def test_the_end_of_a_document_ends_a_request() -> None:
    model = tiny()
    token = list(generate(model, prompt(9), max_new=12))[5]
    for drafted in (False, True):
        r = (e := engine(model, stop=frozenset({token}), speculative=drafted)).submit(prompt(9))
        e.run()
        assert r.end == "stop" and r.tokens.index(token) == len(r.tokens) - 1


@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "drafted"])
def test_the_context_ends(drafted: bool) -> None:
    model, ids = tiny(), prompt(TINY.max_position_embeddings - 5)
    e = engine(model, speculative=drafted, token_budget=600)
    e.submit(prompt(4), max_new=20)
    r = e.submit(ids)
    e.run()
    assert r.end == "length" and len(r.tokens) == 6
    assert r.tokens == list(generate(model, ids))


def test_a_plan_sets_how_many_drafts_are_verified() -> None:
    model = tiny()
    e = engine(model, speculative=True, plan=lambda confidence, most: [min(1, m) for m in most])
    some = [e.submit(prompt(9, seed=s), max_new=12) for s in range(3)]
    e.run()
    assert [r.tokens for r in some] == [list(generate(model, prompt(9, seed=s), max_new=12)) for s in range(3)]
    assert 0 < e.counters.drafted <= e.counters.decode_rows / 2


@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "drafted"])
def test_text_streams_up_to_a_stop_string(drafted: bool) -> None:
    tokenizer = TOKENIZER
    model = tiny(vocab_size=tokenizer.get_vocab_size())
    said = "".join(speak(model, tokenizer, "To be", max_new=30))
    stop = said[len(said) // 2 :][:5]
    cache = Cache(model.config, dtype=model.dtype)
    e = Engine(model, tokenizer, cache=cache, speculative=drafted)
    pieces = list(e.stream(r := e.submit("To be", max_new=30, stop_strings=("nowhere", stop))))
    assert "".join(pieces) == r.text == said[: said.index(stop)] and r.end == "stop" and len(pieces) > 3
    assert "".join(e.stream(e.submit("To be", max_new=30))) == said
    with pytest.raises(RequestError, match="one of them is empty"):
        e.submit("To be", stop_strings=("",))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_stop_strings_do_not_see_token_borders(data) -> None:
    text = st.text(st.sampled_from("abé是\n "), max_size=30)
    ids = data.draw(text.map(lambda t: TOKENIZER.encode(t).ids) | st.lists(st.integers(5, 600), max_size=12))
    whole = TOKENIZER.decode(ids)
    cuts = data.draw(st.lists(st.tuples(st.integers(0, max(0, len(whole) - 1)), st.integers(1, 5)), max_size=3))
    stops = [*filter(None, (whole[at : at + n] for at, n in cuts)), "bb是"]
    ends = [(whole.index(s) + len(s), whole.index(s)) for s in stops if s in whole]
    transcript, shown = Transcript(TOKENIZER, tuple(stops)), ""
    for token in ids:
        transcript.add(token)
        assert transcript.text.startswith(shown)
        shown = transcript.text
    transcript.end()
    assert transcript.text.startswith(shown)
    assert transcript.text == (whole[: min(ends)[1]] if ends else whole)
    assert transcript.stopped == bool(ends)


def test_half_a_prompt_is_no_prefix(warm) -> None:
    e = warm(tiny())
    r = e.submit(prompt(90), max_new=5)
    for _ in range(3):
        e.step()
    assert r.state.length == 72
    e.cancel(r)
    assert in_use(e) == 0 and not e.prefixes.shelf.states


def test_of_two_stop_strings_in_one_token_the_first_to_be_complete_counts() -> None:
    token = next(i for i in range(5, 600) if len(TOKENIZER.decode([i])) == 4)
    text = TOKENIZER.decode([token])
    transcript = Transcript(TOKENIZER, (text, text[2]))
    transcript.add(token)
    assert transcript.text == text[: text.index(text[2])]
