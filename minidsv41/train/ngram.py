"""The bar: an interpolated modified Kneser-Ney n-gram model over the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minidsv41.train.data import BOS, Corpus, Stream, bits_per_byte


@dataclass(frozen=True)
class Order:
    """All n-grams of one order, each a number in base `vocab_size`; its context is the number without the last digit.

    `grams`, `contexts`: int64, ascending. `kept`: share of its context that an n-gram keeps after the discount.
    `given_away`: share of each context that goes to the next shorter order.
    """

    grams: np.ndarray
    kept: np.ndarray
    contexts: np.ndarray
    given_away: np.ndarray


def discounts(counts: np.ndarray, order: int) -> np.ndarray:
    """D(0..3+), from the number of n-grams that occur 1, 2, 3 and 4 times. Raises ValueError on too little text."""
    n = np.bincount(counts, minlength=5)[1:5].astype(float)
    if not n.all():
        raise ValueError(f"too little text: no {order}-gram occurs exactly {1 + int(np.argmin(n))} times")
    y = n[0] / (n[0] + 2 * n[1])
    d = np.array([0, *(k - (k + 1) * y * n[k] / n[k - 1] for k in (1, 2, 3))])
    if not (d[1:] > 0).all():
        raise ValueError(f"too little text: discounts {d[1:].round(3).tolist()} of order {order} are not all positive")
    return d


def fit_order(grams: np.ndarray, counts: np.ndarray, *, vocab_size: int, order: int) -> Order:
    discount = discounts(counts, order)[np.minimum(counts, 3)]
    contexts, of = np.unique(grams // vocab_size, return_inverse=True)
    total = np.bincount(of, counts)
    return Order(grams, (counts - discount) / total[of], contexts, np.bincount(of, discount) / total)


def find(sorted_keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position of each wanted key, and whether it is there at all."""
    place = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
    return place, sorted_keys[place] == wanted


class KneserNey:
    """Chen and Goodman's modified Kneser-Ney model: three discounts for each order, interpolated, down to uniform.

    The longest order counts occurrences; a shorter one counts the different tokens seen to the left of an n-gram, but
    occurrences where it opens a document, since nothing else can stand left of bos. A document's first tokens are
    predicted from repeated bos. Raises ValueError when the text is too little for its discounts.
    """

    def __init__(self, tokens: np.ndarray, *, vocab_size: int, order: int = 4) -> None:
        if vocab_size**order >= 2**63:
            raise ValueError(f"order = {order}: {order} tokens of {vocab_size} ids do not fit 63 bits")
        self.vocab_size, self.order = vocab_size, order
        grams, counts = np.unique(self.grams(tokens), return_counts=True)
        self.orders = [fit_order(grams, counts, vocab_size=vocab_size, order=order)]
        for n in range(order - 1, 0, -1):
            opens = grams // vocab_size ** (n - 1) % vocab_size == BOS
            weight = np.where(opens, counts, 1)
            grams, of = np.unique(grams % vocab_size**n, return_inverse=True)
            counts = np.bincount(of, weight).astype(np.int64)
            self.orders.insert(0, fit_order(grams, counts, vocab_size=vocab_size, order=n))

    def grams(self, tokens: np.ndarray) -> np.ndarray:
        """int64 [scored]: each scored token behind its order - 1 predecessors, as one number."""
        lag = np.concatenate([np.full(self.order - 1, BOS), tokens])
        alive = np.ones(len(tokens), dtype=bool)
        keys = tokens.copy()
        for back in range(1, self.order):
            before = lag[self.order - 1 - back : len(lag) - back]
            alive &= before != BOS  # what lies before the document's bos is bos again
            keys += np.where(alive, before, BOS) * self.vocab_size**back
        return keys[tokens != BOS]

    def probability(self, grams: np.ndarray) -> np.ndarray:
        """P(last token | the tokens before it) of each n-gram of the full order, given as numbers. float64."""
        p = np.full(len(grams), 1 / self.vocab_size)
        for n, level in enumerate(self.orders, start=1):
            wanted = grams % self.vocab_size**n
            place, known = find(level.contexts, wanted // self.vocab_size)
            p *= np.where(known, level.given_away[place], 1)
            place, known = find(level.grams, wanted)
            p += np.where(known, level.kept[place], 0)
        return p

    def nats(self, source: Stream) -> float:
        """Sum of -ln p over every scored token of the stream."""
        return float(-np.log(self.probability(self.grams(source.tokens))).sum())


def baseline(source: Corpus, *, vocab_size: int, order: int = 4) -> dict[str, float]:
    """Validation bits per byte of the n-gram model trained on the training stream: `total`, and of each kind."""
    model = KneserNey(source.train.tokens, vocab_size=vocab_size, order=order)
    nats = {kind: model.nats(part) for kind, part in source.validation.items()}
    return bits_per_byte(nats, source.validation)
