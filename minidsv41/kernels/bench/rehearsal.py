"""The benchmark of the model on tensors without numbers: what it will launch, before it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental import _config as without_numbers

from minidsv41 import ops
from minidsv41.cache import Cache
from minidsv41.config import ModelConfig
from minidsv41.kernels.bench.filling import placed
from minidsv41.kernels.bench.timing import first_line
from minidsv41.kernels.launch import Launch, recorded
from minidsv41.model import Model
from minidsv41.serve.graph import DecodeGraph
from minidsv41.serve.prefill import Prefill

if TYPE_CHECKING:
    from minidsv41.kernels.bench.model import ModelBench

META = torch.device("meta")


def launches(c: ModelBench, *, card: tuple[int, int], say: Callable[[str], Any] = print) -> Iterator[Launch]:
    """All launches of the run on a card of that capability, those of each kind at least once.

    What cannot be said without numbers is left out, with a word, and compiles when the run warms up.
    """
    config = ModelConfig.preset(c.preset)
    with META:
        model = Model(config).cast(c.dtype).eval()
    for what, run in parts(c, model):
        made: list[Launch] = []
        try:
            with recorded(card) as made, ops.versions("kernels"):
                run()
        except Exception as error:  # whatever it is, the run itself will tell
            say(f"{what}: not all is compiled ahead: {first_line(error)}")
        yield from made


def parts(c: ModelBench, model: Model) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Prompts and steps in the order of the run, with their names."""
    for context in c.contexts:
        held = c.held(model.config, context)
        if context <= c.prefill_to:
            for length in dict.fromkeys((c.warm(held), held)):
                cache = c.room(model.config, "packed", context, device=META)
                yield f"a prompt of {length} tokens", lambda n=length, cache=cache: chunks(model, cache, n, c.chunk)
        for form in c.forms(context):
            cache = c.room(model.config, form, context, device=META)
            states = placed(cache, held, c.count(form, context))
            for step in c.steps(model.config, context, form):

                def run(step=step, cache=cache, states=states):
                    with step.restricted():
                        DecodeGraph(model, cache, states[: step.batch], rows=step.rows).run()

                yield str(step), run


def chunks(model: Model, cache: Cache, length: int, chunk: int) -> None:
    """Chunks of a prompt that need all kernels that it needs.

    The last one's rows have their entries already, so that none is written again; without numbers all seem to be.
    """
    work = Prefill(model, cache, cache.new(), torch.zeros(length, dtype=torch.int64, device=META))
    for start in starts(length, chunk):
        work.at = work.state.length = start
        with without_numbers.patch(meta_nonzero_assume_all_nonzero=True):
            work.run(chunk)


def starts(length: int, chunk: int) -> list[int]:
    """Of the first chunk, those behind 1, 2, 4, ... others, between which no kernel is new, and the last."""
    last = (length - 1) // chunk * chunk
    return sorted({0, last} | {chunk << n for n in range(length.bit_length()) if chunk << n < last})
