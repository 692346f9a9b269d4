"""Token ids for Engram: many spellings of one word share one compressed id."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers

from minidsv41 import paths

LONE_SPACE = "\ue000"  # stands in for a token that is one space while the edges are stripped

SPELLING = normalizers.Sequence(
    [
        normalizers.NFKC(),
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        normalizers.Replace(Regex(r"\A \z"), LONE_SPACE),
        normalizers.Strip(),
        normalizers.Replace(LONE_SPACE, " "),
    ]
)


def spelling(tokenizer: Tokenizer, token_id: int) -> str:
    """What two tokens must have in common to share a compressed id (official code).

    A token that is no complete UTF-8 text keeps its raw form; others lose case, accents and outer space.
    """
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    if "\ufffd" in text:
        return tokenizer.id_to_token(token_id)
    return SPELLING.normalize_str(text) or text


def token_map(tokenizer: Tokenizer) -> list[int]:
    """Token id -> compressed id, numbered by first appearance.

    Raises ValueError if the tokenizer's ids have a gap.
    """
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    compressed: dict[str, int] = {}
    result = []
    for token_id in range(size):
        if tokenizer.id_to_token(token_id) is None:
            raise ValueError(f"token id {token_id} is missing: a tokenizer of {size} tokens must use ids 0..{size - 1}")
        result.append(compressed.setdefault(spelling(tokenizer, token_id), len(compressed)))
    return result


def load_tokenizer(path: Path | None = None) -> Tokenizer:
    """Read a tokenizer.json (default: the course's own). Text that spells a special token stays text."""
    tokenizer = Tokenizer.from_file(str(path or paths.tokenizer_path()))
    tokenizer.encode_special_tokens = True
    return tokenizer
