"""Every long fault campaign, for one short round; and the run around them."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path

import pytest

from scripts.soak import __main__ as soak
from tests.store_process import opened, put

SHORT = {  # what makes a round of each campaign small
    "writer": dict(KILLS=2),
    "damage": dict(FLIPS=3),
    "readers": dict(PROMPTS=6),
    "handoff": dict(HAND_OVERS=2),
    "engine": dict(SEVERAL=3),
    "replay": dict(LONGEST=30),
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, changes in SHORT.items():
        for constant, value in changes.items():
            monkeypatch.setattr(importlib.import_module(f"scripts.soak.{name}"), constant, value)


@pytest.mark.parametrize(("name", "seed"), [*((name, 1) for name in soak.PARTS), ("engine", 2), ("replay", 2)])
def test_a_round_finds_nothing(name: str, seed: int, short: None) -> None:
    found = soak.campaign(name, seconds=0, rounds=1, seed=seed)
    assert found["faults"] == [] and found["rounds"] == 1 and sum(found["counts"].values()) > 0
    assert set(SHORT) == set(soak.PARTS)


def test_a_fault_is_recorded_with_its_seed_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    played = []

    def play(seed: int, folder: Path) -> dict[str, int]:
        played.append(seed)
        assert len(played) != 2, "something is wrong"
        if len(played) == 4:
            raise KeyboardInterrupt
        return {"seen": 3}

    monkeypatch.setattr(importlib.import_module("scripts.soak.damage"), "play", play)
    out = tmp_path / "new" / "soak.json"
    monkeypatch.setattr(sys, "argv", "soak --part damage --part readers --rounds 5 --seed 7 --out".split() + [str(out)])
    with pytest.raises(SystemExit) as ended:
        soak.main()
    assert ended.value.code == 1
    content = json.loads(out.read_text(encoding="utf-8"))
    found = content["results"].pop("damage")
    assert not content["results"], "the run was interrupted"
    assert (found["rounds"], found["counts"], found["interrupted"]) == (3, {"seen": 6}, True)
    assert found["faults"] == [{"seed": played[1], "said": found["faults"][0]["said"]}]
    assert "something is wrong" in found["faults"][0]["said"] and str(played[1]) in capsys.readouterr().err
    played.clear()
    again = soak.campaign("damage", seconds=0, rounds=1, seed=found["faults"][0]["seed"])
    assert played == [found["faults"][0]["seed"]] and again["faults"] == []


def test_a_byte_outside_is_in_no_record() -> None:
    damage, spans = importlib.import_module("scripts.soak.damage"), [(3, 50), (50, 90), (93, 97)]
    drawn = {damage.outside(random.Random(seed), spans, 100) for seed in range(200)}
    assert drawn == {0, 1, 2, 90, 91, 92, 97, 98, 99}


def test_a_damaged_page_that_is_believed_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage = importlib.import_module("scripts.soak.damage")
    with opened(tmp_path) as store:
        for ids in damage.islice(damage.prompts(1), 5):
            put(store, ids)
    with pytest.raises(AssertionError, match="0 of .* pages are damaged"):
        damage.in_a_record(tmp_path, 1)  # nothing was flipped
