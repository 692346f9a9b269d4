"""The demo of the cache's life runs with a terminal and without, and counts what it shows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from minidsv41.checkpoint import save
from minidsv41.cli import app
from minidsv41.config import ModelConfig
from minidsv41.serve import demo
from minidsv41.tokens import load_tokenizer
from minidsv41.train.loop import fresh


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An untrained toy checkpoint."""
    into = tmp_path_factory.mktemp("checkpoints") / "toy"
    save(fresh("toy", seed=0), into)
    return into


def test_a_store_serves_the_next_demo_too(folder: Path, tmp_path: Path) -> None:
    command = ["serve-demo", "--checkpoint", str(folder), "--store", str(tmp_path), "--agents", "2", "--new", "3"]
    first, second = (CliRunner().invoke(app, command) for _ in range(2))
    assert first.exit_code == second.exit_code == 0, first.output + second.output
    assert "prefixes: 1 cold, 2 from the store, 2 from the shelf" in first.output
    assert "prefixes: 0 cold, 3 from the store, 2 from the shelf" in second.output


def test_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=io.StringIO(), width=120, force_terminal=True, highlight=False)
    engine = demo.demo(console, fresh("toy", seed=0), load_tokenizer(), agents=3, shared=700, new=4)
    c, window = engine.counters, ModelConfig.preset("toy").sliding_window
    assert (c.finished, c.cold, c.store_hits, c.shelf_hits, c.replayed_rows) == (7, 1, 3, 3, 3 * window)
    said = console.file.getvalue()
    assert said.count("run again") > 7 and f"{c.accepted} of {c.drafted} drafts accepted" in said
