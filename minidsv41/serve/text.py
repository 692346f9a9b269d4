"""From text to text: encode a prompt, stream what the model adds."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from minidsv41.model import Model
from minidsv41.serve.generate import RequestError, generate
from minidsv41.serve.speculative import speculate


def encode(model: Model, tokenizer: Tokenizer, prompt: str) -> torch.Tensor:
    """Token ids [n] of a new document that begins with `prompt`.

    Raises RequestError for text that is not Unicode, and for a tokenizer of another vocabulary.
    """
    if (size := tokenizer.get_vocab_size()) != (vocab := model.config.vocab_size):
        raise RequestError(f"a tokenizer of {size} tokens for a model of {vocab}: is its tokenizer.json missing?")
    if any("\ud800" <= c <= "\udfff" for c in prompt):
        raise RequestError("prompt: not valid UTF-8 text")
    return torch.tensor([model.config.bos_token_id, *tokenizer.encode(prompt).ids], device=model.device)


def speak(model: Model, tokenizer: Tokenizer, prompt: str, *, speculative: bool = False, **settings) -> Iterator[str]:
    """Pieces of text after `prompt`, one by one, each a whole number of characters; settings as in `generate`.

    speculative: several tokens a step, drafted by DSpark and verified. Ends at the end-of-document token. Bytes that
    never form a character come out as U+FFFD. Raises RequestError, before any work, as `encode` and `generate` do.
    """
    stop = frozenset({model.config.eos_token_id})
    run = speculate if speculative else generate
    return pieces(tokenizer, run(model, encode(model, tokenizer, prompt), stop=stop, **settings))


def pieces(tokenizer: Tokenizer, tokens: Iterator[int]) -> Iterator[str]:
    """Token ids -> text, given out as soon as it is whole."""
    ids, decoder, said = [], DecodeStream(skip_special_tokens=True), ""
    for token in tokens:
        ids.append(token)
        if piece := decoder.step(tokenizer, token):
            said += piece
            yield piece
    if rest := tokenizer.decode(ids, skip_special_tokens=True).removeprefix(said):
        yield rest
