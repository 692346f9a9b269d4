"""Every verdict on the articles is borne out by what is computed, and the page says what the computation says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from minidsv41.course.claims import CLAIMS, Claim, Found, page

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "notebooks" / "claims.md"
ROWS = {
    "1": "1 2 3 4 5 6 7 8 9 10 11 12 13 13b 14 15 16 17 18 19 20 21 22 23 24 25 25b 26 27",
    "2": "1 2 3 4 5 6 7 8 9 10 11 12 13 14",
}


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.compute], ids=lambda c: c.number)
def test_verdict_is_borne_out(claim: Claim):
    found = claim.compute()
    assert found.holds is True, found.value
    assert found.value


def test_every_row_is_there_once_and_in_order():
    assert [c.number for c in CLAIMS] == [f"{a}.{row}" for a, rows in ROWS.items() for row in rows.split()]


def test_a_verdict_without_a_computation_rests_on_sources():
    assert {c.number for c in CLAIMS if not c.compute} == {"1.15", "1.16", "1.21", "1.23"}
    with pytest.raises(AssertionError, match="1.1"):
        replace(CLAIMS[0], compute=None)


def test_what_is_not_right_says_what_is():
    for claim in CLAIMS:
        assert claim.instead or claim.verdict == "right", claim.number


def test_a_verdict_that_fails_is_shouted():
    assert "NOT BORNE OUT" in page.mark(CLAIMS[0], Found("891 B", False))


def test_every_proof_that_is_a_file_exists():
    lessons = {path.name.partition("_")[0] for path in (ROOT / "notebooks").glob("*.ipynb")}
    for claim in CLAIMS:
        assert set(re.findall(r"\b\d\db?\b", claim.proof.partition("tests/")[0])) <= lessons, claim.number
        for name in claim.proof.replace(";", ",").split(","):
            name = name.strip().partition(" ")[0]
            assert not name.startswith("tests/") or (ROOT / name).is_file(), claim.number


@pytest.mark.slow
def test_the_page_in_the_repository_is_what_the_command_writes():
    assert PAGE.read_text(encoding="utf-8") == page.page(list(page.checked()))
