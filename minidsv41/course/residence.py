"""Which of Engram's rows to keep close: the released model's rows of a real text, and how many look-ups they spare."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from minidsv41 import paths
from minidsv41.config import ModelConfig
from minidsv41.model.engram import DEAD, Engram, lookback
from minidsv41.ops import Batch
from minidsv41.tokens import load_tokenizer, token_map

ROOM = 4_000
TOKENS = 8_000


@cache
def looked_up() -> tuple[Tensor, Tensor]:
    """Rows [4,000, 24] of layer 1's table that half of a play asks for, and those of the next 4,000 tokens."""
    config = ModelConfig.preset("flash")
    text = (paths.text_dir() / "plays" / "midsummer_nights_dream.txt").read_text(encoding="utf-8")[10_000:34_000]
    tokenizer = load_tokenizer()
    ids = torch.tensor(token_map(tokenizer))[torch.tensor(tokenizer.encode(text).ids[:TOKENS])]
    with torch.device("meta"):  # its hashes are wanted, not its 98 GB
        engram = Engram(config, config.engram_layer_ids[0])
    history = torch.full((1, config.engram_max_ngram_size - 1), DEAD)
    grams = lookback(ids, history, Batch.equal(ids[None]), config.engram_max_ngram_size)
    seen, later = engram.rows(grams, config.engram_pad_token_id).chunk(2)
    return seen, later


def spared(keep: Tensor) -> float:
    """Percent of the later look-ups that find their row among the first `ROOM` of `keep`."""
    kept = torch.as_tensor(keep).flatten()[:ROOM]
    return 100 * torch.isin(looked_up()[1], kept).double().mean().item()
