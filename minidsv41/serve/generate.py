"""One sequence: prefill in chunks, then token by token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.model import Model, Output, Record
from minidsv41.ops import Batch

CHUNK = 512


class RequestError(ValueError):
    """A prompt or a setting that cannot be served."""


@torch.no_grad()
def step(model: Model, cache: Cache, state: State, ids: Tensor, *, record: Record | None = None) -> Output:
    """Feed ids [n] to a sequence; the draft's window rows are kept up to date as well."""
    batch = Batch.ragged([ids], [state.length])
    keys = cache.keys([state], batch)
    out = model(batch, keys, record=record)
    model.mtp.remember(out.features, batch, keys)
    keys.commit()
    return out


def prefill(model: Model, cache: Cache, state: State, ids: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """Feed a prompt ids [n] in chunks -> logits [V] after its last token."""
    for part in ids.split(chunk):
        out = step(model, cache, state, part)
    return model.logits(out.hidden[-1:])[0]


def choose(logits: Tensor, *, temperature: float, top_p: float, generator: torch.Generator | None) -> Tensor:
    """A token id from logits [V]: arg-max at temperature 0, else sampled from the top_p nucleus."""
    if temperature == 0:
        return logits.argmax()
    p, order = (logits / temperature).softmax(-1).sort(descending=True, stable=True)
    p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0)
    return order[torch.multinomial(p / p.sum(), 1, generator=generator)][0]


def generate(
    model: Model,
    ids: Tensor,
    *,
    max_new: int = 200,
    temperature: float = 0.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    stop: frozenset[int] = frozenset(),
    chunk: int = CHUNK,
    cache: Cache | None = None,
) -> Iterator[int]:
    """Yield new token ids after the prompt ids [n], up to max_new, to the context's end, or to a `stop` id.

    Raises RequestError for an empty prompt, one beyond the context, or sampling settings out of range.
    """
    limit = model.config.max_position_embeddings
    if not 0 < len(ids) <= limit:
        raise RequestError(f"prompt of {len(ids)} tokens: allowed are 1 to {limit} (max_position_embeddings)")
    if max_new < 0:
        raise RequestError(f"max_new = {max_new}: must be 0 or more")
    if temperature < 0:
        raise RequestError(f"temperature = {temperature}: must be 0 (greedy) or positive")
    if not 0 < top_p <= 1:
        raise RequestError(f"top_p = {top_p}: must lie in (0, 1]")
    cache = cache or Cache(model.config, dtype=model.dtype, device=ids.device)
    state = cache.new()
    try:
        logits = prefill(model, cache, state, ids, chunk=chunk)
        for _ in range(min(max_new, limit - len(ids) + 1)):
            token = choose(logits, temperature=temperature, top_p=top_p, generator=generator)
            yield int(token)
            if int(token) in stop or state.length == limit:
                return
            logits = model.logits(step(model, cache, state, token[None]).hidden)[0]
    finally:
        cache.release(state)
