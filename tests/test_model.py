"""What must always hold of the network (design: any cut, any neighbour, causality, degenerate forms)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from minidsv41.cache import Cache
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.serve.generate import step
from tests.tiny import TINY, prompt, tiny

W = TINY.sliding_window
LENGTHS = sorted({1, 2, 3, W - 1, W, W + 1, 2 * W, 2 * W + 1, 9, 10, 37, 64, 65})


def whole(model: Model, ids: torch.Tensor) -> torch.Tensor:
    batch = Batch.equal(ids[None])
    with torch.no_grad():
        return model.logits(model(batch, SequenceKeys(model.config, batch)).hidden)


def in_chunks(model: Model, ids: torch.Tensor, sizes: list[int], *, packed: bool = False) -> torch.Tensor:
    cache = Cache(model.config, dtype=model.dtype, cache_format="packed" if packed else "float")
    state, out = cache.new(), []
    for part in ids.split(sizes):
        out.append(model.logits(step(model, cache, state, part).hidden))
    assert state.length == len(ids)
    return torch.cat(out)


@st.composite
def cuts(draw) -> list[int]:
    length = draw(st.sampled_from(LENGTHS))
    sizes = []
    while sum(sizes) < length:
        sizes.append(min(draw(st.integers(1, 2 * W + 2)), length - sum(sizes)))
    return sizes


@settings(max_examples=25, deadline=None)
@given(sizes=cuts(), seed=st.integers(0, 50))
def test_any_chunking_gives_the_logits_of_the_whole_prompt_in_float64(sizes: list[int], seed: int) -> None:
    model, ids = tiny(seed=seed % 3), prompt(sum(sizes), seed)
    torch.testing.assert_close(in_chunks(model, ids, sizes), whole(model, ids), rtol=0, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(sizes=cuts(), seed=st.integers(0, 50))
def test_any_chunking_holds_in_float32_without_rounding(sizes: list[int], seed: int) -> None:
    model, ids = tiny(dtype=torch.float32, qat=False, seed=seed % 3), prompt(sum(sizes), seed)
    reference = whole(model, ids)
    torch.testing.assert_close(
        in_chunks(model, ids, sizes), reference, rtol=0, atol=2e-4 * max(1, reference.abs().max().item())
    )


@settings(max_examples=10, deadline=None)
@given(sizes=cuts(), seed=st.integers(0, 50))
def test_packed_records_give_the_same_bits_as_rounded_values(sizes: list[int], seed: int) -> None:
    model, ids = tiny(seed=seed % 3), prompt(sum(sizes), seed)
    assert torch.equal(in_chunks(model, ids, sizes, packed=True), in_chunks(model, ids, sizes))


@settings(max_examples=10, deadline=None)
@given(parts=st.lists(st.integers(1, 14), min_size=2, max_size=4), seed=st.integers(0, 50))
def test_a_sequence_does_not_depend_on_its_neighbours(parts: list[int], seed: int) -> None:
    model = tiny()
    prompts = [prompt(2 * n, seed + i) for i, n in enumerate(parts)]
    cache = Cache(model.config, dtype=model.dtype)
    states = [cache.new() for _ in prompts]
    got = [[] for _ in prompts]
    for half in (0, 1):
        pieces = [p[: n + half * n][half * n :] for p, n in zip(prompts, parts, strict=True)]
        batch = Batch.ragged(pieces, [s.length for s in states])
        keys = cache.keys(states, batch)
        with torch.no_grad():
            logits = model.logits(model(batch, keys).hidden)
        keys.commit()
        for rows, piece in zip(got, logits.split(list(batch.lengths)), strict=True):
            rows.append(piece)
    for rows, ids in zip(got, prompts, strict=True):
        torch.testing.assert_close(torch.cat(rows), whole(model, ids), rtol=0, atol=1e-9)


@pytest.mark.parametrize("qat", [True, False])
def test_a_later_token_changes_nothing_before_it(qat: bool) -> None:
    model, ids = tiny(qat=qat), prompt(40)
    before = whole(model, ids)
    for at in (0, 1, W, 20, 21, 39):
        other = ids.clone()
        other[at] = (other[at] + 1) % TINY.vocab_size
        changed = (whole(model, other) - before).abs().amax(-1) > 1e-12
        assert not changed[:at].any()
        assert changed[at]


def test_gradients_reach_every_weight_of_the_backbone() -> None:
    model, ids = tiny(), torch.stack([prompt(30, s) for s in range(2)])
    batch, found = Batch.equal(ids), {}
    keys = SequenceKeys(model.config, batch)
    out = model(batch, keys, record=lambda name, value: found.setdefault(name, value))
    loss = F.cross_entropy(model.logits(out.hidden), ids.flatten())
    loss = loss + sum(v.sum() for n, v in found.items() if n.endswith((".idx.q", ".idx.w")))
    model.mtp.remember(out.features, batch, keys)
    at = torch.tensor([3, 9, 20])
    hidden = model.mtp.hidden(ids[0, at], torch.zeros(3, dtype=torch.int64), at - 1, model.embed, keys)
    loss = loss + model.mtp.base_logits(hidden, model.head).logsumexp(-1).sum()
    loss.backward()
    silent = {n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())}
    by_their_own_loss = ("indexer.wk.weight", "k_norm.weight", "markov_head", "confidence_head")
    last = f"layers.{TINY.num_hidden_layers - 1}"
    assert {n for n in silent if not any(part in n for part in by_their_own_loss)} == set(), last


def degenerate(model: Model) -> Model:
    """comb = I, post = 1, pre = one-hot on stream 0, whatever the streams hold."""
    n = model.config.hc_mult
    for block in model.layers:
        for part in ("attn", "ffn"):
            base = getattr(block, f"hc_{part}_base").data
            getattr(block, f"hc_{part}_scale").data.zero_()
            base[:n] = torch.tensor([60.0] + [-60.0] * (n - 1))
            base[n : 2 * n] = 0.0
            base[2 * n :] = 60 * torch.eye(n).flatten()
    return model


def test_with_trivial_mixing_the_network_is_a_plain_pre_norm_transformer() -> None:
    model, ids = degenerate(tiny(engram_layer_ids=(), engram_num_embeddings=(), hc_eps=1e-30)), prompt(30)
    batch = Batch.equal(ids[None])
    from minidsv41.model.attention import Context

    with torch.no_grad():
        ctx = Context(model.config, batch, SequenceKeys(model.config, batch), model.dtype)
        x = model.embed(ids)
        for block in model.layers:
            x = x + block.attn(block.attn_norm(x), ctx)
            x = x + block.ffn(block.ffn_norm(x), None, lambda *_: None)
        torch.testing.assert_close(model.logits(x), whole(model, ids), rtol=0, atol=1e-9)


def test_a_pool_that_holds_all_blocks_restricts_nothing() -> None:
    ids = prompt(60)
    model = tiny(candidate_topk_blocks=20)
    trace = model.trace(ids)
    layer = 6
    assert model.config.mode(layer) == "reindex"
    from minidsv41.ops.select import lowest_topk

    free = lowest_topk(trace[f"L{layer}.idx.scores"], model.config.index_topk)
    assert torch.equal(trace[f"L{layer}.idx.topk"], free)
    tight = tiny(candidate_topk_blocks=3).trace(ids)
    assert not torch.equal(tight[f"L{layer}.idx.topk"], lowest_topk(tight[f"L{layer}.idx.scores"], TINY.index_topk))


def test_with_k_at_least_n_sparse_attention_is_dense() -> None:
    model, ids = tiny(index_topk=64, candidate_topk_blocks=64, candidate_block_size=1), prompt(40)
    trace, c = model.trace(ids), model.config
    layer = 5
    entries, window, q = trace["L4.cmp.entry"], trace[f"L{layer}.attn.win_kv"], trace[f"L{layer}.attn.q"]
    i, j = torch.arange(40)[:, None], torch.arange(40)
    in_window = (j <= i) & (j > i - c.sliding_window)
    keys = torch.cat([window, entries])
    scores = torch.einsum("thd,nd->htn", q, keys) * c.head_dim**-0.5
    scores = scores.masked_fill(~torch.cat([in_window, j <= i], 1), -torch.inf)
    sink = model.layers[layer].attn.attn_sink[:, None, None].expand(-1, 40, 1)
    p = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    from minidsv41.model.rope import Rotation, frequencies, rotate

    turn = Rotation.at(torch.arange(40), frequencies(c, compressed=True), model.dtype)
    heads = rotate(torch.einsum("htn,nd->thd", p, keys), turn, inverse=True)
    torch.testing.assert_close(trace[f"L{layer}.attn.heads"], heads, rtol=0, atol=1e-10)


def test_decoder_floor_hides_earlier_window_rows_after_the_first_decoder_layer_only() -> None:
    model, ids = tiny(), prompt(30)
    floor = torch.where(torch.arange(30) >= 20, 20, 0)
    plain = Batch.equal(ids[None])
    cut = Batch.equal(ids[None], decoder_floor=floor)
    got = {}
    with torch.no_grad():
        for name, batch in (("plain", plain), ("cut", cut)):
            trace = {}
            model(batch, SequenceKeys(model.config, batch), record=lambda n, v, t=trace: t.__setitem__(n, v))
            got[name] = trace
    first = model.config.decoder_start
    assert torch.equal(got["plain"][f"L{first}.attn.out"], got["cut"][f"L{first}.attn.out"])
    differs = (got["plain"][f"L{first + 1}.attn.heads"] - got["cut"][f"L{first + 1}.attn.heads"]).abs().amax((1, 2)) > 0
    assert differs[20 : 20 + W - 1].all()
    assert not differs[:20].any()


def test_bfloat16_runs_and_keeps_its_wide_tensors() -> None:
    model = tiny(dtype=torch.bfloat16)
    assert model.layers[0].hc_attn_fn.dtype == torch.float32
    assert model.layers[0].attn.wq_a.weight.dtype == torch.bfloat16
    assert whole(model, prompt(20)).isfinite().all()


def test_window_pages_are_given_back() -> None:
    model, ids = tiny(), prompt(300)
    cache = Cache(model.config, dtype=model.dtype)
    state = cache.new()
    for part in ids.split(64):
        step(model, cache, state, part)
        assert len(state.windows) <= 2
    cache.release(state)
    assert len(cache.windows.free) == cache.windows.pages
    assert len(cache.entries.free) == cache.entries.pages
