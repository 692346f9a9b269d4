"""The published rule for compressed token ids, on a vocabulary that has every case."""

import re
import unicodedata

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from minidsv41.tokens import token_map


def byte_level(texts: list[str | bytes], specials: list[str] = ()) -> Tokenizer:
    """A byte-level tokenizer whose ids 0.. are `texts`, then `specials`."""
    alphabet = byte_alphabet()
    raw = [t.encode("utf-8") if isinstance(t, str) else t for t in texts]
    vocab = {"".join(alphabet[b] for b in t): i for i, t in enumerate(raw)}
    assert len(vocab) == len(texts)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in specials])
    return tokenizer


def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that stands for it in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def independent_spelling(text: str) -> str:
    s = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    s = "".join(c for c in s if unicodedata.category(c) != "Mn").lower()
    s = re.sub(r"[ \t\r\n]+", " ", s)
    return (s if s == " " else s.strip()) or text


def test_each_case_of_the_rule():
    texts = [
        "The",
        " the",
        "THE",
        "thé",
        " ",
        "  ",
        "\n",
        "\t ",
        "ﬁ",
        "fi",
        "中",
        b"\xe4",
        b"\xe4\xb8",
        "\u0301",
        "a b",
        "a\nb",
    ]
    # one word four times; white space of any kind is one space; a ligature; broken UTF-8 stays apart;
    # a lone accent normalises to nothing and keeps its own text; inner white space folds
    expected = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 7]
    assert token_map(byte_level(texts)) == expected


def test_special_tokens_are_kept_and_normalised_like_others():
    assert token_map(byte_level(["<bos>", "x"], ["<BOS>", "<eos>"])) == [0, 1, 0, 2]


def test_agrees_with_python_unicode_on_many_words():
    words = sorted({c for c in map(chr, range(32, 0x2E80)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")})
    words = [w for w in words if not w.isspace() or w in " \t\r\n"][::7] + ["É", "e", " É", "①", "1"]
    words = list(dict.fromkeys(words))
    ids: dict[str, int] = {}
    expected = [ids.setdefault(independent_spelling(w), len(ids)) for w in words]
    assert token_map(byte_level(words)) == expected


def test_gap_in_the_ids_is_refused():
    tokenizer = Tokenizer(models.WordLevel(vocab={"a": 0, "b": 2}, unk_token="a"))
    with pytest.raises(ValueError, match="token id 1 is missing"):
        token_map(tokenizer)
