"""An engine under random load: every answer is the one that its request gets alone, and every page comes back.

Odd seeds: prompts that share beginnings, a shelf and a store, and windows as long as a sequence, so that a hit changes
nothing. Even seeds: short windows, where each prompt is computed anew.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from functools import cache as remembered
from pathlib import Path

import torch

from minidsv41.cache import Cache
from minidsv41.cache.pages import identity
from minidsv41.cache.pool import CacheFull
from minidsv41.cache.shelf import Shelf
from minidsv41.cache.store import Store
from minidsv41.model import Model
from minidsv41.serve import Busy, Engine, generate, speculate
from minidsv41.serve.request import Request
from tests.test_engine import TOKENIZER, nothing_held, seeded
from tests.tiny import TINY, prompt, tiny

LONG = 192  # tokens of a window that no sequence leaves
SEVERAL = 8  # requests a round


@remembered
def model_of(window: int) -> Model:
    return tiny(vocab_size=TOKENIZER.get_vocab_size(), sliding_window=window)


def play(seed: int, folder: Path) -> dict[str, int]:
    draw, seen, shared = random.Random(seed), Counter(), bool(seed % 2)
    model = model_of(LONG if shared else TINY.sliding_window)
    drafted, cut = draw.random() < 0.5, draw.choice(["late", "report", None])
    with ExitStack() as stack:
        engine = made(draw, model, folder if shared else None, stack, speculative=drafted, cut=cut)
        asked, answers = [], []
        for i in range(SEVERAL):
            ids, how = ask(draw, i, shared)
            run = speculate if drafted else generate
            answers.append(list(run(model, ids, cut=cut, stop=engine.stop, generator=seeded(i), **how)))
            asked.append((ids, how | {"generator": seeded(i), "stop_strings": stops(draw, answers[-1])}))
        for request, alone, (_, how) in zip(load(draw, engine, asked, seen), answers, asked, strict=True):
            seen[request.end] += 1
            seen["hit_tokens"] += request.hit
            compare(request, alone, how["stop_strings"])
        nothing_held(engine)
        seen["drafts_accepted"] += engine.counters.accepted
    return dict(seen)


def made(draw: random.Random, model: Model, folder: Path | None, stack: ExitStack, **settings) -> Engine:
    """An engine of random size, with a tiny queue, and sometimes too small a cache."""
    limit = draw.choice([None, None, 4])
    cache = Cache(model.config, dtype=model.dtype, cache_format=draw.choice(["packed", "float"]), limit=limit)
    if folder:
        budget = draw.choice([10**5, 10**9])
        store = stack.enter_context(Store(folder, identity(model, cache)))
        settings |= dict(shelf=Shelf(cache, ttl=draw.choice([0.05, 600]), budget=budget), store=store)
    most = draw.randint(1, 5)
    rows = most * (TINY.dspark_block_size + 1) + draw.randint(1, 40)
    sizes = dict(max_requests=most, max_waiting=draw.randint(1, 3), token_budget=rows)
    return Engine(model, TOKENIZER, cache=cache, **sizes, **settings)


def ask(draw: random.Random, i: int, shared: bool) -> tuple[torch.Tensor, dict]:
    """A prompt and its settings."""
    length = draw.choice([1, 2, 6, 7, 40, 63, 64, 65, 130])
    if shared:  # one of two beginnings, then something of its own
        ids = torch.cat([prompt(length, draw.randrange(2), vocab=4096), prompt(draw.randint(1, 20), i, vocab=4096)])
    else:
        ids = prompt(length, i, vocab=4096)
    how = dict(max_new=draw.choice([0, 1, 2, 9, 20]), temperature=draw.choice([0.0, 0.8, 1.3]))
    return ids, how | dict(top_p=draw.choice([0.7, 1.0]))


def stops(draw: random.Random, alone: list[int]) -> tuple[str, ...]:
    """None, or two strings, of which one is in the text that comes."""
    text = TOKENIZER.decode(alone)
    if not text or draw.random() < 0.6:
        return ()
    at = draw.randrange(len(text))
    return "nowhere at all", text[at : at + draw.randint(1, 4)]


def load(draw: random.Random, engine: Engine, asked: list, seen: Counter) -> list[Request]:
    """Submit all at random moments, again where the queue was full; cancel some."""
    requests: list[Request] = []
    while len(requests) < len(asked) or engine.running or engine.waiting:
        while len(requests) < len(asked) and draw.random() < 0.5:
            ids, how = asked[len(requests)]
            try:
                requests.append(engine.submit(ids, **how))
            except Busy:
                seen["refused"] += 1
                break
        if draw.random() < 0.05 and (some := [*engine.running, *engine.waiting]):
            engine.cancel(draw.choice(some))
        engine.step()
    return requests


def compare(request: Request, alone: list[int], stops: tuple[str, ...]) -> None:
    """The tokens are the first of those alone: all of them, unless the request was cut off, or its text ended."""
    assert request.tokens == alone[: len(request.tokens)], f"{request.tokens}, alone {alone}"
    if request.end == "failed":
        assert isinstance(request.error, CacheFull), repr(request.error)
    if request.end in ("failed", "cancelled"):
        return
    text = TOKENIZER.decode(alone)
    ends = [(text.index(s) + len(s), text.index(s)) for s in stops if s in text]
    assert ends or len(request.tokens) == len(alone), "the text ended early"
    assert request.text == (text[: min(ends)[1]] if ends else text), "another text"
