"""How many drafts are verified: honest confidence, lossless early stop, a measured table."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minidsv41.serve.schedule import (
    GRID,
    Calibration,
    Schedule,
    Speed,
    calibrate,
    calibration_error,
    measure,
    verify_lengths,
)
from minidsv41.serve.speculative import residual
from tests.tiny import TINY, prompt, tiny

TARGET, DRAFT = torch.tensor([[0.7, 0.3], [0.5, 0.5]], dtype=torch.float64)
TWO_WORDS = {1: 1.0, 2: 0.5, 3: 0.45}  # steps per second by rows


def confidence(first: int) -> Tensor:
    """[1, 2] exact: the overlap of the first position; the second is sure behind word 0, hopeless behind word 1."""
    return torch.tensor([[float(torch.minimum(TARGET, DRAFT).sum()), 1.0 - first]], dtype=torch.float64)


def global_best(confidence: Tensor) -> int:
    """Drafts of one request that maximise expected tokens a second, looked for everywhere."""
    reach = confidence[0].cumprod(0)
    return max(range(3), key=lambda n: float(1 + reach[:n].sum()) * TWO_WORDS[1 + n])


def emitted(length: Callable[[int], int]) -> list[float]:
    """Exact distribution of the first word out, if `length` drafts are verified depending on the first draft."""
    out = torch.zeros(2, dtype=torch.float64)
    for word in range(2):
        if length(word) == 0:
            out += DRAFT[word] * TARGET
            continue
        keep = min(1.0, float(TARGET[word] / DRAFT[word]))
        left = residual(TARGET, DRAFT)
        out[word] += DRAFT[word] * keep
        out += DRAFT[word] * (1 - keep) * left / left.sum()
    return out.tolist()


def test_early_stop_is_lossless_and_a_global_search_is_not() -> None:
    early = emitted(lambda word: verify_lengths(confidence(word), TWO_WORDS.__getitem__, most=[2])[0])
    assert early == pytest.approx([0.7, 0.3], abs=1e-12)
    assert emitted(lambda word: global_best(confidence(word))) == pytest.approx([0.85, 0.15], abs=1e-12)
    assert emitted(lambda word: 2) == pytest.approx([0.7, 0.3], abs=1e-12)


CHANCE = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0])
BATCHES = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(CHANCE, min_size=3, max_size=3), min_size=n, max_size=n)
)
SPEEDS = st.lists(st.floats(0.1, 10), min_size=17, max_size=17)  # of any shape, with many peaks


@settings(max_examples=200, deadline=None)
@given(rows=BATCHES, speeds=SPEEDS, data=st.data())
def test_whether_a_draft_is_verified_does_not_depend_on_what_lies_behind_it(rows, speeds, data) -> None:
    before = torch.tensor(rows, dtype=torch.float64)
    r, k = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 1))
    after = before.clone()
    after[r, k + 1 :] = torch.tensor(data.draw(st.lists(CHANCE, min_size=2 - k, max_size=2 - k)), dtype=torch.float64)
    most = [3] * len(rows)
    one, two = (verify_lengths(c, speeds.__getitem__, most=most) for c in (before, after))
    assert (one[r] > k) == (two[r] > k)


@settings(max_examples=100, deadline=None)
@given(rows=BATCHES, budget=st.integers(4, 16), data=st.data())
def test_limits_hold_and_where_rows_cost_the_same_nothing_is_left_on_the_table(rows, budget, data) -> None:
    c = torch.tensor(rows, dtype=torch.float64)
    most = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    lengths = verify_lengths(c, lambda n: 1.0, most=most, budget=budget)
    assert all(0 <= n <= m for n, m in zip(lengths, most, strict=True))
    assert len(rows) + sum(lengths) <= budget
    reach = c.cumprod(1)

    def tokens(chosen: tuple[int, ...]) -> float:
        return sum(float(reach[r, :n].sum()) for r, n in enumerate(chosen))

    allowed = [n for n in itertools.product(*(range(m + 1) for m in most)) if len(rows) + sum(n) <= budget]
    assert tokens(tuple(lengths)) == pytest.approx(max(tokens(n) for n in allowed))


def test_a_request_that_is_surer_gets_more() -> None:
    c = torch.tensor([[0.9, 0.9, 0.9], [0.2, 0.2, 0.2]])
    assert verify_lengths(c, lambda n: 1 / (4 + n), most=[3, 3]) == [3, 0]


def test_calibration_error_is_the_gap_of_forecast_and_frequency() -> None:
    p = torch.tensor([0.05] * 4 + [0.95] * 4)
    assert calibration_error(p, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])) == pytest.approx(0.05)
    assert calibration_error(p, torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])) == pytest.approx(0.95)
    assert calibration_error(torch.tensor([0.5] * 4), torch.tensor([0, 1, 0, 1])) == 0
    assert calibration_error(torch.tensor([1.0, 0.0]), torch.tensor([1, 0])) == 0


def test_calibration_finds_the_temperatures_of_a_boastful_draft() -> None:
    g = torch.Generator().manual_seed(0)
    temperatures = torch.tensor([2.0, 4.0, 1.0])
    logits = 3 * torch.randn(8000, 3, generator=g) + 1
    kept = torch.rand(8000, 3, generator=g) < (logits / temperatures).sigmoid()
    accepted = kept.long().cumprod(1).sum(1)
    found = calibrate(logits, accepted)
    torch.testing.assert_close(torch.tensor(found.temperatures), temperatures, rtol=0.3, atol=0)
    assert set(found.temperatures) <= set(GRID)
    for k in range(3):
        raw = logits.double().sigmoid().cumprod(1)[:, k]
        error = calibration_error(found(logits).cumprod(1)[:, k], accepted > k)
        assert error < 0.02 < calibration_error(raw, accepted > k)


def test_speed_between_and_beyond_the_measured_points() -> None:
    speed = Speed((1, 3), (1.0, 2.0))
    assert [1 / speed.steps_per_second(n) for n in (1, 2, 3, 6)] == pytest.approx([1, 1.5, 2, 4])


def test_the_table_is_measured_and_leaves_the_cache_as_it_was() -> None:
    ticks = itertools.count()
    speed = measure(tiny(), prompt(9), rows=(1, 3, 9), repeats=2, clock=lambda: float(next(ticks)))
    assert speed == Speed((1, 3, 9), (1.0, 1.0, 1.0))
    assert all(s > 0 for s in measure(tiny(), prompt(9), rows=(1, 4), repeats=1).seconds)


def test_a_schedule_is_a_plan() -> None:
    schedule = Schedule(Calibration((1.0,) * TINY.dspark_block_size), Speed((1, 9), (1.0, 1.1)), budget=4)
    logits = torch.tensor([[5.0, 5.0, 5.0], [-5.0, -5.0, -5.0]])
    assert schedule(logits, [3, 3]) == [2, 0]
