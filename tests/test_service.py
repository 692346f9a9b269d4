"""The service of the tour's open exercise: its claims, and the law that no price can move."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from minidsv41.config import ModelConfig
from minidsv41.course.service import GB_HOUR, Service

FLASH = ModelConfig.preset("flash")
DAY = Service.day(FLASH)


def test_the_day_is_as_described():
    tokens, seconds = zip(*DAY.pauses, strict=True)
    assert median(tokens) == pytest.approx(1000, rel=0.15)
    assert median(seconds) == pytest.approx(600, rel=0.35)
    assert sum(s > 86_400 for s in seconds) >= 3
    assert Service.day(FLASH) == DAY


def test_break_even_times_differ_by_the_ratio_of_the_bytes():
    for tokens in (128, 1000, 10_000):
        size, lost = DAY.bytes_kept(tokens), DAY.rows_lost(tokens)
        ratio = (lost["global"] / size["global"]) / (lost["window"] / size["window"])
        assert ratio == pytest.approx(40 * 528 / 890)


def test_cost_of_one_pause_by_hand():
    one = replace(DAY, pauses=((1000, 60.0),))
    memory = 128 * 21_120 * 60 + 1000 * 890 * 60
    assert one.cost(lambda kind, idle: True) * GB_HOUR == pytest.approx(memory)
    assert one.cost(lambda kind, idle: False) * GB_HOUR == pytest.approx(1e6 * 20 * 1000)
    windows_gone = 128 * 21_120 * 10 + 1000 * 890 * 60 + 1e6 * 20 * 128
    assert one.cost(lambda kind, idle: kind == "global" or idle < 10) * GB_HOUR == pytest.approx(windows_gone)


def test_one_timer_is_the_best_of_its_kind_and_two_beat_it():
    assert all(DAY.one_timer() <= DAY.cost(lambda kind, idle, t=t: idle < t) for t in (0, 60, 3600, 10**9))
    assert DAY.cost(lambda kind, idle: idle < (300 if kind == "window" else 14_400)) < 0.7 * DAY.one_timer()
