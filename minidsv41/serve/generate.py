"""One sequence: its prompt, then token by token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.model import Model, Output, Record
from minidsv41.ops import Batch
from minidsv41.serve.prefill import CHUNK, Cut, RequestError, check_cut, prefill

COLDEST = 1e-6  # logits divided by less leave the range of float32


@torch.no_grad()
def step(model: Model, cache: Cache, state: State, ids: Tensor, *, record: Record | None = None) -> Output:
    """Feed ids [n] to a sequence; the draft's window rows are kept up to date as well."""
    batch = Batch.ragged([ids], [state.length])
    keys = cache.keys([state], batch)
    out = model(batch, keys, record=record)
    model.mtp.remember(out.features, batch, keys)
    keys.commit()
    return out


def choose(logits: Tensor, *, temperature: float, top_p: float, generator: torch.Generator | None) -> Tensor:
    """A token id from logits [V]: arg-max at temperature 0, else sampled from the top_p nucleus.

    Raises RequestError where the model has failed: its logits are not all finite.
    """
    check_finite(logits)
    if temperature == 0:
        return logits.argmax()
    p, order = nucleus(logits, temperature=temperature, top_p=top_p)
    return order[torch.multinomial(p, 1, generator=generator)][0]


def check_finite(logits: Tensor) -> None:
    if not logits.isfinite().all():
        raise RequestError("the model's logits hold NaN or infinity: is a weight of this checkpoint broken?")


def nucleus(logits: Tensor, *, temperature: float, top_p: float) -> tuple[Tensor, Tensor]:
    """Logits [..., V] -> the likeliest tokens that hold top_p: probabilities [..., V], falling; their ids [..., V]."""
    p, order = (logits / temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
    outside = p.cumsum(-1) - p >= top_p
    outside[..., 0] = False  # however small top_p
    p = p.masked_fill(outside, 0)
    return p / p.sum(-1, keepdim=True), order


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
    cut: Cut | None = "late",
    cache: Cache | None = None,
) -> Iterator[int]:
    """New token ids after the prompt ids [n], one by one: up to max_new, to the context's end, or to a `stop` id.

    cut: from where on the decoder runs on the prompt's tail only (see Prefill). Raises RequestError, before any
    work, for an empty prompt, one beyond the context, ids that are no tokens, or settings out of range.
    """
    check_cut(model.config, cut)
    check(model, ids, max_new=max_new, temperature=temperature, top_p=top_p, chunk=chunk)
    cache = cache or Cache(model.config, dtype=model.dtype, device=ids.device)

    def stream() -> Iterator[int]:
        limit = model.config.max_position_embeddings
        state = cache.new()
        try:
            logits = prefill(model, cache, state, ids, cut=cut, chunk=chunk)
            for _ in range(min(max_new, limit - len(ids) + 1)):
                token = choose(logits, temperature=temperature, top_p=top_p, generator=generator)
                yield int(token)
                if int(token) in stop or state.length == limit:
                    return
                logits = model.logits(step(model, cache, state, token[None]).hidden)[0]
        finally:
            cache.release(state)

    return stream()


def check(model: Model, ids: Tensor, *, max_new: int, temperature: float, top_p: float, chunk: int) -> None:
    """Raise RequestError for a prompt or a setting that `generate` cannot serve."""
    limit, vocab = model.config.max_position_embeddings, model.config.vocab_size
    if not 0 < len(ids) <= limit:
        raise RequestError(f"prompt of {len(ids)} tokens: allowed are 1 to {limit} (max_position_embeddings)")
    if ids.min() < 0 or ids.max() >= vocab:
        raise RequestError(f"token ids {ids.min()}..{ids.max()}: allowed are 0..{vocab - 1} (vocab_size)")
    if max_new < 0:
        raise RequestError(f"max_new = {max_new}: must be 0 or more")
    if not (temperature == 0 or COLDEST <= temperature < float("inf")):
        raise RequestError(f"temperature = {temperature}: must be 0 (greedy) or a number from {COLDEST} on")
    if not 0 < top_p <= 1:
        raise RequestError(f"top_p = {top_p}: must lie in (0, 1]")
    if chunk < 1:
        raise RequestError(f"chunk = {chunk}: must be 1 or more")
