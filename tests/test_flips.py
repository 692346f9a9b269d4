"""The study of float32 flips measures what it says."""

from __future__ import annotations

import torch

from minidsv41.serve.flips import TOLERANCE, divergence, divergences, study, study_crowd
from tests.tiny import prompt, tiny


def test_without_rounding_nothing_flips_and_float64_agrees_with_it() -> None:
    for model in (tiny(dtype=torch.float32, qat=False), tiny(dtype=torch.float64)):
        for ways in (study, study_crowd):
            found = list(ways(model, prompt(200), prompts=9, length=30, seed=0))
            assert len(found) == 9 and not any(d.flipped for d in found)


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


def test_a_model_that_looks_at_neighbours_is_counted() -> None:
    model = tiny()
    forward = model.forward

    def nosy(batch, keys, **kw):
        out = forward(batch, keys, **kw)
        return out._replace(hidden=out.hidden + len(batch.lengths))

    model.forward = nosy
    one, two = divergences(model, [prompt(9), prompt(5)])
    assert one.flipped and two.flipped and (one.length, two.length) == (9, 5)
