"""Bits per byte of held-out text under a model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from minidsv41.train.data import Corpus, Stream, bits_per_byte, validation_windows

Logits = Callable[[Tensor], Tensor]  # tokens [B, T] -> [B, T, V]


@torch.no_grad()
def nats(
    logits: Logits, source: Stream, *, length: int, batch: int, batches: int | None = None, device: str = "cpu"
) -> float:
    """Sum of -ln p over the scored tokens; with `batches`, an estimate from the first batches of windows."""
    total, count = 0.0, 0
    for window in islice(validation_windows(source, length=length, batch_size=batch), batches):
        tokens, scored = window.tokens.to(device), window.scored.flatten().to(device)
        predicted = logits(tokens[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(predicted, tokens[:, 1:].flatten(), reduction="none")
        total += loss[scored].sum(dtype=torch.float64).item()
        count += int(scored.sum())
    return total * int(source.scored.sum()) / count


def validate(logits: Logits, corpus: Corpus, **how) -> dict[str, float]:
    """Bits per byte of the validation text: `total` and each kind, see data.bits_per_byte. `how` goes to `nats`."""
    streams = corpus.validation
    return bits_per_byte({kind: nats(logits, source, **how) for kind, source in streams.items()}, streams)
