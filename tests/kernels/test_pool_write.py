"""Pairs come out of the kernel as the plain version pools and stores them, whatever is cut where."""

import pytest
import torch

pytest.importorskip("triton")

from minidsv41 import ops  # noqa: E402
from minidsv41.formats import MAIN  # noqa: E402
from minidsv41.kernels.kv_write import pool_write  # noqa: E402
from minidsv41.kernels.launch import Unsupported, recorded  # noqa: E402
from minidsv41.model.rope import Rotation  # noqa: E402
from minidsv41.ops import Batch, Rows, closed  # noqa: E402

EPS, PAGE = 1e-20, 4


def case(starts, lengths, D, R, device, generator, *, dtype=torch.float32):
    """pairs, before, norm, cos, sin, into, batch of a ragged call; logical pages lie in the pool in no order."""
    T, S = sum(lengths), len(lengths)
    batch = Batch(torch.zeros(T, dtype=torch.int64, device=device), starts, lengths)
    pairs, before = (2 * torch.randn(k, 2, D, generator=generator) for k in (T, S))
    norm = 1 + 0.3 * torch.randn(D, generator=generator)
    frequencies = torch.rand(R // 2, generator=generator, dtype=torch.float64)
    rotation = Rotation.at(batch.positions.cpu() // 2 * 2, frequencies, torch.float32)
    pages = batch.longest(2) // PAGE + 1
    table = torch.randperm(S * pages, generator=generator).view(S, pages).to(device)
    data, scales = (
        torch.randint(0, 256, (S * pages * PAGE, n), dtype=torch.uint8, generator=generator).to(device)
        for n in (D // 2, D // 16)
    )
    into = Rows(data, table, PAGE, scales, MAIN, dtype)
    return [*(t.to(device) for t in (pairs, before, norm, *rotation)), into, batch]


def wide(into: Rows) -> Rows:
    return Rows(into.data.clone(), into.table, into.page, into.scales.clone(), into.format, torch.float64)


CUTS = [((0, 3, 6, 1), (5, 1, 7, 4)), ((1, 2, 9), (1, 1, 1)), ((0,), (2,)), ((5, 0, 2), (3, 0, 2))]


@pytest.mark.parametrize(("starts", "lengths"), CUTS)
def test_latents_open_pairs_and_rows_are_those_of_float64(starts, lengths, device, generator):
    pairs, before, norm, cos, sin, into, batch = case(starts, lengths, 64, 16, device, generator)
    exact = wide(into)
    doubles = [t.double() for t in (pairs, before, norm)]
    latents, opened = ops.pool_write.plain(*doubles, EPS, cos.double(), sin.double(), exact, batch)
    ours, kept = pool_write(pairs, before, norm, EPS, cos, sin, into, batch)
    torch.testing.assert_close(ours.double(), latents, rtol=0, atol=4e-6)
    assert torch.equal(kept.double(), opened)
    assert (ours[closed(batch) < 0] == 0).all()
    assert (into.data != exact.data).double().mean() < 5e-3  # next to a tie
    assert (into.scales != exact.scales).double().mean() < 5e-3


def test_at_released_widths_bfloat16_is_as_near_to_float64_as_the_plain_version(device, generator):
    pairs, before, norm, cos, sin, into, batch = case(
        (3, 0), (5, 6), 512, 64, device, generator, dtype=torch.bfloat16
    )  # fmt: skip
    exact, plain = wide(into), Rows(into.data.clone(), into.table, PAGE, into.scales.clone(), MAIN, torch.bfloat16)
    doubles = [t.double() for t in (pairs, before, norm)]
    latents, _ = ops.pool_write.plain(*doubles, EPS, cos.double(), sin.double(), exact, batch)
    theirs, _ = ops.pool_write.plain(pairs, before, norm, EPS, cos, sin, plain, batch)
    ours, _ = pool_write(pairs, before, norm, EPS, cos, sin, into, batch)
    assert ours.dtype == torch.bfloat16
    assert (ours.double() - latents).norm() <= 1.05 * (theirs.double() - latents).norm()
    assert (into.data != plain.data).double().mean() < 5e-3
    assert (into.scales != plain.scales).double().mean() < 5e-3


def test_one_token_at_a_time_stores_what_one_call_stores(device, generator):
    pairs, before, norm, cos, sin, into, batch = case((0,), (9,), 64, 16, device, generator)
    step = Rows(into.data.clone(), into.table, PAGE, into.scales.clone(), MAIN, torch.float32)
    latents, opened = pool_write(pairs, before, norm, EPS, cos, sin, into, batch)
    for t in range(9):
        now, one = slice(t, t + 1), Batch(batch.tokens[t : t + 1], (t,), (1,))
        latent, before = pool_write(pairs[now], before, norm, EPS, cos[now], sin[now], step, one)
        assert torch.equal(latent, latents[now])
    assert torch.equal(before, opened)
    assert torch.equal(step.data, into.data) and torch.equal(step.scales, into.scales)


def test_an_entry_that_is_there_already_is_not_written_again(device, generator):
    pairs, before, norm, cos, sin, into, batch = case((0,), (8,), 64, 16, device, generator)
    index = closed(batch).masked_fill(closed(batch) < 2, -1)
    had = into.data.clone()
    latents, _ = pool_write(pairs, before, norm, EPS, cos, sin, into, batch, index=index)
    at = into.locate(torch.zeros(4, dtype=torch.int64, device=device), torch.arange(4, device=device))
    changed = (into.data[at] != had[at]).any(1)
    assert changed.tolist() == [False, False, True, True]
    assert latents.any(1).tolist() == [False] * 5 + [True, False, True]


def test_what_is_not_supported_is_refused(generator):
    pairs, before, norm, cos, sin, into, batch = case((0,), (4,), 64, 16, "cpu", generator)
    with recorded() as launches:
        with pytest.raises(Unsupported, match="before torch.bfloat16: allowed is float32"):
            pool_write(pairs, before.bfloat16(), norm, EPS, cos, sin, into, batch)
        with pytest.raises(Unsupported, match=r"pairs \(4, 64\): allowed are \[T, 2, D\]"):
            pool_write(pairs[:, 0], before, norm, EPS, cos, sin, into, batch)
    assert not launches
