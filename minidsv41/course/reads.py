"""Which tokens a query reads, layer by layer: window rows and selected entries, from a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from minidsv41.config import Mode, ModelConfig


@dataclass(frozen=True)
class Reading:
    """What one layer reads for one query.

    window: first and last token, inclusive. entries: selected rows of layer `owner`, chosen by layer `chooser`,
    out of `visible`; an entry covers `ratio` tokens.
    """

    layer: int
    mode: Mode
    window: tuple[int, int]
    owner: int | None = None
    chooser: int | None = None
    ratio: int = 0
    visible: int = 0
    entries: tuple[int, ...] = ()

    def tokens(self) -> list[int]:
        """Tokens that the selected entries were made of."""
        return [self.ratio * e + i for e in self.entries for i in range(self.ratio)]


def readings(config: ModelConfig, trace: Mapping[str, Tensor], query: int) -> list[Reading]:
    """One Reading a layer for the query at position `query` of `model.trace(ids)`."""
    found = []
    for layer in range(config.num_hidden_layers):
        window = (max(0, query - config.sliding_window + 1), query)
        owner, chooser, ratio = config.kv_owner(layer), config.index_owner(layer), config.ratio(layer)
        if owner is None:
            found.append(Reading(layer, "window", window))
            continue
        chosen = tuple(e for e in trace[f"L{chooser}.idx.topk"][query].tolist() if e >= 0)
        visible = (query + 1) // ratio
        found.append(Reading(layer, config.mode(layer), window, owner, chooser, ratio, visible, chosen))
    return found


def described(found: list[Reading]) -> str:
    """Two lines of HTML: the windows, and each run of layers that share one selection."""
    first, query = found[0].window
    lines = [f"query {query}: window rows {first}–{query} in each of {len(found)} layers"]
    shared: dict[int, list[Reading]] = {}
    for reading in found:
        if reading.chooser is not None:
            shared.setdefault(reading.chooser, []).append(reading)
    parts = [
        f"layers {group[0].layer}–{group[-1].layer}: {len(group[0].entries)} of {group[0].visible} entries"
        for group in shared.values()
    ]
    return "<br>".join([*lines, " · ".join(parts)])
