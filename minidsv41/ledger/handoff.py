"""Bytes that take one sequence to another process: with its window rows, or with a replay order instead."""

from __future__ import annotations

from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import state_lines, stored_lines
from minidsv41.ledger.flops import contexts, label
from minidsv41.ledger.line import Line, fields, least, total

TOKEN_BYTES = 8  # ids are int64


def handoff_lines(c: ModelConfig, length: int, *, draft: bool = True, replay: bool = False) -> list[Line]:
    """The payload of a sequence of `length` tokens in the packed layout.

    draft: with DSpark's rings; replay: with the tokens of a replay order instead of windows, pairs and Engram's ids.
    """
    if not replay:
        return [line for line in state_lines(c, length) if draft or line.name != "draft_window_bytes"]
    window, order = fields(c, "sliding_window engram_max_ngram_size")
    tokens = Line("length", length, "tokens")
    ids = least(tokens, window + (order - 1)).named("replay_tokens", "tokens")
    return [*stored_lines(c, tokens), (ids * TOKEN_BYTES).named("replay_bytes", "B, int64")]


def handoff_bytes(c: ModelConfig, length: int, *, draft: bool = True, replay: bool = False) -> Line:
    """The sum of `handoff_lines`; the manifest comes on top."""
    name = "handoff_bytes_replay" if replay else "handoff_bytes"
    return total(handoff_lines(c, length, draft=draft, replay=replay)).named(name, "B, FP4 main + FP4 index")


def book_lines(c: ModelConfig) -> list[Line]:
    """Both ways at every context of the books."""
    lines = [(n, handoff_bytes(c, n, replay=replay)) for n in contexts(c) for replay in (False, True)]
    return [line.named(f"{line.name}_{label(n)}", line.unit) for n, line in lines]
