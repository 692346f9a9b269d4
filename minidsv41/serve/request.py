"""One request to the engine: what it asks for and what has become of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minidsv41.cache import State
from minidsv41.model import Model
from minidsv41.serve.generate import check
from minidsv41.serve.prefill import Prefill, RequestError
from minidsv41.serve.text import encode
from minidsv41.serve.transcript import Transcript

End = Literal["stop", "length", "cancelled", "failed"]


@dataclass(eq=False, kw_only=True)
class Request:
    """Made by `Engine.submit`. To be read: `tokens` (new ones), `text`, `end` (None while it waits or runs), `error`.

    hit: tokens of the prompt whose entries were known; replayed: how many of them ran again for their windows.
    """

    prompt: Tensor  # [n]
    limit: int  # most new tokens
    temperature: float
    top_p: float
    generator: torch.Generator
    transcript: Transcript | None = None
    tokens: list[int] = field(default_factory=list)
    end: End | None = None
    error: Exception | None = None
    hit: int = 0
    replayed: int = 0
    # The engine's own:
    state: State | None = None
    prefill: Prefill | None = None  # until the prompt has been fed
    ids: list[int] = field(default_factory=list)  # prompt and all that was drawn, of which the last is not yet fed

    @classmethod
    def of(
        cls,
        model: Model,
        tokenizer: Tokenizer | None,
        prompt: str | Tensor,
        *,
        max_new: int = 200,
        temperature: float = 0.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        stop_strings: tuple[str, ...] = (),
    ) -> Request:
        """A request for what follows a text, or ids [n].

        max_new: 0 prepares the prefix alone. generator: the request's own; without one each request gets its own,
        seeded with 0. stop_strings: the text ends before the first of them. Raises RequestError.
        """
        if (isinstance(prompt, str) or stop_strings) and tokenizer is None:
            raise RequestError("text and stop strings need a tokenizer, and this engine has none")
        if not all(stop_strings):
            raise RequestError("stop_strings: one of them is empty")
        ids = encode(model, tokenizer, prompt) if isinstance(prompt, str) else prompt.to(model.device)
        check(model, ids, max_new=max_new, temperature=temperature, top_p=top_p, chunk=1)
        return cls(
            prompt=ids,
            limit=min(max_new, model.config.max_position_embeddings - len(ids) + 1),
            temperature=temperature,
            top_p=top_p,
            generator=generator or torch.Generator(model.device).manual_seed(0),
            transcript=Transcript(tokenizer, stop_strings) if tokenizer else None,
        )

    @property
    def text(self) -> str:
        """What may be shown by now; empty without a tokenizer."""
        return self.transcript.text if self.transcript else ""

    @property
    def left(self) -> int:
        """New tokens that may still come."""
        return self.limit - len(self.tokens)

    def take(self, drawn: list[int], stop: frozenset[int]) -> End | None:
        """Take in tokens that were drawn, up to the one that ends the request -> why it ends, if it does."""
        self.ids += drawn
        for token in drawn:
            self.tokens.append(token)
            if self.transcript:
                self.transcript.add(token)
            if token in stop or (self.transcript and self.transcript.stopped):
                return "stop"
        return None if self.left else "length"

    def close(self, end: End, error: Exception | None = None) -> None:
        self.end, self.error, self.prefill = end, error, None
        if self.transcript and end != "failed":
            self.transcript.end()
