"""The tour prints every mechanism of a checkpoint, and its two ways of counting bytes agree."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer

from minidsv41 import paths, tokens
from minidsv41.checkpoint import save
from minidsv41.config import ModelConfig
from minidsv41.course.tour import TourError, tour
from minidsv41.model import Model

MECHANISMS = (
    "residual streams, delayed mix, Engram, window, compressor, index keys, selection, encoder's output, "
    "candidate pool, Reindex, attention, experts, next token, draft"
).split(", ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An untrained toy checkpoint."""
    into = tmp_path_factory.mktemp("checkpoints") / "toy"
    spellings = tokens.token_map(Tokenizer.from_file(str(paths.tokenizer_path())))
    save(Model(ModelConfig.preset("toy"), spellings).initialise(torch.Generator().manual_seed(0)), into)
    return into


def printed(folder: Path, *, width: int = 120, **options) -> str:
    console = Console(file=io.StringIO(), width=width)
    tour(console, folder=folder, **options)
    return console.file.getvalue()


def test_every_mechanism_and_the_books(folder: Path):
    said = printed(folder)
    assert [name for name in MECHANISMS if name not in said] == []
    assert "160 tokens" in said
    assert "96 of 160 entries stay candidates" in said
    assert "890 B/token, FP4 main + FP4 index" in said
    sums = re.search(r"in all +([\d,]+) +([\d,]+)", said)
    assert sums[1] == sums[2]


def test_a_narrow_console_keeps_what_each_mechanism_did(folder: Path):
    said = printed(folder, width=80)
    assert [name for name in MECHANISMS if name not in said] == []
    assert "one row a token and layer, dead after 32" in said
    assert "2,621,440" in said


def test_a_prompt_of_ones_own(folder: Path):
    said = printed(folder, prompt="床前明月光，疑是地上霜。")
    assert "床前明月光" in said
    with pytest.raises(TourError, match="at least two tokens"):
        printed(folder, prompt="")


def test_without_a_checkpoint_it_says_how_to_get_one(tmp_path: Path):
    with pytest.raises(TourError, match=r"no checkpoint here\. Train one with `minidsv41 train --preset toy`"):
        printed(tmp_path / "toy")
