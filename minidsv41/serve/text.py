"""From text to text: encode a prompt, stream what the model adds."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from minidsv41.model import Model
from minidsv41.serve.generate import generate


def encode(model: Model, tokenizer: Tokenizer, prompt: str) -> torch.Tensor:
    """Token ids [n] of a new document that begins with `prompt`."""
    return torch.tensor([model.config.bos_token_id, *tokenizer.encode(prompt).ids], device=model.device)


def speak(model: Model, tokenizer: Tokenizer, prompt: str, **settings) -> Iterator[str]:
    """Yield pieces of text after `prompt`, each a whole number of characters; settings as in `generate`.

    Ends at the end-of-document token. Bytes that never form a character come out as U+FFFD.
    """
    ids, decoder = [], DecodeStream(skip_special_tokens=True)
    said = ""
    stop = frozenset({model.config.eos_token_id})
    for token in generate(model, encode(model, tokenizer, prompt), stop=stop, **settings):
        ids.append(token)
        if piece := decoder.step(tokenizer, token):
            said += piece
            yield piece
    if rest := tokenizer.decode(ids, skip_special_tokens=True).removeprefix(said):
        yield rest
