"""What a typed text looks up in Engram's tables: rows, who else lives in them, how far the gates open."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minidsv41.course.phrases import Phrases, distinct, hashing, rows_of
from minidsv41.model import Model


def label(tokenizer: Tokenizer, token: int) -> str:
    """A token in letters that every font has: U+674E for a Chinese character, #1234 for a part of one."""
    text = tokenizer.decode([token], skip_special_tokens=False)
    if "\ufffd" in text:
        return f"#{token}"
    shown = text.strip(" ").replace("\n", "⏎") or "space"
    if shown.isascii() or not shown.strip("⏎"):
        return shown
    return f"U+{ord(shown[0]):04X}" + "…" * (len(shown) > 1)


@dataclass(frozen=True)
class Found:
    """One text of T tokens.

    names [T]; rows, crowd {layer: [T, orders, heads]} and how many known n-grams have that row;
    known [T, orders] bool; gates {layer: [T, streams]}.
    """

    names: list[str]
    rows: dict[int, Tensor]
    crowd: dict[int, Tensor]
    known: Tensor
    gates: dict[int, Tensor]


class Library:
    """A trained model, its tokenizer, and the compressed ids of the text that it was trained on."""

    def __init__(self, model: Model, tokenizer: Tokenizer, ids: Tensor) -> None:
        self.model, self.tokenizer, self.ids = model, tokenizer, ids.numpy()
        self.phrases = Phrases(self.ids, model.config.engram_compressed_vocab_size, model.config.engram_max_ngram_size)
        self.find = lru_cache(maxsize=8)(self.find)

    @cached_property
    def crowds(self) -> dict[int, Tensor]:
        """{layer: [rows of the table] different n-grams of the training text that have this row}"""
        c, counts = self.model.config, {}
        orders = [distinct(self.ids, n) for n in range(2, c.engram_max_ngram_size + 1)]
        for layer, size in zip(c.engram_layer_ids, c.engram_num_embeddings, strict=True):
            rows = torch.cat([rows_of(hashing(c, layer), grams).flatten() for grams in orders])
            counts[layer] = rows.bincount(minlength=size)
        return counts

    def find(self, text: str, limit: int = 32) -> Found:
        """The first `limit` tokens of a text; an empty one counts as a blank."""
        tokens = torch.tensor(self.tokenizer.encode(text or " ").ids[:limit])
        trace, c = self.model.trace(tokens), self.model.config
        rows = {layer: trace[f"L{layer}.engram.rows"] for layer in c.engram_layer_ids}
        shape = (-1, c.engram_max_ngram_size - 1, c.engram_n_heads)
        return Found(
            names=[label(self.tokenizer, token) for token in tokens.tolist()],
            rows={layer: found.view(shape) for layer, found in rows.items()},
            crowd={layer: self.crowds[layer][found].view(shape) for layer, found in rows.items()},
            known=self.phrases.holds(self.model.token_map[tokens].numpy()),
            gates={layer: trace[f"L{layer}.engram.gate"] for layer in c.engram_layer_ids},
        )


def described(found: Found, token: int, layer: int) -> str:
    """HTML: the n-grams that end at a token (the last one if there are fewer), their rows, and the gates."""
    at = min(token, len(found.names) - 1)
    lines = [f"token {at} of {len(found.names)}, layer {layer}"]
    for order in range(found.known.shape[1]):
        words = found.names[max(0, at - order - 1) : at + 1]
        rows = " ".join(f"{row:,}" for row in found.rows[layer][at, order].tolist())
        known = "seen in training" if found.known[at, order] else "never seen"
        gram = html.escape(" · ".join(["pad"] * (order + 2 - len(words)) + words))
        lines.append(f"n = {order + 2}: {gram}: {known}; rows {rows}")
    gates = ", ".join(f"{gate:.2f}" for gate in found.gates[layer][at].tolist())
    return "<br>".join([*lines, f"gates of the four streams: {gates}"])
