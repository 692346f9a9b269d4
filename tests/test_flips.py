"""The study of float32 flips measures what it says."""

from __future__ import annotations

import torch

from minidsv41.serve.flips import TOLERANCE, divergence, study
from tests.tiny import prompt, tiny


def test_without_rounding_nothing_flips_and_float64_agrees_with_it() -> None:
    for model in (tiny(dtype=torch.float32, qat=False), tiny(dtype=torch.float64)):
        assert not any(d.flipped for d in study(model, prompt(200), prompts=4, length=40, seed=0))


def test_a_model_whose_pieces_differ_is_counted() -> None:
    model = tiny()
    forward = model.forward
    model.forward = lambda batch, keys, **kw: (
        forward(batch, keys, **kw)
        if batch.starts[0] == 0
        else forward(batch, keys, **kw)._replace(hidden=forward(batch, keys, **kw).hidden + 1)
    )
    found = divergence(model, prompt(40), torch.Generator().manual_seed(0))
    assert found.flipped
    assert found.error > TOLERANCE
