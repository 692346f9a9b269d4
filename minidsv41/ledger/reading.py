"""The ways in which a prompt can be read: how many rows run through the encoder, and how many through the decoder."""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.config import ModelConfig
from minidsv41.ledger.line import Line, least


@dataclass(frozen=True)
class Way:
    """encoder, decoder: rows that run there; share: of the layers that run on all rows.

    mean, last: positions of the new tokens; tail: whether the decoder runs on the last window only.
    """

    encoder: Line
    decoder: Line
    share: Line
    mean: Line
    last: Line
    tail: bool


def ways(c: ModelConfig, length: int, hit: int) -> dict[str, Way]:
    """hit: tokens whose entries are there. Without windows the last `sliding_window` of them run again."""
    n, old = Line("context", length, "tokens"), Line("hit", hit, "tokens")
    window = Line("sliding_window", c.sliding_window)
    new = (n - old).named("new_tokens", "tokens")
    again = least(window, old).named("replayed_tokens", "tokens")
    mean = ((n + old) // 2).named("mean_position", "tokens")
    whole = Line("share_of_layers", 1)
    half = (Line("encoder_layers", c.decoder_start) / Line("num_hidden_layers", c.num_hidden_layers)).named(
        "share_of_layers", ""
    )

    def way(encoder: Line, decoder: Line, tail: bool) -> Way:
        return Way(encoder, decoder, half if tail else whole, mean, n, tail)

    tail = least(window, new).named("tail_tokens", "tokens")
    if not hit:
        return {"all_layers": way(new, new, False), "decoder_on_its_tail": way(new, tail, True)}
    rows = (again + new).named("encoder_rows", "tokens")
    last = least(window, rows).named("tail_tokens", "tokens")
    return {
        "windows_kept_all_layers": way(new, new, False),
        "windows_kept_decoder_on_its_tail": way(new, tail, True),
        "windows_lost_both_replays": way(rows, last, True),
    }
