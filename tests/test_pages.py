"""A sequence's pages as bytes: there and back bit for bit, and only for the model that they came from."""

from __future__ import annotations

import pytest
import torch

from minidsv41.cache import Cache, State, pages
from minidsv41.cache.pool import PAGE, CacheFull
from minidsv41.cache.replay import reconstruct
from minidsv41.cache.store import Store, StoreError
from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import kv_bytes_per_token
from minidsv41.model import Model
from minidsv41.serve.generate import step
from minidsv41.serve.prefill import prefill, replay
from tests.tiny import TINY, prompt, tiny

FORMS = pytest.mark.parametrize(
    ("packed", "dtype"),
    [
        (True, torch.float64),
        (True, torch.float32),
        (False, torch.float64),
        (False, torch.float32),
        (False, torch.bfloat16),
    ],
    ids=str,
)


def filled(model: Model, ids: torch.Tensor, *, packed: bool, dtype: torch.dtype | None = None) -> tuple[Cache, State]:
    """A cache whose first page numbers belong to somebody else, and a sequence that holds ids."""
    cache = Cache(model.config, dtype=dtype or model.dtype, cache_format="packed" if packed else "float")
    prefill(model, cache, cache.new(), prompt(70, seed=9))
    state = cache.new()
    prefill(model, cache, state, ids)
    return cache, state


def held(cache: Cache, state: State) -> list[torch.Tensor]:
    """Everything in the state's entry pages, in the order of its tokens."""
    out = []
    for (kind, _), pool in cache.pools.items():
        if kind != "window":
            rows = torch.cat(
                [torch.arange(p * pool.page, (p + 1) * pool.page) for _, p in sorted(state.entries.items())]
            )
            out += [t[rows] for t in (pool.data, pool.scales) if t is not None]
    return out


@FORMS
def test_there_and_back_bit_for_bit(packed, dtype):
    model = tiny(dtype=dtype)
    cache, state = filled(model, prompt(2 * PAGE), packed=packed)
    stored = [pages.export_page(cache, state, page) for page in (0, 1)]
    assert {len(p) for p in stored} == {pages.page_bytes(cache)}
    other = Cache(model.config, dtype=dtype, cache_format="packed" if packed else "float")
    taken = [other.entries.take() for _ in range(3)]
    new = other.new()
    pages.import_pages(other, new, stored)
    assert new.length == 2 * PAGE and not set(new.entries.values()) & set(taken)
    for a, b in zip(held(cache, state), held(other, new), strict=True):
        assert a.dtype == b.dtype and len(a) and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    assert stored == [pages.export_page(other, new, page) for page in (0, 1)]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "values"])
def test_a_sequence_goes_on_from_imported_pages_as_from_its_own(packed):
    model = tiny()
    cache, state = filled(model, prompt(2 * PAGE + 3), packed=packed)
    copy = cache.new()
    pages.import_pages(cache, copy, [pages.export_page(cache, state, page) for page in (0, 1)])
    wanted = step(model, cache, state, prompt(5, seed=3)).hidden

    cache, state = filled(model, prompt(2 * PAGE + 3), packed=packed)
    stored = [pages.export_page(cache, state, page) for page in (0, 1)]
    for page in (0, 1):
        cache.entries.give(state.entries.pop(page))
    other = cache.new()
    cache.entries.take()  # the pages just given back must not be what is found again
    pages.import_pages(cache, other, stored)
    state.entries |= other.entries
    assert torch.equal(step(model, cache, state, prompt(5, seed=3)).hidden, wanted)


@pytest.mark.parametrize(
    "config", [TINY, ModelConfig.preset("toy"), ModelConfig.preset("flash")], ids=["tiny", "toy", "flash"]
)
def test_page_bytes_are_those_of_the_ledger(config):
    assert pages.page_bytes(Cache(config, cache_format="packed")) == PAGE * kv_bytes_per_token(config).value


def test_an_incomplete_page_is_not_exported():
    cache, state = filled(tiny(), prompt(PAGE + 5), packed=True)
    with pytest.raises(AssertionError, match="page 1 is not complete at 69 tokens"):
        pages.export_page(cache, state, 1)


# With a store


def test_a_prompt_comes_back_from_the_store(tmp_path):
    model, ids = tiny(), prompt(2 * PAGE + 20)
    cache, state = filled(model, ids, packed=True)
    with Store(tmp_path, pages.identity(model, cache)) as store:
        assert pages.persist(store, cache, state, ids.tolist(), replayed=False) == 2
        assert pages.persist(store, cache, state, ids.tolist(), replayed=True) == 0
        other = Cache(model.config, dtype=model.dtype, cache_format="packed")
        longer = torch.cat([ids[: PAGE + 7], prompt(80, seed=4)])
        new, replayed = pages.restore(store, other, longer.tolist())
        assert new.length == PAGE and not replayed
        for a, b in zip(held(cache, state), held(other, new), strict=True):
            assert torch.equal(a[: len(b)].view(torch.uint8), b.view(torch.uint8))
        nothing, replayed = pages.restore(store, other, prompt(80, seed=4).tolist())
        assert nothing.length == 0 and not nothing.entries and not replayed


@pytest.mark.parametrize("length", [2 * PAGE, 2 * PAGE + 1, 3 * PAGE - 1], ids=lambda n: f"prompt of {n}")
def test_a_hit_from_disk_is_replayed_like_a_hit_in_memory(tmp_path, length):
    model, ids = tiny(), prompt(3 * PAGE)
    cache, state = filled(model, ids, packed=True)
    with Store(tmp_path, pages.identity(model, cache)) as store:
        pages.persist(store, cache, state, ids.tolist(), replayed=False)
        other = Cache(model.config, dtype=model.dtype, cache_format="packed")
        new, _ = pages.restore(store, other, ids[:length].tolist())
    assert new.length == 2 * PAGE
    wanted = replay(model, cache, state, ids[:length], 2 * PAGE)
    assert torch.equal(prefill(model, other, new, ids[:length]), wanted)
    more = prompt(3, seed=8)
    assert torch.equal(step(model, other, new, more).hidden, step(model, cache, state, more).hidden)


def test_exact_reconstruction_upon_pages_from_disk_is_the_cold_run(tmp_path):
    model, ids = tiny(), prompt(3 * PAGE)
    cache, state = filled(model, ids[: 2 * PAGE], packed=True)
    with Store(tmp_path, pages.identity(model, cache)) as store:
        pages.persist(store, cache, state, ids.tolist(), replayed=False)
        other = Cache(model.config, dtype=model.dtype, cache_format="packed")
        new, _ = pages.restore(store, other, ids.tolist())
    reconstruct(model, other, new, ids)
    cold = prefill(model, cache, cache.new(), ids, cut=None)
    warm = prefill(model, other, new, ids, cut=None)
    torch.testing.assert_close(warm, cold, rtol=0, atol=1e-9)


def test_pages_computed_after_a_replay_say_so(tmp_path):
    model, ids = tiny(), prompt(2 * PAGE)
    cache, state = filled(model, ids, packed=True)
    with Store(tmp_path, pages.identity(model, cache)) as store:
        pages.persist(store, cache, state, ids[:PAGE].tolist(), replayed=False)
        pages.persist(store, cache, state, ids.tolist(), replayed=True)
        assert not pages.restore(store, cache, ids[:PAGE].tolist())[1]
        assert pages.restore(store, cache, ids.tolist())[1]


def test_a_cache_without_room_gives_back_what_it_took(tmp_path):
    model, ids = tiny(), prompt(3 * PAGE)
    cache, state = filled(model, ids, packed=True)
    small = Cache(model.config, dtype=model.dtype, cache_format="packed", limit=2)
    with Store(tmp_path, pages.identity(model, cache)) as store:
        pages.persist(store, cache, state, ids.tolist(), replayed=False)
        with pytest.raises(CacheFull):
            pages.restore(store, small, ids.tolist())
    assert len(small.entries.free) == small.entries.pages == 2


# Whose pages


def other_models(model: Model) -> dict[str, tuple[Model, Cache]]:
    def cache(m: Model, **how) -> tuple[Model, Cache]:
        return m, Cache(m.config, **{"dtype": m.dtype, "cache_format": "packed"} | how)

    weight, token_map = tiny(), tiny()
    with torch.no_grad():
        weight.layers[3].attn.wkv.weight[0, 0] += 1e-9
        token_map.token_map[7] += 1
    return {
        "weight": cache(weight),
        "token map": cache(token_map),
        "seed": cache(tiny(seed=1)),
        "dtype": cache(tiny(dtype=torch.float32)),
        "config": cache(tiny(rope_theta=20000.0)),
        "form": cache(model, cache_format="float"),
    }


def test_the_same_model_again_has_the_same_identity():
    cache = Cache(TINY, dtype=torch.float64, cache_format="packed")
    assert pages.identity(tiny(), cache) == pages.identity(tiny(), cache)


def test_other_models_and_forms_are_refused(tmp_path):
    model = tiny()
    Store(tmp_path, pages.identity(model, Cache(TINY, dtype=model.dtype, cache_format="packed"))).close()
    for name, (other, cache) in other_models(model).items():
        with pytest.raises(StoreError, match="layout = " if name == "form" else "model = "):
            Store(tmp_path, pages.identity(other, cache))


def test_a_fingerprint_is_computed_once_for_each_set_of_weights(monkeypatch):
    model = tiny()
    before = pages.fingerprint(model)
    calls = []
    monkeypatch.setattr(pages, "blake2b", lambda *a, real=pages.blake2b, **k: calls.append(1) or real(*a, **k))
    assert pages.fingerprint(model) == before and not calls
    with torch.no_grad():
        model.layers[0].attn.wkv.weight.mul_(2)
    changed = pages.fingerprint(model)
    assert changed != before and len(calls) == 1
    model.load_state_dict(tiny().state_dict(), assign=True)
    assert pages.fingerprint(model) == before and len(calls) == 2
