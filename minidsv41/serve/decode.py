"""The next tokens of many requests in one ragged pass."""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.model import Model
from minidsv41.ops import Batch
from minidsv41.serve.generate import choose
from minidsv41.serve.request import Request
from minidsv41.serve.speculative import Gain, Plan, Sampling, advance


def sampling(request: Request) -> Sampling:
    return Sampling(temperature=request.temperature, top_p=request.top_p, generator=request.generator)


@torch.no_grad()
def decode(model: Model, cache: Cache, requests: list[Request]) -> list[list[int]]:
    """Feed each request's last token and draw one more. On an error no sequence has moved, but generators may have."""
    states = [r.state for r in requests]
    anchors = torch.tensor([r.ids[-1] for r in requests], device=model.device)
    batch = Batch(anchors, tuple(s.length for s in states), (1,) * len(states))
    keys = cache.keys(states, batch)
    out = model(batch, keys)
    model.mtp.remember(out.features, batch, keys)
    tokens = [[draw(logits, r)] for r, logits in zip(requests, model.logits(out.hidden), strict=True)]
    keys.commit()
    return tokens


def decode_drafted(
    model: Model, cache: Cache, requests: list[Request], *, plan: Plan | None, stop: frozenset[int]
) -> list[Gain]:
    """The same with drafts, several tokens a request; errors as in `decode`."""
    anchors = torch.tensor([r.ids[-1] for r in requests], device=model.device)
    states, draws, most = [r.state for r in requests], [sampling(r) for r in requests], [r.left - 1 for r in requests]
    return advance(model, cache, states, anchors, draws, most=most, plan=plan, stop=stop)


def first(model: Model, hidden: Tensor, request: Request, *, drafted: bool) -> int:
    """The token behind a prompt that gave hidden [n, C]; drawn as the others will be."""
    logits = model.logits(hidden[-1:])[0]
    if drafted:
        draws = sampling(request)
        return int(draws.draw(draws.distribution(logits)))
    return draw(logits, request)


def draw(logits: Tensor, request: Request) -> int:
    """A token from logits [V]."""
    return int(choose(logits, temperature=request.temperature, top_p=request.top_p, generator=request.generator))
