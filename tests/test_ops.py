"""The operations against the formulas of the specification, written out."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minidsv41.ops import Batch, Next, Pool, PoolSize, Rows, index_scores, index_select, seam, sparse_attention
from minidsv41.ops.seam import sinkhorn
from minidsv41.ops.select import lowest_topk


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, -torch.inf]), min_size=9, max_size=9), min_size=1),
    k=st.integers(1, 12),
)
def test_topk_takes_the_lowest_index_among_equals(scores: list[list[float]], k: int) -> None:
    got = lowest_topk(torch.tensor(scores), k)
    for row, chosen in zip(scores, got.tolist(), strict=True):
        ranked = sorted((i for i, s in enumerate(row) if s > -torch.inf), key=lambda i: (-row[i], i))[:k]
        assert [c for c in chosen if c >= 0] == sorted(ranked)
        assert chosen[len(ranked) :] == [-1] * (k - len(ranked))


def test_topk_stays_within_k_where_scores_are_read_otherwise_than_their_threshold(monkeypatch):
    """As compiled code may: the k-th best is rounded down, so that more than k beat it."""
    scores = torch.tensor([[5.0, 1.0, 4.0, 3.0, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    exact = torch.Tensor.topk

    def rounded(*args, **kwargs) -> SimpleNamespace:
        return SimpleNamespace(values=exact(*args, **kwargs).values - 2.5)

    monkeypatch.setattr(torch.Tensor, "topk", rounded)
    assert lowest_topk(scores, 2).tolist() == [[0, 2], [1, 2]]


def example(seed: int, lengths: tuple[int, ...] = (7, 7, 11)) -> tuple:
    g = torch.Generator().manual_seed(seed)
    starts = tuple(range(3, 3 + len(lengths)))
    batch = Batch(torch.zeros(sum(lengths), dtype=torch.int64), starts, lengths)
    page, pages = 4, 5
    table = torch.randperm(pages * len(lengths), generator=g).view(len(lengths), pages)
    keys = Rows(torch.randn(table.numel() * page, 8, generator=g, dtype=torch.float64), table, page)
    q = torch.randn(sum(lengths), 2, 8, generator=g, dtype=torch.float64)
    w = torch.randn(sum(lengths), 2, generator=g, dtype=torch.float64)
    return batch, keys, q, w


def by_hand(batch: Batch, keys: Rows, q: torch.Tensor, w: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.full((len(q), n), -torch.inf, dtype=q.dtype)
    for t in range(len(q)):
        s = int(batch.seq[t])
        for j in range(int(batch.positions[t]) + 1):
            row = keys.data[keys.table[s, j // keys.page] * keys.page + j % keys.page]
            out[t, j] = sum(w[t, h] * max(0.0, float(q[t, h] @ row)) for h in range(q.shape[1]))
    return out


def test_scores_are_weighted_rectified_dot_products_of_the_right_sequence() -> None:
    batch, keys, q, w = example(0)
    n = batch.longest(1)
    got = index_scores(q, w, keys, batch.visible(1), batch, n)
    torch.testing.assert_close(got, by_hand(batch, keys, q, w, n), rtol=0, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), k=st.integers(1, 6), blocks=st.integers(2, 6), size=st.integers(1, 4))
def test_pool_is_built_from_block_maxima_and_restricts_a_later_choice(
    seed: int, k: int, blocks: int, size: int
) -> None:
    batch, keys, q, w = example(seed)
    n, visible = batch.longest(1), batch.visible(1)
    scores = index_scores(q, w, keys, visible, batch, n)
    topk, pool = index_select(q, w, keys, visible, k, PoolSize(blocks, size), batch=batch, n=n)
    assert torch.equal(topk, lowest_topk(scores, k))
    for t in range(len(q)):
        groups = [float(scores[t, b : b + size].max()) for b in range(0, n, size)]
        groups[(int(visible[t]) - 1) // size] = torch.inf
        want = sorted(
            sorted((b for b, s in enumerate(groups) if s > -torch.inf), key=lambda b: (-groups[b], b))[:blocks]
        )
        assert [b for b in pool.blocks[t].tolist() if b >= 0] == want
    other = torch.flip(q, [0])
    inside, same = index_select(other, w, keys, visible, k, pool, batch=batch, n=n)
    assert same is pool
    masked = index_scores(other, w, keys, visible, batch, n).masked_fill(~pool.mask(n), -torch.inf)
    assert torch.equal(inside, lowest_topk(masked, k))


def test_a_first_token_that_sees_no_entry_selects_nothing() -> None:
    batch = Batch(torch.zeros(1, dtype=torch.int64), (0,), (1,))
    keys = Rows(torch.zeros(0, 8), torch.zeros(1, 1, dtype=torch.int64), 1)
    q, w = torch.randn(1, 2, 8), torch.randn(1, 2)
    topk, pool = index_select(q, w, keys, batch.visible(2), 3, PoolSize(2, 2), batch=batch, n=0)
    assert topk.tolist() == [[-1, -1, -1]]
    assert pool.blocks.tolist() == [[-1, -1]]


def test_attention_is_one_softmax_with_the_sink_in_the_denominator() -> None:
    g = torch.Generator().manual_seed(1)
    table = torch.zeros(1, 1, dtype=torch.int64)
    window = Rows(torch.randn(6, 8, generator=g, dtype=torch.float64), table, 6)
    entries = Rows(torch.randn(5, 8, generator=g, dtype=torch.float64), table, 5)
    q = torch.randn(1, 3, 8, generator=g, dtype=torch.float64)
    sink = torch.randn(3, generator=g, dtype=torch.float64)
    batch = Batch(torch.zeros(1, dtype=torch.int64), (5,), (1,), floor=torch.tensor([3]))
    got = sparse_attention(q, window, entries, torch.tensor([[0, 4, -1]]), sink, batch.span(4))
    keys = torch.cat([window.data[3:6], entries.data[[0, 4]]])  # window of 4 would start at 2, the floor says 3
    for h in range(3):
        e = [float((q[0, h] @ k / 8**0.5).exp()) for k in keys]
        want = sum(a * k for a, k in zip(e, keys, strict=True)) / (sum(e) + float(sink[h].exp()))
        torch.testing.assert_close(got[0, h], want, rtol=0, atol=1e-12)


def test_a_query_without_keys_gives_zero() -> None:
    table = torch.zeros(1, 1, dtype=torch.int64)
    rows = Rows(torch.randn(4, 8), table, 4)
    batch = Batch(torch.zeros(1, dtype=torch.int64), (2,), (1,), floor=torch.tensor([3]))
    got = sparse_attention(torch.randn(1, 2, 8), rows, rows, torch.tensor([[-1]]), torch.zeros(2), batch.span(4))
    assert torch.equal(got, torch.zeros_like(got))


def test_tiled_attention_equals_untiled(monkeypatch) -> None:
    import minidsv41.ops.attention as attention

    batch, keys, q, _ = example(3)
    topk = torch.randint(-1, 5, (len(q), 4), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want = sparse_attention(q, keys, keys, topk, torch.zeros(2), batch.span(5))
        monkeypatch.setattr(attention, "TILE", 4 * 9 * 8)
        got = sparse_attention(q, keys, keys, topk, torch.zeros(2), batch.span(5))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_selection_in_tiles_equals_selection_at_once(monkeypatch) -> None:
    import minidsv41.ops.select as select

    batch, keys, q, w = example(4, lengths=(9, 9, 5, 1))
    n, visible = batch.longest(1), batch.visible(1)
    want, pool = index_select(q, w, keys, visible, 3, PoolSize(2, 3), batch=batch, n=n)
    inside, _ = index_select(q.flip(0), w, keys, visible, 2, pool, batch=batch, n=n)
    monkeypatch.setattr(select, "TILE", 30)
    monkeypatch.setattr(select, "KEYS", 4)
    got, again = index_select(q, w, keys, visible, 3, PoolSize(2, 3), batch=batch, n=n)
    assert torch.equal(got, want)
    assert torch.equal(again.blocks, pool.blocks)
    assert torch.equal(index_select(q.flip(0), w, keys, visible, 2, Pool(*pool), batch=batch, n=n)[0], inside)


def test_seam_follows_the_recurrence() -> None:
    g = torch.Generator().manual_seed(5)
    n, width, t = 4, 6, 3

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    into = Next(draw(n * (n + 2), n * width), draw(n * (n + 2)), draw(3), draw(width), 1e-20, 1e-6, 20)
    X, F, pre, post, comb = draw(t, n, width), draw(t, width), draw(t, n), draw(t, n), draw(t, n, n)
    X2, x, pre2, post2, comb2 = seam(X, F, pre, post, comb, into)
    for r in range(t):
        for j in range(n):
            want = post[r, j] * F[r] + sum(comb[r, i, j] * X[r, i] for i in range(n))
            torch.testing.assert_close(X2[r, j], want)
        u = sum(pre[r, i] * X2[r, i] for i in range(n))
        torch.testing.assert_close(x[r], into.norm * u / (u.square().mean() + 1e-20).sqrt())
        flat = X2[r].flatten()
        z = into.fn @ flat / (flat.square().mean() + 1e-20).sqrt()
        torch.testing.assert_close(pre2[r], (into.scale[0] * z[:n] + into.base[:n]).sigmoid() + 1e-6)
        torch.testing.assert_close(post2[r], 2 * (into.scale[1] * z[n : 2 * n] + into.base[n : 2 * n]).sigmoid())
        c = into.scale[2] * z[2 * n :] + into.base[2 * n :]
        c = c.view(n, n).softmax(1) + 1e-6
        c = c / (c.sum(0, keepdim=True) + 1e-6)
        for _ in range(19):
            c = c / (c.sum(1, keepdim=True) + 1e-6)
            c = c / (c.sum(0, keepdim=True) + 1e-6)
        torch.testing.assert_close(comb2[r], c)


def test_sinkhorn_is_exact_on_one_side_only() -> None:
    logits = 8 * torch.randn(1000, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    c = sinkhorn(logits, 20, 1e-6)
    assert (c.sum(-2) - 1).abs().max() < 1e-5
    assert (c.sum(-1) - 1).abs().max() > 1e-2


def test_attention_gradients_are_those_of_finite_differences() -> None:
    g = torch.Generator().manual_seed(7)
    table = torch.tensor([[0], [1]])
    topk = torch.tensor([[0, 2, -1], [-1, -1, -1], [1, 3, 4], [0, 1, 2], [2, 4, -1]])
    batch = Batch(torch.zeros(5, dtype=torch.int64), (0, 1), (2, 3))
    shapes = ((5, 2, 4), (12, 4), (10, 4), (2,))
    inputs = [torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes]

    def run(q, window, entries, sink):
        return sparse_attention(q, Rows(window, table, 6), Rows(entries, table, 5), topk, sink, batch.span(3))

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradcheck(
        lambda q, window, sink: sparse_attention(q, Rows(window, table, 6), None, None, sink, batch.span(3)),
        [inputs[0], inputs[1], inputs[3]],
    )
