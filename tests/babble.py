"""A language of 64 tokens to train on in a second."""

from __future__ import annotations

import numpy as np
import torch

from minidsv41.train.data import Corpus, Stream


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def babble() -> Corpus:
    """A corpus of the tiny vocabulary in which every third token repeats the one before."""
    draw = np.random.default_rng(0)

    def text(count: int) -> Stream:
        tokens = draw.integers(5, 64, count)
        tokens[2::3] = tokens[1::3][: len(tokens[2::3])]
        return Stream(np.concatenate([[0], tokens, [1]]), 3 * count)

    return Corpus(text(2000), {"plays": text(120), "python": text(90)})
