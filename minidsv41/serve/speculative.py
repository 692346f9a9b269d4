"""Speculative decoding: DSpark drafts a block, one pass of the target verifies it.

What comes out is distributed as without drafts; greedily it is the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.model import Model
from minidsv41.ops import Batch
from minidsv41.serve.generate import check, check_finite, nucleus
from minidsv41.serve.prefill import CHUNK, Cut, check_cut, prefill
from minidsv41.serve.scratch import ScratchKeys

Plan = Callable[[Tensor, list[int]], list[int]]  # confidence logits [S, block], most drafts [S] -> drafts to verify [S]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How one request draws its tokens. Temperature 0 is the limit: all probability on the likeliest token."""

    temperature: float = 0.0
    top_p: float = 1.0
    generator: torch.Generator | None = None

    def distribution(self, logits: Tensor) -> Tensor:
        """logits [..., V] -> probabilities [..., V] in float64. Raises RequestError for NaN or infinity."""
        check_finite(logits)
        if self.temperature == 0:
            return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, logits.argmax(-1, keepdim=True), 1)
        p, order = nucleus(logits.double(), temperature=self.temperature, top_p=self.top_p)
        return torch.zeros_like(p).scatter_(-1, order, p)

    def draw(self, p: Tensor) -> Tensor:
        """A token id [] from p [V], which need not sum to one."""
        return p.argmax() if self.temperature == 0 else torch.multinomial(p, 1, generator=self.generator)[0]

    def chance(self) -> float:
        """Uniform in [0, 1)."""
        if self.temperature == 0:
            return 0.0
        device = self.generator.device if self.generator else None
        return float(torch.rand((), generator=self.generator, dtype=torch.float64, device=device))


class Gain(NamedTuple):
    """What one step gives a sequence: tokens [n], accepted drafts and then the next anchor; how many drafts were
    verified; the draft's confidence logits [block]."""

    tokens: Tensor
    verified: int
    confidence: Tensor


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """[V] what is left of the target's distribution once a draft was rejected; not normalised."""
    left = (target - draft).clamp(min=0)
    return left if left.any() else target  # equal up to rounding


def accept(target: Tensor, draft: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
    """Rejection sampling: tokens [n] drawn from draft [n, V] against target [n + 1, V] -> accepted ones and one more.

    The k-th is kept with probability min(1, target / draft). The one more comes from the residual of the first
    rejection, or, behind n accepted ones, from the target.
    """
    for k, token in enumerate(tokens):
        if sampling.chance() * draft[k, token] >= target[k, token]:
            return torch.cat([tokens[:k], sampling.draw(residual(target[k], draft[k]))[None]])
    return torch.cat([tokens, sampling.draw(target[-1])[None]])


class Proposal(NamedTuple):
    """tokens [S, block]; p [S, block, V], the distributions that they were drawn from; confidence logits [S, block]."""

    tokens: Tensor
    p: Tensor
    confidence: Tensor


def propose(model: Model, scratch: ScratchKeys, anchors: Tensor, sampling: list[Sampling]) -> Proposal:
    """Draft a block behind the anchors [S], each request with its own generator."""
    given: list[Tensor] = []

    def choose(logits: Tensor) -> Tensor:
        given.append(torch.stack([s.distribution(row) for s, row in zip(sampling, logits, strict=True)]))
        return torch.stack([s.draw(p) for s, p in zip(sampling, given[-1], strict=True)])

    seq = torch.arange(len(anchors), device=anchors.device)
    draft = model.mtp.draft(anchors, seq, scratch.lengths - 1, model.embed, model.head, scratch, choose=choose)
    return Proposal(draft.tokens, torch.stack(given, 1), draft.confidence)


def verify(model: Model, scratch: ScratchKeys, rows: list[Tensor]) -> tuple[Batch, list[Tensor]]:
    """One pass over the anchor and drafts rows [n] of each sequence, into the scratch -> logits [n, V] of each."""
    batch = Batch.ragged(rows, [s.length for s in scratch.states])
    out = model(batch, scratch)
    model.mtp.remember(out.features, batch, scratch)
    return batch, list(model.logits(out.hidden).split(batch.lengths))


@torch.no_grad()
def advance(
    model: Model,
    cache: Cache,
    states: list[State],
    anchors: Tensor,
    sampling: list[Sampling],
    *,
    most: list[int] | None = None,
    plan: Plan | None = None,
    stop: frozenset[int] = frozenset(),
) -> list[Gain]:
    """One step of S sequences: draft, verify, keep what is accepted.

    anchors [S]: the token of each that is drawn but not yet fed; the last token gained takes its place.
    most [S]: drafts that a request can use (at most the block); plan may cut them further. A token of `stop`
    ends its sequence's gain.
    """
    block = model.config.dspark_block_size
    most = [block] * len(states) if most is None else [min(block, m) for m in most]
    scratch = ScratchKeys(cache, states)
    drafts = propose(model, scratch, anchors, sampling)
    lengths = plan(drafts.confidence, most) if plan else most
    rows = [torch.cat([a[None], d[:n]]) for a, d, n in zip(anchors, drafts.tokens, lengths, strict=True)]
    batch, logits = verify(model, scratch, rows)
    gains = []
    for i, (s, n) in enumerate(zip(sampling, lengths, strict=True)):
        tokens = accept(s.distribution(logits[i]), drafts.p[i, :n], drafts.tokens[i, :n], s)
        end = next((k for k, t in enumerate(tokens.tolist(), start=1) if t in stop), len(tokens))
        gains.append(Gain(tokens[:end], n, drafts.confidence[i]))
    scratch.commit(batch, [len(g.tokens) for g in gains], model.token_map)
    return gains


def steps(
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
    plan: Plan | None = None,
) -> Iterator[Gain]:
    """What each step adds behind the prompt ids [n]; settings and errors as in `generate`.

    The first gain is the token behind the prompt, without drafts.
    """
    check_cut(model.config, cut)
    check(model, ids, max_new=max_new, temperature=temperature, top_p=top_p, chunk=chunk)
    cache = cache or Cache(model.config, dtype=model.dtype, device=ids.device)
    sampling = Sampling(temperature=temperature, top_p=top_p, generator=generator)

    def stream() -> Iterator[Gain]:
        left = min(max_new, model.config.max_position_embeddings - len(ids) + 1)
        state = cache.new()
        try:
            logits = prefill(model, cache, state, ids, cut=cut, chunk=chunk)
            gain = Gain(sampling.draw(sampling.distribution(logits))[None], 0, logits.new_zeros(0))
            while left:
                yield gain
                left -= len(gain.tokens)
                anchor = gain.tokens[-1:]
                if not left or int(anchor) in stop:
                    return
                [gain] = advance(model, cache, [state], anchor, [sampling], most=[left - 1], plan=plan, stop=stop)
        finally:
            cache.release(state)

    return stream()


def speculate(model: Model, ids: Tensor, **settings) -> Iterator[int]:
    """New token ids after the prompt ids [n], as `generate` gives them, several a step; settings as in `steps`."""
    gains = steps(model, ids, **settings)
    return (token for gain in gains for token in gain.tokens.tolist())
