"""The measurement of a hand-over between two GPUs, played through on the CPU over gloo: the same code path."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from minidsv41.config import ModelConfig
from minidsv41.ledger.handoff import handoff_bytes
from scripts import handoff_nccl


@pytest.mark.slow
def test_every_part_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(handoff_nccl, "LENGTHS", (7, 130))
    monkeypatch.setattr(handoff_nccl, "SILENT", timedelta(seconds=3))
    monkeypatch.setattr(handoff_nccl, "BROKEN", {"killed within the payload": [handoff_nccl.GOOD | {"dies": 9}]})
    out = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", "handoff --devices cpu cpu --tokens 200 --rounds 1 --out".split() + [str(out)])
    with pytest.raises(SystemExit) as ended:
        handoff_nccl.main()
    assert ended.value.code == 0
    content = json.loads(out.read_text(encoding="utf-8"))
    results = content["results"]
    assert results["equality"] == {"hand_overs": 6, "largest_difference_of_a_logit": 0.0}
    assert set(results["refused"]) == set(handoff_nccl.REFUSED)
    assert set(results["lost"]) == {"killed while it takes over", "killed within the payload"}
    assert all(
        found["difference_afterwards"] == 0.0 for part in ("refused", "lost") for found in results[part].values()
    )
    assert results["tokens 200"]["payload_bytes"] == int(handoff_bytes(ModelConfig(), 200))
    assert results["tokens 200"]["hand_over_gb_per_s"] > 0


def test_what_fails_is_said_and_the_other_parts_are_still_measured() -> None:
    def broken() -> dict:
        raise RuntimeError("no link")

    assert handoff_nccl.attempt(broken) == {"failed": "RuntimeError: no link"}
