"""What bounded replay saves and what it changes, on real text: a study.

Every way of taking in the same prompt is followed by the same true tokens. Its predictions of them are held
against those of a prompt whose every row ran through every layer; its cost is counted in row-layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.cache.replay import reconstruct
from minidsv41.model import Model
from minidsv41.serve.generate import step
from minidsv41.serve.prefill import Cut, Prefill


class Way(NamedTuple):
    """What a sequence still holds of the prompt's first part, what is rebuilt first, and where the rest is cut."""

    name: str
    holds: Literal["nothing", "entries", "entries and windows"] = "nothing"
    rebuild: Literal["staircase", "rectangle"] | None = None
    cut: Cut | None = None


WAYS = (
    Way("cold"),
    Way("cold, decoder replay late", cut="late"),
    Way("cold, decoder replay report", cut="report"),
    Way("hit with windows", "entries and windows"),
    Way("hit, exact rectangle", "entries", "rectangle"),
    Way("hit, exact staircase", "entries", "staircase"),
    Way("hit, encoder replay", "entries"),
    Way("hit, both replays late", "entries", cut="late"),
    Way("hit, both replays report", "entries", cut="report"),
)


class Outcome(NamedTuple):
    """One prompt taken in one way: row-layers run, and for each of M true tokens after it the KL divergence from
    the exact prediction (nats), whether both predict the same token, and the loss (nats): [M] each."""

    row_layers: int
    kl: Tensor
    agrees: Tensor
    loss: Tensor


@contextmanager
def counting(model: Model) -> Iterator[list[int]]:
    """Collects how many rows each call of a backbone layer runs."""
    rows: list[int] = []
    handles = [layer.register_forward_pre_hook(lambda _, args: rows.append(len(args[0].X))) for layer in model.layers]
    try:
        yield rows
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def take_in(model: Model, way: Way, ids: Tensor, *, hit: int, length: int) -> tuple[int, Tensor]:
    """A prompt ids[:length], of which `hit` tokens came before -> row-layers, log-probabilities [M, V] afterwards."""
    cache = Cache(model.config, dtype=model.dtype)
    state = cache.new()
    if way.holds != "nothing":
        Prefill(model, cache, state, ids[:hit], cut=None).finish()
    if way.holds == "entries":
        cache.truncate(state, hit)
    with counting(model) as rows:
        if way.rebuild:
            reconstruct(model, cache, state, ids, shape=way.rebuild)
        hidden = Prefill(model, cache, state, ids[:length], cut=way.cut).finish()
    after = step(model, cache, state, ids[length:-1]).hidden
    return sum(rows), model.logits(torch.cat([hidden[-1:], after])).log_softmax(-1)


def compare(model: Model, ids: Tensor, *, hit: int, length: int) -> dict[str, Outcome]:
    """All WAYS of taking in ids[:length]; the tokens ids[length:] are those that follow."""
    found, exact, truth = {}, None, ids[length:, None]
    for way in WAYS:
        row_layers, p = take_in(model, way, ids, hit=hit, length=length)
        exact = p if exact is None else exact
        kl = (exact.exp() * (exact - p)).sum(-1)
        found[way.name] = Outcome(row_layers, kl, p.argmax(-1) == exact.argmax(-1), -p.gather(1, truth)[:, 0])
    return found


def study(
    model: Model, tokens: Tensor, *, prompts: int, hit: int, turn: int, following: int, seed: int
) -> Iterator[dict[str, Outcome]]:
    """Random slices of `tokens`: `hit` old tokens, a turn of new ones, and those that follow."""
    generator = torch.Generator().manual_seed(seed)
    total = hit + turn + following
    for _ in range(prompts):
        start = int(torch.randint(0, len(tokens) - total, (1,), generator=generator))
        yield compare(model, tokens[start : start + total], hit=hit, length=hit + turn)


def summary(found: list[dict[str, Outcome]]) -> dict[str, dict[str, float]]:
    """Means over prompts and tokens, by way."""
    out = {}
    for name in found[0]:
        outcomes = [one[name] for one in found]
        kl, agrees, loss = (
            torch.cat([getattr(o, part) for o in outcomes]).double() for part in ("kl", "agrees", "loss")
        )
        out[name] = {
            "row_layers": sum(o.row_layers for o in outcomes) / len(outcomes),
            "kl": float(kl.mean()),
            "kl_first": float(torch.stack([o.kl[0] for o in outcomes]).double().mean()),
            "top1_agreement": float(agrees.mean()),
            "perplexity": float(loss.mean().exp()),
        }
    return out
