"""The replay study counts rows as the arithmetic does, and compares with the exact prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from minidsv41 import checkpoint
from minidsv41.cli import app
from minidsv41.serve import study
from minidsv41.train.loop import fresh
from tests.tiny import TINY, prompt, tiny

L, W = TINY.num_hidden_layers, TINY.sliding_window
HIT, TURN = 60, 9


@pytest.fixture(scope="module")
def outcomes() -> dict[str, study.Outcome]:
    return study.compare(tiny(), prompt(HIT + TURN + 7), hit=HIT, length=HIT + TURN)


def test_row_layers(outcomes) -> None:
    halo, total = L * (W - 1), HIT + TURN
    assert {name: o.row_layers for name, o in outcomes.items()} == {
        "cold": total * L,
        "cold, decoder replay late": (total + W) * L // 2 + W - 1,
        "cold, decoder replay report": (total + W) * L // 2,
        "hit with windows": TURN * L,
        "hit, exact rectangle": (halo + TURN) * L,
        "hit, exact staircase": sum((L - layer) * (W - 1) for layer in range(L)) + TURN * L,
        "hit, encoder replay": (W + TURN) * L,
        "hit, both replays late": (2 * W + TURN) * L // 2 + W - 1,
        "hit, both replays report": (2 * W + TURN) * L // 2,
    }


def test_exact_ways_deviate_by_nothing_and_bounded_ones_do(outcomes) -> None:
    for name, o in outcomes.items():
        bounded = "replay" in name
        assert (o.kl > 1e-6).any() if bounded else o.kl.abs().max() < 1e-9, name
        assert (o.kl > -1e-9).all()
        assert bounded or o.agrees.all()
        assert len(o.kl) == len(o.agrees) == len(o.loss) == 7


def test_the_loss_is_that_of_the_tokens_that_follow(outcomes) -> None:
    from tests.test_model import whole

    ids = prompt(HIT + TURN + 7)
    wanted = torch.nn.functional.cross_entropy(whole(tiny(), ids)[HIT + TURN - 1 : -1], ids[HIT + TURN :])
    torch.testing.assert_close(outcomes["hit, exact staircase"].loss.mean(), wanted, rtol=0, atol=1e-9)
    summary = study.summary([outcomes, outcomes])["hit, exact staircase"]
    assert summary["perplexity"] == pytest.approx(float(wanted.exp()))
    assert summary["top1_agreement"] == 1 and summary["row_layers"] == 180 + 72


def test_the_command_leaves_a_record(tmp_path: Path) -> None:
    checkpoint.save(fresh("toy", 0), tmp_path / "model")
    (tmp_path / "model/record.json").write_text(
        '{"settings": {"steps": 3, "batch": 16, "replay": 4}}', encoding="utf-8"
    )
    arguments = ["--prompts", "1", "--hit", "40", "--turn", "3", "--following", "4", "--into", str(tmp_path)]
    result = CliRunner().invoke(app, ["bench", "replay", "--checkpoint", str(tmp_path / "model"), *arguments])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "bench_replay.json").read_text(encoding="utf-8"))
    assert record["machine"]["date"] and record["settings"]["hit"] == 40
    (found,) = record["results"]
    assert found["trained"] == {"steps": 3, "batch": 16, "replay": 4}
    assert set(found["ways"]) == {way.name for way in study.WAYS}
