"""Persistent bytes as a function of length, and where the published 1/8 comes from."""

from fractions import Fraction

import pytest

from minidsv41.config import ModelConfig
from minidsv41.ledger import persistent
from minidsv41.ledger.books import books
from minidsv41.ledger.models import V4_FLASH
from tests.test_ledger import EACH, FLASH, check_formulas


def test_windows_are_half_of_what_v4_keeps_at_1829_tokens():
    half = persistent.half_length().value
    assert half == 2 * 43 * 128 * 584 / Fraction("3514.25") and int(half) == 1829
    share = [
        1 - persistent.v4_parts()[0].value / persistent.v4_persistent_bytes_per_token(n).value for n in (1829, 1830)
    ]
    assert share[0] > Fraction(1, 2) > share[1]


def test_one_eighth_is_one_half_times_one_quarter():
    ratio = persistent.persistent_ratio_at_half(FLASH).value
    assert ratio == 2 * Fraction("3514.25") / 890
    assert float(ratio) == pytest.approx(7.897, abs=5e-4)


def test_the_ratio_falls_from_windows_only_to_the_ratio_per_token():
    ratios = [float(persistent.persistent_ratio(FLASH, n).value) for n in (128, 1829, 4096, 1 << 20)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios == pytest.approx([60.4, 7.9, 5.7, 3.96], rel=0.01)


def test_windows_would_weigh_on_short_requests_here_too():
    with_windows = persistent.persistent_bytes_per_token_with_windows(FLASH, 4096)
    assert with_windows.value == 890 + Fraction(2 * 2_703_360, 4096)


@EACH
def test_formulas_give_their_values(config: ModelConfig):
    check_formulas(persistent.persistent_lines(config, ancestors=True), config, V4_FLASH)
    titles = [book.title for book in books(config)]
    assert "Kept on disk for each token of a request" in titles


def test_no_length_is_refused():
    with pytest.raises(ValueError, match="length = 0"):
        persistent.persistent_ratio(FLASH, 0)
