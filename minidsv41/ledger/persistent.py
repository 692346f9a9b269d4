"""Bytes that outlive a request, for each token of its length: entries and index keys, with window rows or without.

V4 keeps its windows at the end of the prompt and at the end of the output; V4.1 keeps none and replays them.
Windows are counted full, as they are in requests longer than they.
"""

from __future__ import annotations

from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import kv_bytes_per_token, swa_bytes_per_sequence
from minidsv41.ledger.flops import contexts, label
from minidsv41.ledger.line import Line
from minidsv41.ledger.models import V4_FLASH

SNAPSHOTS = Line("snapshots", 2, "windows of a request")


def tokens(length: int) -> Line:
    if length < 1:
        raise ValueError(f"length = {length}: a number of tokens, 1 or more")
    return Line("length", length, "tokens")


def with_windows(per_token: Line, window: Line, length: Line) -> Line:
    return per_token + SNAPSHOTS * window / length


def persistent_bytes_per_token_with_windows(c: ModelConfig, length: int) -> Line:
    """This model's, if windows were kept as V4 keeps them; without them it is `kv_bytes_per_token` at any length."""
    line = with_windows(kv_bytes_per_token(c), swa_bytes_per_sequence(c), tokens(length))
    return line.named(f"persistent_bytes_per_token_with_windows_{label(length)}", "B/token, with FP8 windows")


def v4_parts() -> tuple[Line, Line]:
    """V4-Flash's bytes per token, and those of one window."""
    books = V4_FLASH.bytes()
    names = ("kv_bytes_per_token", "swa_bytes_per_sequence")
    return tuple(books[name].named(f"{name}_of_V4_Flash", books[name].unit) for name in names)


def v4_persistent_bytes_per_token(length: int) -> Line:
    line = with_windows(*v4_parts(), tokens(length))
    return line.named(f"persistent_bytes_per_token_of_V4_Flash_{label(length)}", "B/token, with windows")


def half_length() -> Line:
    """Length at which windows are half of what V4-Flash keeps."""
    per_token, window = v4_parts()
    return (SNAPSHOTS * window / per_token).named("windows_are_half_of_V4_Flash_at", "tokens")


def persistent_ratio(c: ModelConfig, length: int) -> Line:
    """How many times fewer bytes this model keeps without windows than V4-Flash with them."""
    ratio = v4_persistent_bytes_per_token(length) / kv_bytes_per_token(c)
    return ratio.named(f"persistent_ratio_vs_V4_Flash_{label(length)}", "times")


def persistent_ratio_at_half(c: ModelConfig) -> Line:
    """The published 1/8: twice the ratio per token, where windows are half."""
    both = with_windows(*v4_parts(), half_length())
    return (both / kv_bytes_per_token(c)).named("persistent_ratio_vs_V4_Flash_at_half", "times")


def persistent_lines(c: ModelConfig, *, ancestors: bool) -> list[Line]:
    """At the report's contexts; against V4-Flash where the ancestors are shown."""
    lines = [kv_bytes_per_token(c)]
    for length in contexts(c):
        lines.append(persistent_bytes_per_token_with_windows(c, length))
        if ancestors:
            lines += [v4_persistent_bytes_per_token(length), persistent_ratio(c, length)]
    return [*lines, half_length(), persistent_ratio_at_half(c)] if ancestors else lines
