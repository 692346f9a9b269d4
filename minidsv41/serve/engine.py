"""Many requests at once: they join and leave between steps, and share each step's forward pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from tokenizers import Tokenizer
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.cache.pool import CacheFull
from minidsv41.cache.shelf import Shelf
from minidsv41.model import Model
from minidsv41.serve.counters import Counters
from minidsv41.serve.decode import decode, decode_drafted, first
from minidsv41.serve.prefill import Cut, Prefill, RequestError, check_cut
from minidsv41.serve.prefixes import Prefixes
from minidsv41.serve.request import End, Request
from minidsv41.serve.speculative import Plan

if TYPE_CHECKING:
    from minidsv41.cache.store import Store

Result = TypeVar("Result")


class Busy(RuntimeError):
    """As many requests wait as the engine allows."""


class Engine:
    """Serves requests from one thread: `submit` them, then `step` until they end, or read one with `stream`.

    A step feeds at most token_budget rows: one row, or a block and its anchor if `speculative`, of every request that
    decodes, in one ragged pass; then chunks of prompts, each in a pass of its own, because most of its rows skip
    the decoder (see Prefill) and decoded rows do not. max_requests run at once, max_waiting more may wait.
    No request's tokens depend on the others, except that they may leave it a prefix: shelf and store (and that a plan
    that looks at the whole batch changes the luck of sampled ones, not their odds). One that fails, because it finds
    the cache full, say, fails alone.
    cut: as in Prefill; stop: token ids that end a request, the end of a document if not given; plan: as in `advance`.
    Raises RequestError.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None = None,
        *,
        cache: Cache,
        shelf: Shelf | None = None,
        store: Store | None = None,
        cut: Cut | None = "late",
        token_budget: int = 512,
        max_requests: int = 16,
        max_waiting: int = 64,
        speculative: bool = False,
        plan: Plan | None = None,
        stop: frozenset[int] | None = None,
    ) -> None:
        check_cut(model.config, cut)
        rows = model.config.dspark_block_size + 1 if speculative else 1
        if max_requests < 1 or max_waiting < 1:
            raise RequestError(f"max_requests = {max_requests}, max_waiting = {max_waiting}: must be 1 or more")
        if token_budget <= (most := max_requests * rows):
            raise RequestError(f"token_budget = {token_budget}: must exceed {most}, the rows of requests that decode")
        self.model, self.tokenizer, self.cache, self.cut = model, tokenizer, cache, cut
        self.token_budget, self.max_requests, self.max_waiting = token_budget, max_requests, max_waiting
        self.speculative, self.plan = speculative, plan
        self.stop = frozenset({model.config.eos_token_id}) if stop is None else stop
        self.counters = Counters()
        self.prefixes = Prefixes(cache, shelf, store, self.counters)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def submit(self, prompt: str | Tensor, **settings) -> Request:
        """Queue a prompt: text, or ids [n]; settings as in `Request.of`.

        Raises Busy when the queue is full, RequestError for what cannot be served.
        """
        if len(self.waiting) >= self.max_waiting:
            self.counters.refused += 1
            raise Busy(f"{len(self.waiting)} requests are waiting already: try again when one of them has begun")
        request = Request.of(self.model, self.tokenizer, prompt, **settings)
        self.waiting.append(request)
        self.counters.submitted += 1
        return request

    def cancel(self, request: Request) -> None:
        """End a request. What it has computed stays useful, if its prompt was fed. Nothing happens if it has ended."""
        if request.end is None:
            self._end(request, "cancelled")

    def tokens(self, request: Request) -> Iterator[int]:
        """New tokens of a request as they come. All requests go on meanwhile; leaving the loop cancels this one.

        Raises what made the request fail.
        """
        with closing(self._follow(request, lambda: request.tokens)) as news:
            for new in news:
                yield from new

    def stream(self, request: Request) -> Iterator[str]:
        """New pieces of text of a request, as `tokens`."""
        with closing(self._follow(request, lambda: request.text)) as news:
            yield from filter(None, news)

    def _follow(self, request: Request, seen: Callable[[], Result]) -> Iterator[Result]:
        at = 0
        try:
            while True:
                ended, new = request.end, seen()[at:]
                at += len(new)
                yield new
                if ended:
                    break
                if request.end is None:
                    self.step()
            if request.error:
                raise request.error
        finally:
            self.cancel(request)

    def run(self) -> None:
        """Step until every request has ended."""
        while self.step():
            pass

    def close(self) -> None:
        """Cancel everything and give all pages back."""
        for request in [*self.waiting, *self.running]:
            self.cancel(request)
        if self.prefixes.shelf:
            self.prefixes.shelf.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self) -> bool:
        """Let requests join, decode, feed prompts -> whether any is left."""
        self.counters.steps += 1
        while self.waiting and len(self.running) < self.max_requests:
            self._join(self.waiting.popleft())
        decoding = [r for r in self.running if r.prefill is None]
        budget = self.token_budget - self._decode(decoding)
        for request in [r for r in self.running if r.prefill]:
            budget -= self._feed(request, budget)
        return bool(self.running or self.waiting)

    def _join(self, request: Request) -> None:
        """Find what is known of a prompt, and prepare the rest."""
        self.running.append(request)
        request.ids = request.prompt.tolist()
        try:
            request.state = self._with_room([], lambda: self.prefixes.take(request.ids))
            request.hit = request.state.length
            request.prefill = Prefill(self.model, self.cache, request.state, request.prompt, cut=self.cut)
        except Exception as error:
            self._end(request, "failed", error)
            return
        request.replayed = request.hit - request.prefill.start
        self.counters.replayed_rows += request.replayed

    def _feed(self, request: Request, budget: int) -> int:
        """Feed some of a prompt, and draw a token behind its last one -> rows fed."""
        rows = min(budget, request.prefill.left)
        if not rows:
            return 0
        try:
            hidden = self._with_room([], lambda: request.prefill.run(rows))
            self.counters.prompt_rows += rows
            if hidden is not None:
                request.prefill = None
                self.prefixes.persist(request.ids, request.state)
                drawn = [first(self.model, hidden, request, drafted=self.speculative)] if request.left else []
        except Exception as error:
            self._end(request, "failed", error)
            return rows
        if hidden is not None:
            self._take(request, drawn)
        return rows

    def _decode(self, requests: list[Request]) -> int:
        """One pass over requests that decode, or, if that fails, one over each -> rows fed."""
        if not requests:
            return 0
        try:
            gains, rows = self._with_room(requests, lambda: self._pass(requests))
        except Exception as error:
            if len(requests) > 1:
                return sum(self._decode([request]) for request in requests)
            self._end(requests[0], "failed", error)
            return 0
        self.counters.decode_rows += rows
        for request, drawn in zip(requests, gains, strict=True):
            self._take(request, drawn)
        return rows

    def _pass(self, requests: list[Request]) -> tuple[list[list[int]], int]:
        """Tokens drawn for each request, and rows fed."""
        if not self.speculative:
            return decode(self.model, self.cache, requests), len(requests)
        gains = decode_drafted(self.model, self.cache, requests, plan=self.plan, stop=self.stop)
        drafted = sum(gain.verified for gain in gains)
        self.counters.drafted += drafted
        self.counters.accepted += sum(len(gain.tokens) - 1 for gain in gains)
        return [gain.tokens.tolist() for gain in gains], len(requests) + drafted

    def _with_room(self, requests: list[Request], work: Callable[[], Result]) -> Result:
        """work(); while the cache is full, once more for every sequence given up on the shelf. If it fails, the
        generators of these requests are as before."""
        generators = [r.generator for r in requests]
        before = [g.get_state() for g in generators]
        while True:
            try:
                return work()
            except Exception as error:
                for generator, state in zip(generators, before, strict=True):
                    generator.set_state(state)
                if not (isinstance(error, CacheFull) and self.prefixes.make_room()):
                    raise

    def _take(self, request: Request, drawn: list[int]) -> None:
        """Take in what was drawn."""
        before = len(request.tokens)
        try:
            end = request.take(drawn, self.stop)
        except Exception as error:
            self._end(request, "failed", error)
            return
        self.counters.new_tokens += len(request.tokens) - before
        if end:
            self._end(request, end)

    def _end(self, request: Request, end: End, error: Exception | None = None) -> None:
        """Take a request out. Its sequence goes where the next turn finds it, unless it failed or is incomplete."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self.running.remove(request)
        state, request.state = request.state, None
        try:
            if state and end != "failed" and request.prefill is None:
                self.prefixes.keep(request.ids[: state.length], state)
            elif state:
                self.cache.release(state)
        except Exception as failure:
            end, error = "failed", failure
        request.close(end, error)
        name = end if end in ("cancelled", "failed") else "finished"
        setattr(self.counters, name, getattr(self.counters, name) + 1)
