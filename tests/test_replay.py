"""Bounded replay: what a cut prompt computes, after any hit, however it is fed; and the exact reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minidsv41.cache import Cache, State
from minidsv41.cache.replay import first_rows, halo, reconstruct
from minidsv41.config import ModelConfig
from minidsv41.model import Model, SequenceKeys
from minidsv41.model.attention import Context
from minidsv41.model.transformer import Output
from minidsv41.ops import Batch
from minidsv41.serve import Prefill, RequestError, generate, prefill, replay
from minidsv41.serve.generate import step
from tests.test_model import whole
from tests.tiny import TINY, prompt, tiny

W = TINY.sliding_window
CUTS = ("late", "report")
ENTRIES = [("entry", o) for o in TINY.kv_source_layer_ids] + [("index", o) for o in TINY.kv_source_layer_ids]


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def held(model: Model, ids: torch.Tensor, *, packed: bool = False) -> tuple[Cache, State]:
    """A sequence that holds ids, computed exactly."""
    cache = Cache(model.config, dtype=model.dtype, cache_format="packed" if packed else "float")
    state = cache.new()
    if len(ids):
        step(model, cache, state, ids)
    return cache, state


def lose(cache: Cache, state: State, hit: int) -> None:
    """Keep a hit without windows; whatever reads a window row that is not computed again finds NaN."""
    cache.truncate(state, hit)
    for (kind, _), pool in cache.pools.items():
        if kind == "window":
            pool.data[pool.page :] = 0x7F if pool.packed else torch.nan


def fed(work: Prefill, sizes: list[int]) -> torch.Tensor:
    """Feed a prompt in chunks of these sizes, again and again."""
    while True:
        for size in sizes:
            if (hidden := work.run(size)) is not None:
                return hidden


def following(model: Model, cache: Cache, state: State, ids: torch.Tensor) -> torch.Tensor:
    return torch.cat([model.logits(step(model, cache, state, token).hidden) for token in ids[:, None]])


def drafts(model: Model, cache: Cache, state: State) -> torch.Tensor:
    """Logits of a draft after the last token, which reads every block's window."""
    keys = cache.keys([state], Batch.ragged([torch.empty(0, dtype=torch.int64)], [state.length]))
    zero, last = torch.tensor([0]), torch.tensor([state.length - 1])
    return model.mtp.draft(zero, zero, last, model.embed, model.head, keys).logits


def rows(cache: Cache, state: State, kind: str, layer: int, first: int, end: int) -> torch.Tensor:
    keys = cache.keys([state], Batch.ragged([torch.empty(0, dtype=torch.int64)], [state.length]))
    return keys.read(kind, layer).gather(torch.tensor([0]), torch.arange(first, end))


def masked(model: Model, ids: torch.Tensor, tail: int, cut: str) -> tuple[Output, SequenceKeys, Batch]:
    """All rows through all layers in one call, but from `tail` on the decoder reads no window row before it."""
    floor = torch.where(torch.arange(len(ids)) >= tail, tail, 0)
    batch = Batch.equal(ids[None])
    decoder = Batch.equal(ids[None], **{"floor" if cut == "report" else "decoder_floor": floor})
    keys = SequenceKeys(model.config, batch)
    with torch.no_grad():
        encoder = Context(model.config, batch, keys, model.dtype)
        streams, features = model.encode(encoder)
        ctx = Context(model.config, decoder, keys, model.dtype, encoder.selected, encoder.pools)
        out = model.decode(streams, ctx, features=features)
        model.mtp.remember(out.features, batch, keys)
    return out, keys, batch


VARIANTS = {
    "plain": {},
    "engram at the cut": dict(engram_layer_ids=(1, 4), engram_num_embeddings=()),
    "features across the cut": dict(dspark_target_layer_ids=(2, 4, 7)),
    "engram in the decoder alone": dict(engram_layer_ids=(5,), engram_num_embeddings=()),
    "pairs at the cut": dict(compress_ratios=(0, 2, 2, 2, 2, 2, 2, 2, 0, 0)),
    "no owner at the cut": dict(
        kv_source_layer_ids=(1, 3), index_source_layer_ids=(1, 3, 6), candidate_source_layer_id=3
    )
    | dict(compress_ratios=(0, 2, 2, 2, 2, 2, 2, 2, 0, 0)),
}


def changed(config: ModelConfig, changes: dict) -> dict:
    """With as many Engram rows as the changes ask for."""
    return changes | {"engram_num_embeddings": replace(config, **changes).with_engram_rows().engram_num_embeddings}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("variant", "length", "chunk"),
    [
        ("plain", W + 1, 64),
        ("plain", 2 * W, 5),
        ("plain", 70, 33),
        ("plain", 73, 1),
        *((name, 37, 4) for name in VARIANTS),
    ],
)
def test_a_cut_prompt_is_a_masked_one(variant: str, length: int, chunk: int, cut: str) -> None:
    model, ids = tiny(**changed(TINY, VARIANTS[variant])), prompt(length + 3)
    out, keys, batch = masked(model, ids, length - W, cut)
    cache, state = held(model, ids[:0])
    hidden = Prefill(model, cache, state, ids[:length], cut=cut).finish(chunk)
    assert len(hidden) == W
    close(hidden, out.hidden[length - W : length])
    close(following(model, cache, state, ids[length:]), model.logits(out.hidden)[length:])
    zero, last = torch.tensor([0]), torch.tensor([length + 2])
    wanted = model.mtp.draft(zero, zero, last, model.embed, model.head, keys).logits
    close(drafts(model, cache, state), wanted)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("turn", [W + 1, W + 2, 2 * W - 2, 2 * W - 1, 3 * W])
def test_a_long_turn_behind_live_windows_is_cut_alike(turn: int, cut: str) -> None:
    """Behind 65 tokens a page of old window rows ends in the middle of what the cut still reads."""
    model, length = tiny(), 65 + turn
    ids = prompt(length)
    wanted = masked(model, ids, length - W, cut)[0].hidden[-W:]
    for chunk in (1, 64):
        cache, state = held(model, ids[:65])
        close(Prefill(model, cache, state, ids, cut=cut).finish(chunk), wanted)


@pytest.mark.parametrize("cut", CUTS)
def test_packed_records_give_the_same_bits(cut: str) -> None:
    model, ids, found = tiny(), prompt(40), []
    for packed in (False, True):
        cache, state = held(model, ids[:21], packed=packed)
        lose(cache, state, 21)
        found.append(Prefill(model, cache, state, ids, cut=cut).finish(7))
    assert torch.equal(*found)


@pytest.mark.parametrize("cut", CUTS)
def test_the_draft_remembers_the_tail_alone(cut: str) -> None:
    model, ids, length = tiny(), prompt(40), 40
    _, keys, batch = masked(model, ids, length - W, cut)
    cache, state = held(model, ids[:0])
    prefill(model, cache, state, ids, cut=cut, chunk=9)
    for layer in range(TINY.num_hidden_layers, TINY.num_hidden_layers + TINY.num_nextn_predict_layers):
        ring = rows(cache, state, "window", layer, 0, length)
        assert not ring[: length - W].any()
        close(ring[length - W :], keys.read("window", layer).gather(torch.tensor([0]), batch.positions)[length - W :])


@settings(max_examples=20, deadline=None)
@given(data=st.data(), cut=st.sampled_from([*CUTS, None]), live=st.booleans(), seed=st.integers(0, 50))
def test_chunks_change_nothing(data, cut: str | None, live: bool, seed: int) -> None:
    length = data.draw(st.sampled_from([1, 2, W, W + 1, 2 * W + 1, 31, 64, 65, 75]))
    hit = data.draw(st.integers(0, length - 1 if live else length))
    sizes = data.draw(st.lists(st.integers(1, 2 * W + 2), min_size=1, max_size=4))
    model, ids = tiny(seed=seed % 3), prompt(length + 3, seed)

    def run(sizes: list[int]) -> tuple[torch.Tensor, ...]:
        cache, state = held(model, ids[:hit])
        if not live:
            lose(cache, state, hit)
        hidden = fed(Prefill(model, cache, state, ids[:length], cut=cut), sizes)
        draft = drafts(model, cache, state)
        return hidden, draft, following(model, cache, state, ids[length:])

    for a, b in zip(run(sizes), run([length]), strict=True):
        close(a, b)


@pytest.mark.parametrize("cut", [*CUTS, None])
@pytest.mark.parametrize("hit", [1, W, 20, 21, 63, 64])
def test_a_short_turn_behind_live_windows_is_exact(hit: int, cut: str | None) -> None:
    model, ids = tiny(), prompt(hit + W + 1)
    wanted = whole(model, ids)
    for length in (hit + 1, hit + W):
        cache, state = held(model, ids[:hit])
        hidden = Prefill(model, cache, state, ids[:length], cut=cut).finish(4)
        close(model.logits(hidden), wanted[hit:length])
    cache, state = held(model, ids[:hit])
    hidden = Prefill(model, cache, state, ids, cut=cut).finish(4)
    assert len(hidden) == (W + 1 if cut is None else W)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("length", [1, 2, W - 1, W])
def test_a_prompt_of_a_window_is_not_cut(length: int, cut: str) -> None:
    model, ids = tiny(), prompt(length)
    cache, state = held(model, ids[:0])
    close(model.logits(Prefill(model, cache, state, ids, cut=cut).finish(2)), whole(model, ids))


@pytest.mark.parametrize("length", [W, W + 3])
def test_the_rows_that_ran_through_all_layers_are_those_promised(length: int) -> None:
    model, ids = tiny(), prompt(length)
    for hit in range(length + 1):
        for cut in (*CUTS, None):
            cache, state = held(model, ids[:hit])
            lose(cache, state, hit)
            work = Prefill(model, cache, state, ids, cut=cut)
            assert work.start == max(0, hit - W)
            ran = length - work.start
            assert len(work.finish()) == (ran if cut is None else min(W, ran))
            assert state.length == length


@pytest.mark.parametrize("hit", [1, 2, W - 1, W, W + 1, 19, 20, 33, 34])
def test_what_one_window_layer_decides_is_exact_after_any_hit(hit: int) -> None:
    """The first owner stands behind one window layer, so its entries are exact if the open pair is."""
    model, ids = tiny(), prompt(36)
    exact = held(model, ids)
    cache, state = held(model, ids[:hit])
    lose(cache, state, hit)
    fed(Prefill(model, cache, state, ids), [1, 3])
    for kind in ("entry", "index"):
        close(rows(cache, state, kind, 1, 0, 18), rows(*exact, kind, 1, 0, 18))
    deeper = (rows(cache, state, "entry", 4, 0, 36) - rows(*exact, "entry", 4, 0, 36)).abs().max()
    assert deeper > 1e-3 if hit > W else deeper < 1e-9


@pytest.mark.parametrize("hit", [1, 2, W - 1, W])
def test_a_hit_within_the_window_is_exact(hit: int) -> None:
    model, ids = tiny(), prompt(40)
    cache, state = held(model, ids[:30])
    lose(cache, state, hit)
    close(model.logits(Prefill(model, cache, state, ids, cut=None).finish(7)), whole(model, ids))


def test_replay_takes_any_hit_of_a_sequence_that_went_elsewhere() -> None:
    model, ids, other = tiny(), prompt(50), prompt(70, seed=1)
    for hit in (0, 7, 33, 50):
        cache, state = held(model, torch.cat([ids[:hit], other]))
        fresh = held(model, ids[:hit])
        close(replay(model, cache, state, ids, hit), replay(model, *fresh, ids, hit, chunk=3))
        close(following(model, cache, state, other[:4]), following(model, *fresh, other[:4]))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("hit", [1, 2, W, 33, 34, 64, 65])
def test_entries_of_a_hit_are_never_written(hit: int, packed: bool) -> None:
    """They hold other bytes than a replay would compute, and still do afterwards."""
    model, ids = tiny(), prompt(hit + 20)
    for cut in (*CUTS, None):
        cache, state = held(model, ids[:hit], packed=packed)
        lose(cache, state, hit)
        for kind, owner in ENTRIES:
            pool = cache.pools[kind, owner]
            pool.data[: len(pool.data)] = pool.data ^ 0x11 if packed else -pool.data
        before = {key: rows(cache, state, *key, 0, hit // TINY.ratio(key[1])) for key in ENTRIES}
        fed(Prefill(model, cache, state, ids, cut=cut), [5])
        for key, value in before.items():
            assert torch.equal(rows(cache, state, *key, 0, len(value)), value)


@pytest.mark.parametrize("cut", CUTS)
def test_several_turns(cut: str) -> None:
    """Prompt, answer, windows lost, prompt, ... in one piece and in small ones."""
    model, ids = tiny(), prompt(100)

    def talk(chunk: int) -> torch.Tensor:
        cache, state = held(model, ids[:0])
        said = []
        for asked, answered in ((21, 24), (25, 31), (60, 61), (61, 62), (97, 100)):
            said.append(prefill(model, cache, state, ids[:asked], cut=cut, chunk=chunk)[None])
            kept = {key: rows(cache, state, *key, 0, asked // TINY.ratio(key[1])) for key in ENTRIES}
            said.append(following(model, cache, state, ids[asked:answered]))
            for key, value in kept.items():
                assert torch.equal(rows(cache, state, *key, 0, len(value)), value)
            lose(cache, state, answered)
        cache.release(state)
        assert len(cache.windows.free) == cache.windows.pages and len(cache.entries.free) == cache.entries.pages
        return torch.cat(said)

    close(talk(2), talk(512))


@pytest.mark.parametrize("cut", [*CUTS, None])
def test_a_window_as_long_as_the_prompt_makes_replay_exact(cut: str | None) -> None:
    model, ids = tiny(sliding_window=64), prompt(64)
    wanted = whole(model, ids)
    cache, state = held(model, ids[:0])
    for asked, answered, hit in ((20, 25, 25), (30, 33, 17), (40, 41, 41), (60, 64, 64)):
        close(prefill(model, cache, state, ids[:asked], cut=cut, chunk=9), wanted[asked - 1])
        close(following(model, cache, state, ids[asked:answered]), wanted[asked:answered])
        lose(cache, state, hit)


@pytest.mark.parametrize("shape", ["staircase", "rectangle"])
@pytest.mark.parametrize("hit", [43, 44, 70])
def test_the_halo_is_exact_and_one_token_less_is_not(hit: int, shape: str) -> None:
    model, ids = tiny(qat=False), prompt(hit + 9)
    wanted, errors = whole(model, ids)[hit:], []
    exact = held(model, ids)
    wanted_draft = drafts(model, *exact)
    for old in (halo(TINY), halo(TINY) - 1):
        cache, state = held(model, ids[:hit])
        lose(cache, state, hit)
        reconstruct(model, cache, state, ids, shape=shape, old=old)
        logits = model.logits(Prefill(model, cache, state, ids, cut=None).finish(3))
        errors.append((logits - wanted).abs().max().item())
    assert errors[0] < 1e-12 and errors[1] > 1e-10, errors
    cache, state = held(model, ids[:hit])
    lose(cache, state, hit)
    reconstruct(model, cache, state, ids, shape=shape)
    Prefill(model, cache, state, ids, cut=None).finish()
    close(drafts(model, cache, state), wanted_draft)


@pytest.mark.parametrize("hit", [1, 2, 5, W, 17, 39, 40, 41, 42, 65])
@pytest.mark.parametrize("shape", ["staircase", "rectangle"])
def test_reconstruction_of_any_hit_with_rounding(hit: int, shape: str) -> None:
    model, ids = tiny(), prompt(hit + 5)
    cache, state = held(model, ids[:hit])
    before = {key: rows(cache, state, *key, 0, hit // TINY.ratio(key[1])) for key in ENTRIES}
    lose(cache, state, hit)
    reconstruct(model, cache, state, ids, shape=shape)
    for key, value in before.items():
        assert torch.equal(rows(cache, state, *key, 0, len(value)), value)
    close(following(model, cache, state, ids[hit:]), whole(model, ids)[hit:])


def test_a_staircase_runs_the_rows_that_a_later_layer_needs() -> None:
    assert halo(TINY) == 8 * 5
    assert first_rows(TINY, 100) == [60, 65, 70, 75, 80, 85, 90, 95]
    assert first_rows(TINY, 100, shape="rectangle") == [60] * 8
    assert first_rows(TINY, 12) == [0, 0, 0, 0, 0, 0, 2, 7]
    assert halo(ModelConfig()) == 40 * 127


def test_generation_cuts_its_prompt() -> None:
    model, ids = tiny(), prompt(40)
    first = {cut: next(generate(model, ids, cut=cut, max_new=1)) for cut in (*CUTS, None)}
    for cut, token in first.items():
        out = masked(model, ids, 40 - W, cut)[0].hidden if cut else None
        logits = whole(model, ids)[-1] if cut is None else model.logits(out[-1:])[0]
        assert token == int(logits.argmax())
    assert next(generate(model, ids, max_new=1)) == first["late"]


def test_a_cut_that_is_not_possible_is_refused() -> None:
    with pytest.raises(RequestError, match="cut = 'early': allowed are late, report, or None"):
        generate(tiny(), prompt(4), cut="early")
    owners = dict(kv_source_layer_ids=(1, 3, 4, 6), candidate_source_layer_id=6)
    with pytest.raises(RequestError, match=r"layer 6 owns entries, so it must run on every row"):
        generate(tiny(**owners), prompt(4))
    assert list(generate(tiny(**owners), prompt(4), cut=None, max_new=1))


def test_a_prompt_that_the_sequence_holds_leaves_nothing_to_run() -> None:
    model, ids = tiny(), prompt(20)
    cache, state = held(model, ids)
    with pytest.raises(RequestError, match="prompt of 20 tokens: the sequence holds 20 already"):
        prefill(model, cache, state, ids)
    lose(cache, state, 20)
    assert prefill(model, cache, state, ids).isfinite().all()
