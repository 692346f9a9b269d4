"""Speculative decoding: the same text, the same distribution, and no trace of a rejected row."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.cache.pool import PAGE, CacheFull
from minidsv41.cache.state import page_table
from minidsv41.ledger.scratch import scratch_bytes
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.serve import RequestError, generate, speak, speculative
from minidsv41.serve.schedule import Calibration, Schedule, Speed
from minidsv41.serve.scratch import ScratchKeys
from minidsv41.serve.speculative import Sampling, accept, advance, propose, residual, speculate, steps, verify
from minidsv41.tokens import load_tokenizer
from tests.tiny import TINY, prompt, tiny

W, BLOCK = TINY.sliding_window, TINY.dspark_block_size
LENGTHS = sorted({*range(1, W + 3), 2 * W, *range(PAGE - 4, PAGE + W + 2), *range(2 * PAGE - 4, 2 * PAGE + 2)})
SMALL = dict(vocab_size=8, engram_compressed_vocab_size=8)


@torch.no_grad()
def feed(model: Model, cache: Cache, states: list[State], parts: list[Tensor]) -> Tensor:
    """Plain steps of several sequences at once -> logits [S, V] after each."""
    batch = Batch.ragged(parts, [s.length for s in states])
    keys = cache.keys(states, batch)
    out = model(batch, keys)
    model.mtp.remember(out.features, batch, keys)
    keys.commit()
    return model.logits(out.hidden[batch.cu_seqlens[1:] - 1])


def filled(model: Model, prompts: list[Tensor], **kwargs) -> tuple[Cache, list[State]]:
    cache = Cache(model.config, dtype=model.dtype, **kwargs)
    states = [cache.new() for _ in prompts]
    feed(model, cache, states, prompts)
    return cache, states


def stored(cache: Cache) -> list[Tensor]:
    """Copies of everything in the pools."""
    tensors = [t for p in cache.pools.values() for t in (p.data, p.scales) if t is not None]
    return [t.clone() for t in tensors]


def live(cache: Cache, state: State) -> dict[tuple[str, int], Tensor]:
    """The rows that a later query can read, by kind and layer."""
    found = {}
    for (kind, layer), pool in cache.pools.items():
        ratio = 1 if kind == "window" else cache.config.ratio(layer)
        first = max(0, state.length - W + 1) if kind == "window" else 0
        table = page_table([state.windows if kind == "window" else state.entries], cache.device)
        index = torch.arange(first, state.length // ratio)
        found[kind, layer] = pool.rows(table).gather(torch.tensor(0), index)
    return found


def assert_same_state(a: tuple[Cache, State], b: tuple[Cache, State], atol: float) -> None:
    (one, s), (two, t) = a, b
    assert s.length == t.length
    assert s.windows.keys() == t.windows.keys() and s.entries.keys() == t.entries.keys()
    assert torch.equal(s.history, t.history)
    torch.testing.assert_close(s.open_pairs, t.open_pairs, rtol=0, atol=atol)
    torch.testing.assert_close(live(one, s), live(two, t), rtol=0, atol=atol)


@pytest.mark.parametrize("packed", [False, True], ids=["values", "packed"])
@pytest.mark.parametrize("shift", range(BLOCK + 1))
def test_after_k_accepted_drafts_the_state_is_that_of_plain_decoding(shift: int, packed: bool) -> None:
    model = tiny()
    texts = [prompt(n + BLOCK + 2, seed=n) for n in LENGTHS]
    heads = [t[:n] for t, n in zip(texts, LENGTHS, strict=True)]
    counts = [1 + (i + shift) % (BLOCK + 1) for i in range(len(LENGTHS))]
    cache, states = filled(model, heads, cache_format="packed" if packed else "float")
    scratch = ScratchKeys(cache, states)
    with torch.no_grad():
        batch, logits = verify(model, scratch, [t[n : n + BLOCK + 1] for t, n in zip(texts, LENGTHS, strict=True)])
    scratch.commit(batch, counts, model.token_map)
    reference, plain = filled(model, heads, cache_format="packed" if packed else "float")
    for step in range(BLOCK + 1):
        some = [i for i, count in enumerate(counts) if count > step]
        wanted = feed(model, reference, [plain[i] for i in some], [texts[i][LENGTHS[i] + step][None] for i in some])
        torch.testing.assert_close(torch.stack([logits[i][step] for i in some]), wanted, rtol=0, atol=1e-9)
    for s, t in zip(states, plain, strict=True):
        assert_same_state((cache, s), (reference, t), atol=1e-9)
    assert len(cache.windows.free) == len(reference.windows.free)
    ends = [t[n + count][None] for t, n, count in zip(texts, LENGTHS, counts, strict=True)]
    after, wanted = feed(model, cache, states, ends), feed(model, reference, plain, ends)
    torch.testing.assert_close(after, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("packed", [False, True], ids=["values", "packed"])
def test_rejected_rows_never_touch_the_pools(packed: bool) -> None:
    model = tiny()
    heads = [prompt(n, seed=n) for n in (4, 5, PAGE - 1, PAGE, 2 * PAGE - 2)]
    cache, states = filled(model, heads, cache_format="packed" if packed else "float")
    before, as_it_was = stored(cache), deepcopy((states, cache.windows.free, cache.entries.free))
    scratch = ScratchKeys(cache, states)
    anchors = prompt(len(heads), seed=9)
    with torch.no_grad():
        drafts = propose(model, scratch, anchors, [Sampling()] * len(heads))
        batch, _ = verify(
            model, scratch, [torch.cat([a[None], d]) for a, d in zip(anchors, drafts.tokens, strict=True)]
        )
    assert all(torch.equal(a, b) for a, b in zip(before, stored(cache), strict=True))
    assert str(as_it_was) == str((states, cache.windows.free, cache.entries.free))
    scratch.commit(batch, [1] * len(heads), model.token_map)
    twin, plain = filled(model, heads, cache_format="packed" if packed else "float")
    feed(model, twin, plain, list(anchors[:, None]))
    for a, b in zip(stored(cache), stored(twin), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0 if packed else 1e-9)


def test_a_full_cache_refuses_the_commit_and_keeps_the_sequence() -> None:
    model = tiny()
    cache, [state] = filled(model, [prompt(PAGE)], limit=1)
    before, scratch = stored(cache), ScratchKeys(cache, [state])
    with torch.no_grad():
        batch, _ = verify(model, scratch, [prompt(2)])
    with pytest.raises(CacheFull):
        scratch.commit(batch, [1], model.token_map)
    assert state.length == PAGE and all(torch.equal(a, b) for a, b in zip(before, stored(cache), strict=True))


def test_the_scratch_has_the_bytes_of_the_ledger() -> None:
    model = tiny(dtype=torch.float32)
    cache, states = filled(model, [prompt(7), prompt(12)], cache_format="packed")
    scratch = ScratchKeys(cache, states)
    with torch.no_grad():
        verify(model, scratch, [prompt(BLOCK + 1)] * 2)
    assert scratch.nbytes == 2 * scratch_bytes(TINY).value


def plain_greedy(model: Model, prompts: list[Tensor], n: int) -> list[list[int]]:
    cache = Cache(model.config, dtype=model.dtype)
    states = [cache.new() for _ in prompts]
    out = [feed(model, cache, states, prompts).argmax(-1)]
    while len(out) < n:
        out.append(feed(model, cache, states, list(out[-1][:, None])).argmax(-1))
    return torch.stack(out, 1).tolist()


def by_size(confidence: Tensor, most: list[int]) -> list[int]:
    """A plan whose lengths differ between requests and steps."""
    return [min(m, int(10 * abs(c)) % (BLOCK + 1)) for c, m in zip(confidence[:, 0].tolist(), most, strict=True)]


COSTLY = Schedule(Calibration((1.0,) * BLOCK), Speed((1, 1000), (1.0, 2.0)), budget=100)


@pytest.mark.parametrize(
    ("plan", "count"), [(None, 200), (by_size, 40), (COSTLY, 40)], ids=["all", "by size", "schedule"]
)
def test_greedy_text_is_that_of_plain_decoding(plan, count: int) -> None:
    model, new = tiny(**SMALL), 12
    prompts = [prompt(1 + seed % 23, seed, vocab=8) for seed in range(count)]
    wanted = plain_greedy(model, prompts, new)
    cache = Cache(model.config, dtype=model.dtype)
    states = [cache.new() for _ in prompts]
    texts = [[int(t)] for t in feed(model, cache, states, prompts).argmax(-1)]
    accepted, verified = set(), set()
    while open_ := [i for i, text in enumerate(texts) if len(text) < new]:
        gains = advance(
            model,
            cache,
            [states[i] for i in open_],
            torch.tensor([texts[i][-1] for i in open_]),
            [Sampling()] * len(open_),
            most=[new - len(texts[i]) - 1 for i in open_],
            plan=plan,
        )
        for i, gain in zip(open_, gains, strict=True):
            texts[i] += gain.tokens.tolist()
            accepted.add(len(gain.tokens) - 1)
            verified.add(gain.verified)
    assert texts == wanted
    assert accepted == verified == set(range(BLOCK + 1)) or (plan and {0, 1} <= accepted and len(verified) > 2)


def test_a_stream_ends_where_plain_generation_ends() -> None:
    model, ids = tiny(**SMALL), prompt(17, vocab=8)
    free = list(generate(model, ids, max_new=16))
    for n in (0, 1, 2, 3, 16):
        assert list(speculate(model, ids, max_new=n)) == free[:n]
    for token in set(free):
        stop = frozenset({token})
        assert list(speculate(model, ids, max_new=16, stop=stop)) == free[: free.index(token) + 1]
    short = tiny(**SMALL, max_position_embeddings=20)
    assert list(speculate(short, ids, max_new=50)) == list(generate(short, ids, max_new=50)) != []
    cache = Cache(model.config, dtype=model.dtype)
    stream = steps(model, ids, cache=cache)
    assert len(next(stream).tokens) == 1
    stream.close()
    assert len(cache.windows.free) == cache.windows.pages
    with pytest.raises(RequestError, match="temperature = -1"):
        speculate(model, ids, temperature=-1)


def test_speech_is_the_same_with_drafts() -> None:
    tokenizer = load_tokenizer()
    model = tiny(vocab_size=tokenizer.get_vocab_size())
    plain, drafted = ("".join(speak(model, tokenizer, "ROMEO.", max_new=30, speculative=s)) for s in (False, True))
    assert plain == drafted != ""


def test_a_broken_draft_is_no_traceback() -> None:
    model = tiny()
    model.mtp[-1].norm.weight.data[0] = torch.nan
    with pytest.raises(RequestError, match="NaN or infinity"):
        list(speculate(model, prompt(4)))


def test_a_sampled_request_does_not_depend_on_its_neighbours() -> None:
    model = tiny(**SMALL)
    prompts = [prompt(3 + n, seed=n, vocab=8) for n in range(5)]

    def run(chosen: list[int]) -> dict[int, list[int]]:
        cache, states = filled(model, [prompts[i] for i in chosen])
        sampling = [Sampling(temperature=1.0, generator=torch.Generator().manual_seed(i)) for i in chosen]
        texts = {i: [i] for i in chosen}
        for _ in range(5):
            anchors = torch.tensor([texts[i][-1] for i in chosen])
            for i, gain in zip(chosen, advance(model, cache, states, anchors, sampling), strict=True):
                texts[i] += gain.tokens.tolist()
        return texts

    together = run([0, 1, 2, 3, 4])
    for i in range(5):
        assert run([i])[i] == together[i]


def loud() -> Model:
    """A tiny vocabulary, and a Markov head that changes the draft's distribution a lot."""
    model = tiny(**SMALL)
    model.mtp[-1].markov_head.embed.weight.data *= 3
    model.mtp[-1].markov_head.head.weight.data *= 3
    model.head.weight.data *= 2
    return model


@torch.no_grad()
def target_pairs(model: Model, ids: Tensor, sampling: Sampling) -> Tensor:
    """[V, V] exact probabilities of the next two tokens behind ids [n]."""
    vocab = model.config.vocab_size
    batch = Batch.equal(torch.cat([ids.expand(vocab, -1), torch.arange(vocab)[:, None]], 1))
    logits = model.logits(model(batch, SequenceKeys(model.config, batch)).hidden).unflatten(0, (vocab, -1))
    first, second = sampling.distribution(logits[0, -2]), sampling.distribution(logits[:, -1])
    return first[:, None] * second


def p_value(seen: Tensor, wanted: Tensor) -> float:
    """Chi-square test of counts [K] against probabilities [K]; rare cells are joined."""
    n = seen.sum()
    assert not seen[wanted == 0].any()
    order = wanted.argsort(descending=True)
    seen, expected = seen[order].double(), wanted[order] * n
    common = expected >= 5
    seen = torch.cat([seen[common], seen[~common].sum()[None]])
    expected = torch.cat([expected[common], expected[~common].sum()[None]])
    if expected[-1] < 5:
        seen[-2], expected[-2] = seen[-2:].sum(), expected[-2:].sum()
        seen, expected = seen[:-1], expected[:-1]
    statistic = ((seen - expected).square() / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2, dtype=torch.float64), statistic / 2))


def sampled_pairs(model: Model, ids: Tensor, n: int, *, plan=None, **settings) -> tuple[Tensor, float]:
    """[V, V] counts of the next two tokens in n independent runs, and the share of first drafts kept."""
    sampling = [Sampling(**settings, generator=torch.Generator().manual_seed(i)) for i in range(n)]
    cache, states = filled(model, [ids[:-1]] * n)
    texts = [ids[-1:].tolist() for _ in range(n)]
    kept = 0
    for step in range(2):
        some = [i for i, text in enumerate(texts) if len(text) < 3]
        anchors = torch.tensor([texts[i][-1] for i in some])
        gains = advance(model, cache, [states[i] for i in some], anchors, [sampling[i] for i in some], plan=plan)
        for i, gain in zip(some, gains, strict=True):
            texts[i] += gain.tokens.tolist()
            kept += step == 0 and len(gain.tokens) > 1
    vocab = model.config.vocab_size
    cells = torch.tensor([text[1] * vocab + text[2] for text in texts])
    return cells.bincount(minlength=vocab * vocab), kept / n


RUNS = 1500
THRIFTY = Schedule(Calibration((1.0,) * BLOCK), Speed((1, 4 * RUNS), (1.0, 1.0)), budget=5 * RUNS // 2)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8}, {"temperature": 1.0, "plan": THRIFTY}],
    ids=["hot", "nucleus", "scheduled"],
)
def test_sampled_text_has_the_distribution_of_the_target(settings: dict) -> None:
    model, ids = loud(), prompt(6, seed=3, vocab=8)
    seen, kept = sampled_pairs(model, ids, RUNS, **settings)
    assert 0.1 < kept < 0.9
    settings.pop("plan", None)
    assert p_value(seen, target_pairs(model, ids, Sampling(**settings)).flatten()) > 0.001


def uncorrected(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    """Verify against the draft's distribution before the Markov head."""
    seen, draft = [], model.mtp.draft

    def keeping(*args, **kwargs):
        seen.append(draft(*args, **kwargs))
        return seen[-1]

    def wrong(model, scratch, anchors, sampling):
        drafts = propose(model, scratch, anchors, sampling)
        return drafts._replace(p=sampling[0].distribution(seen[-1].base_logits))

    monkeypatch.setattr(model.mtp, "draft", keeping)
    monkeypatch.setattr(speculative, "propose", wrong)


def no_residual(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    """Behind a rejection, draw from the target itself."""
    monkeypatch.setattr(speculative, "residual", lambda target, draft: target)


@pytest.mark.parametrize("fault", [uncorrected, no_residual])
def test_the_same_test_rejects_wrong_ways_to_verify(fault, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = loud(), prompt(6, seed=3, vocab=8)
    fault(monkeypatch, model)
    seen, _ = sampled_pairs(model, ids, RUNS, temperature=1.0)
    assert p_value(seen, target_pairs(model, ids, Sampling(temperature=1.0)).flatten()) < 0.001


def test_greedy_is_the_limit_of_sampling() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.1, 0.2]])
    cold = Sampling(temperature=1e-6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Sampling().distribution(logits), cold.distribution(logits))


def test_what_is_left_of_the_target() -> None:
    target, draft = torch.tensor([0.7, 0.3]).double(), torch.tensor([0.5, 0.5]).double()
    torch.testing.assert_close(residual(target, draft), torch.tensor([0.2, 0.0]).double())
    assert residual(target, target) is target
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()
    sure = torch.tensor([[0.0, 1.0]]).double()
    assert accept(target, sure, torch.tensor([1]), Sampling()).tolist() == [1, 0]
    assert accept(target, sure.flip(1), torch.tensor([0]), Sampling()).tolist() == [1]
