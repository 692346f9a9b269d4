from collections import Counter, defaultdict

import numpy as np
import pytest

from minidsv41 import paths
from minidsv41.tokens import load_tokenizer
from minidsv41.train.data import BOS, EOS, Stream, corpus, documents, split, stream
from minidsv41.train.ngram import KneserNey, baseline

VOCAB = 4096


@pytest.fixture(scope="module")
def model():
    return KneserNey(corpus().train.tokens, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def poems() -> list[list[int]]:
    """Real text with many document starts, small enough for the textbook model."""
    tokenizer = load_tokenizer()
    chosen = [d for d in split(documents(paths.text_dir()))[0] if d.kind == "poems"][:120]
    return [stream([d], tokenizer).tokens.tolist() for d in chosen]


class Textbook:
    """The same model written down with dictionaries, one probability at a time."""

    def __init__(self, found: list[list[int]], order: int):
        self.counts = {n: Counter() for n in range(1, order + 1)}
        for d in found:
            padded = [BOS] * (order - 2) + d
            for end in range(order, len(padded) + 1):
                self.counts[order][tuple(padded[end - order : end])] += 1
        for n in range(order - 1, 0, -1):
            left = defaultdict(set)
            for gram in self.counts[n + 1]:
                left[gram[1:]].add(gram[0])
            for gram, before in left.items():
                self.counts[n][gram] = self.counts[n + 1][(BOS, *gram)] if gram[0] == BOS else len(before)
        self.followers = defaultdict(dict)
        for counts in self.counts.values():
            for gram, c in counts.items():
                self.followers[gram[:-1]][gram[-1]] = c
        self.discount = {n: self.discounts(list(c.values())) for n, c in self.counts.items()}

    @staticmethod
    def discounts(values):
        n1, n2, n3, n4 = (values.count(k) for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        return [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]

    def probability(self, context: tuple[int, ...], token: int) -> float:
        n = len(context) + 1
        lower = self.probability(context[1:], token) if context else 1 / VOCAB
        followers = self.followers.get(context)
        if not followers:
            return lower
        d, total = self.discount[n], sum(followers.values())
        given_away = sum(d[min(c, 3)] for c in followers.values()) / total
        c = followers.get(token, 0)
        return (c - d[min(c, 3)]) / total + given_away * lower


@pytest.mark.parametrize("order", [2, 3, 4])
def test_equals_the_textbook_model(poems, order):
    tokens = np.concatenate(poems)
    fast, slow = KneserNey(tokens, vocab_size=VOCAB, order=order), Textbook(poems, order)
    seen = fast.grams(tokens)[::29]
    rng = np.random.default_rng(1)
    for keys in (seen, seen // VOCAB * VOCAB + rng.choice(tokens, len(seen)), rng.permuted(tokens)[: len(seen)]):
        digits = [tuple(int(k) // VOCAB**back % VOCAB for back in reversed(range(order))) for k in keys]
        expected = [slow.probability(gram[:-1], gram[-1]) for gram in digits]
        np.testing.assert_allclose(fast.probability(keys), expected, rtol=1e-12)


def test_predecessors_stop_at_the_document_s_start(poems):
    m = KneserNey(np.concatenate(poems), vocab_size=VOCAB, order=3)
    tokens = np.array([BOS, 7, 8, 9, EOS, BOS, 7, EOS])
    wanted = [(BOS, BOS, 7), (BOS, 7, 8), (7, 8, 9), (8, 9, EOS), (BOS, BOS, 7), (BOS, 7, EOS)]
    assert m.grams(tokens).tolist() == [(a * VOCAB + b) * VOCAB + c for a, b, c in wanted]


def test_probabilities_sum_to_one_in_any_context(model):
    rng = np.random.default_rng(0)
    seen = rng.choice(model.grams(corpus().train.tokens), 30) // VOCAB
    unseen = rng.choice(model.grams(corpus().validation["python"].tokens), 30) // VOCAB
    wild = rng.integers(0, VOCAB**3, 30)
    levels = model.orders[-1].contexts
    assert np.isin(seen, levels).all()
    assert not np.isin(wild, levels).any()
    for context in np.concatenate([seen, unseen, wild]):
        p = model.probability(context * VOCAB + np.arange(VOCAB))
        assert (p > 0).all()
        assert p.sum() == pytest.approx(1, abs=1e-9)


def test_scores_the_same_tokens_as_a_network(model):
    for source in corpus().validation.values():
        assert len(model.grams(source.tokens)) == source.scored.sum()
    short = Stream(np.array([BOS, 700, EOS]), text_bytes=2)
    expected = -np.log(model.probability(np.array([700, 700 * VOCAB + EOS]))).sum()
    assert model.nats(short) == pytest.approx(expected)


def test_longer_contexts_help_and_the_readme_states_the_bar():
    orders = [baseline(corpus(), vocab_size=VOCAB, order=n) for n in (1, 2, 3, 4)]
    for shorter, longer in zip(orders, orders[1:], strict=False):
        assert all(longer[kind] < shorter[kind] for kind in longer)
    bar = orders[-1]
    row = "| {total:.3f} | {plays:.3f} | {poems:.3f} | {python:.3f} |".format(**bar)
    assert row in (paths.data_dir() / "README.md").read_text(encoding="utf-8")


def test_too_little_text_is_refused():
    with pytest.raises(ValueError, match="too little text: no 4-gram occurs exactly"):
        KneserNey(np.array([BOS, 5, 6, 5, 6, 7, EOS]), vocab_size=10)


def test_too_long_an_order_is_refused():
    with pytest.raises(ValueError, match="order = 6"):
        KneserNey(corpus().train.tokens, vocab_size=VOCAB, order=6)
