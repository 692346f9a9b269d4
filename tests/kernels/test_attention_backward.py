"""Gradients of attention by kernels are those of autograd through the plain version."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from minidsv41.formats import WINDOW  # noqa: E402
from minidsv41.kernels import attention  # noqa: E402
from minidsv41.kernels.attention_backward import Tile, attention_backward  # noqa: E402
from minidsv41.kernels.bench import attention_backward as bench  # noqa: E402
from minidsv41.kernels.launch import INTERPRETED, Unsupported  # noqa: E402
from minidsv41.kernels.window_backward import WindowTile  # noqa: E402
from minidsv41.ops import Batch, Rows, Span, sparse_attention  # noqa: E402
from minidsv41.ops.attention import gather  # noqa: E402

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # of the largest value; 1 % is 2.5 units of bf16
SMALL = Tile(16, 16, 4, 1, window=WindowTile(16, 16, 4, 1))


class Problem:
    """Random queries, rows in pages out of order, and a selection without repetition in one query."""

    def __init__(self, lengths, *, starts=None, heads=4, width=64, window=8, k=5, page=None, floor=None,
                 dtype=torch.float32, device="cpu", seed=0):  # fmt: skip
        g = torch.Generator().manual_seed(seed)
        count, starts = len(lengths), starts or [0] * len(lengths)
        tokens = sum(lengths)
        longest = max(a + n for a, n in zip(starts, lengths, strict=True))
        batch = Batch.ragged([torch.zeros(n, dtype=torch.long) for n in lengths], starts)
        span = replace(batch, floor=floor).span(window)
        self.span = Span(span.seq.to(device), span.first.to(device), span.last.to(device), window)
        self.window = rows(count, longest, page or longest, width, dtype, device, g)
        entries = max(1, longest // 2)
        self.entries = rows(count, entries, page or entries, width, dtype, device, g) if k else None
        self.topk = chosen(batch.visible(2), entries, k, g).to(device) if k else None
        self.q = torch.randn(tokens, heads, width, generator=g).to(device, dtype)
        self.grad = torch.randn(tokens, heads, width, generator=g).to(device, dtype)
        self.sink = torch.randn(heads, generator=g).to(device)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output, and the logarithm of the softmax's denominator, in float64."""
        exact = exactly(self)
        keys, missing = gather(exact.window, exact.entries, self.topk, self.span, slice(None))
        scores = exact.q @ keys.transpose(1, 2) * self.q.shape[-1] ** -0.5
        scores = scores.masked_fill(missing[:, None], -torch.inf)
        lse = torch.cat([scores, exact.sink[None, :, None].expand(len(scores), -1, 1)], -1).logsumexp(-1)
        return (scores - lse[..., None]).exp() @ keys, lse

    def kernel(self, tile=SMALL):
        out, lse = self.forward()
        return attention_backward(
            self.grad, self.q, out.to(self.q.dtype), lse.float(), self.window, self.entries, self.topk,
            self.sink, self.span, tile=tile,
        )  # fmt: skip

    def autograd(self) -> list[torch.Tensor]:
        exact = exactly(self)
        inputs = [exact.q, exact.window.data, *([exact.entries.data] if self.entries else []), exact.sink]
        for x in inputs:
            x.requires_grad_()
        out = sparse_attention(exact.q, exact.window, exact.entries, self.topk, exact.sink, self.span)
        return torch.autograd.grad(out, inputs, self.grad.double())


class exactly:
    """The same problem in float64."""

    def __init__(self, problem: Problem) -> None:
        self.q, self.sink = problem.q.double(), problem.sink.double()
        self.window = replace(problem.window, data=problem.window.data.double())
        self.entries = problem.entries and replace(problem.entries, data=problem.entries.data.double())


def rows(count, longest, page, width, dtype, device, g) -> Rows:
    pages = -(-longest // page)
    table = torch.randperm(count * pages, generator=g).reshape(count, pages)
    data = torch.randn(count * pages * page, width, generator=g).to(device, dtype)
    return Rows(data, table.to(device), page)


def chosen(visible, entries, k, g) -> torch.Tensor:
    """[T, k] different visible entries, in random places among -1."""
    order = torch.rand(len(visible), max(entries, k), generator=g)
    order[:, :entries].masked_fill_(torch.arange(entries) >= visible[:, None], 2.0)
    order[:, entries:] = 2.0
    value, index = order.topk(k, largest=False)
    index = index.masked_fill(value > 1.0, -1)
    return index.gather(1, torch.rand(index.shape, generator=g).argsort(1))


def assert_same(problem: Problem, tile=SMALL) -> None:
    tolerance = TOLERANCE[problem.q.dtype]
    found = [x for x in problem.kernel(tile) if x is not None]
    for mine, exact in zip(found, problem.autograd(), strict=True):
        assert mine.shape == exact.shape and mine.isfinite().all()
        error = (mine.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-3)
        assert error < tolerance, error


CASES = {
    "one token": dict(lengths=[1]),
    "odd length": dict(lengths=[21], k=7, window=11),
    "ragged, pages out of order": dict(lengths=[9, 1, 14], page=4),
    "equal sequences, a page each": dict(lengths=[12, 12], seed=3),
    "continued sequences": dict(lengths=[6, 7], starts=[21, 3], page=8),
    "a window longer than a tile": dict(lengths=[26], window=19, k=3),
    "window only": dict(lengths=[19, 6], k=0, page=5),
    "a window of one row": dict(lengths=[7], window=1, k=2),
    "more entries than there are": dict(lengths=[20], k=18),
    "odd heads and width": dict(lengths=[11], heads=5, width=40),
    "many heads": dict(lengths=[5], heads=40, width=16),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_plain_version(case, dtype, device):
    assert_same(Problem(**CASES[case], dtype=dtype, device=device))


def test_released_widths(device):
    assert_same(Problem([3], heads=64, width=512, k=20, window=8, dtype=torch.bfloat16, device=device), tile=None)


def test_released_widths_in_float32(device):
    assert_same(Problem([2], heads=64, width=512, k=3, window=4, device=device), tile=None)


def test_no_window_row_before_the_floor(device):
    floor = torch.tensor([0] * 6 + [6] * 10)
    problem = Problem([16], floor=floor, device=device)
    assert_same(problem)
    assert (problem.kernel().window[:6].double() - problem.autograd()[1][:6]).abs().max() < 1e-5


def test_rows_nobody_reads_have_gradient_zero(device):
    problem = Problem([24], window=4, k=3, page=2, floor=torch.full((24,), 10), device=device)
    problem.topk.masked_fill_(problem.topk % 3 == 1, -1)
    assert_same(problem)
    read = torch.zeros(len(problem.entries.data), dtype=torch.bool, device=device)
    used = problem.topk[problem.topk >= 0]
    read[problem.entries.locate(torch.zeros_like(used), used)] = True
    found = problem.kernel()
    assert not found.entries[~read].any() and found.entries[read].any(1).all()
    early = problem.window.locate(torch.zeros(10, dtype=torch.long, device=device), torch.arange(10, device=device))
    assert not found.window[early].any()


def test_one_entry_that_all_queries_choose(device):
    problem = Problem([33], k=2, device=device)
    problem.topk[:] = torch.tensor([0, -1])
    assert_same(problem)


@pytest.mark.parametrize("nothing", ["no entry", "no choice", "no topk"])
def test_what_is_not_chosen_from_has_gradient_zero(nothing, device):
    problem = Problem([5], k=2, device=device)
    if nothing == "no entry":
        problem.topk[:] = -1
        problem.entries = replace(problem.entries, data=problem.entries.data[:0])
    else:
        problem.topk = problem.topk[:, :0] if nothing == "no choice" else None
    found = problem.kernel()
    assert not found.entries.any()
    problem.entries = problem.topk = None
    for mine, exact in zip((found.q, found.window, found.sink), problem.autograd(), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)


def test_a_query_without_keys_has_no_gradient(device):
    problem = Problem([6], k=4, device=device)
    problem.span.first[2] = problem.span.last[2] + 1
    problem.topk[2] = -1
    assert_same(problem)
    assert not problem.kernel().q[2].any()


def test_pages_that_do_not_exist_are_left_alone(device):
    problem = Problem([9, 3], page=4, device=device)
    problem.window.table[1, 1:] = -1
    assert_same(problem)


def test_sequences_may_share_a_page(device):
    problem = Problem([8, 8], page=8, device=device)
    problem.window.table[1] = problem.window.table[0]
    assert_same(problem)


def test_every_element_is_written(device, monkeypatch):
    problem = Problem([13], heads=5, width=40, device=device)
    plain = torch.empty

    def poisoned(*args, **kwargs):
        made = plain(*args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made.fill_(1 << 30)

    expected = problem.kernel()
    monkeypatch.setattr(torch, "empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", lambda x, **kwargs: poisoned(x.shape, dtype=x.dtype, device=x.device))
    for mine, before in zip(problem.kernel(), expected, strict=True):
        torch.testing.assert_close(mine, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "tile", [Tile(32, 16, 4, 2, WindowTile(32, 32, 4, 1)), Tile(16, 32, 4, 1, WindowTile(16, 64, 4, 1))], ids=str
)
def test_any_tile_gives_the_same(tile, device):
    assert_same(Problem([21, 4], heads=20, window=18, k=9, device=device), tile)


def test_gradients_are_not_biased(device):
    """Rounding to bfloat16 cancels over many terms. The interpreter truncates what it stores: half a unit at most."""
    problem = Problem([32], k=10, window=16, dtype=torch.bfloat16, device=device)
    bound = 4e-3 if INTERPRETED else 1e-3
    for mine, exact in list(zip(problem.kernel(), problem.autograd(), strict=True))[:3]:
        lean = ((mine.double() - exact) * exact.sign()).mean() / exact.abs().mean()
        assert abs(lean) < bound


def test_gradients_without_atomics_repeat_bit_for_bit(device):
    problem = Problem([17], k=8, dtype=torch.bfloat16, device=device)
    once, again = problem.kernel(), problem.kernel()
    assert all(torch.equal(getattr(once, name), getattr(again, name)) for name in ("q", "window", "sink"))


REFUSED = {
    "window.format": dict(window=lambda p: replace(p.window, format=WINDOW)),
    "window.data.shape": dict(window=lambda p: replace(p.window, data=p.window.data[:, :32].contiguous())),
    "entries = None": dict(entries=lambda p: None),
    "lse.dtype": dict(lse=lambda p: torch.zeros(4, 4, dtype=torch.float64)),
    "out.shape": dict(out=lambda p: p.q[:3]),
    "dtype torch.float16": dict(q=lambda p: p.q.half()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_supported_is_refused(message, device):
    p = Problem([4], device=device)
    given = dict(grad=p.grad, q=p.q, out=p.q, lse=torch.zeros(4, 4), window=p.window, entries=p.entries, topk=p.topk,
                 sink=p.sink, span=p.span)  # fmt: skip
    given |= {name: make(p) for name, make in REFUSED[message].items()}
    with pytest.raises(Unsupported, match=message):
        attention_backward(**given)


@pytest.mark.parametrize("case", [dict(lengths=[9, 4]), dict(lengths=[13], k=0)], ids=["sparse", "window"])
def test_forward_and_backward_join(case, device):
    problem = Problem(**case, device=device)
    rows = [r for r in (problem.window, problem.entries) if r]
    inputs = [problem.q, *(r.data for r in rows), problem.sink]
    for x in inputs:
        x.requires_grad_()
    out = attention.sparse_attention(problem.q, *(rows + [None])[:2], problem.topk, problem.sink, problem.span)
    found = torch.autograd.grad(out, inputs, problem.grad)
    for x in inputs:
        x.requires_grad_(False)
    torch.testing.assert_close(out.double(), problem.forward()[0], rtol=1e-4, atol=1e-5)
    for mine, exact in zip(found, problem.autograd(), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)


def test_codes_have_no_gradient(device):
    problem = Problem([4], device=device)
    coded = replace(problem.window, format=WINDOW)
    with pytest.raises(Unsupported, match="window.format"):
        attention.sparse_attention(
            problem.q.requires_grad_(), coded, problem.entries, problem.topk, problem.sink, problem.span
        )


@pytest.mark.parametrize("k", [4, 0])
def test_the_bench_compares_equals(k, device):
    made = bench.case(12, 16, 32, 8, k).build(device, 0)
    assert made.error() < made.tolerance
    x = bench.inputs(12, 16, 32, 8, k, device=device, seed=0)
    runs = [made.runs["kernel with forward"], made.runs["plain with forward"]]
    runs.append(lambda: bench.both(lambda *given: bench.at_once(bench.attend, *given), x))
    for found in zip(*(run() for run in runs), strict=True):
        for one in found[1:]:
            assert (found[0] - one).float().norm() < 0.02 * one.float().norm()
