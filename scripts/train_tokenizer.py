"""Train the byte-level BPE tokenizer on the training documents and write `data/tokenizer/tokenizer.json`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from minidsv41 import paths
from minidsv41.train.data import documents, split

VOCABULARY = 4096
SPECIALS = ["<|bos|>", "<|eos|>", "<|pad|>", "<|image|>", "<|noise|>"]  # ids 0..4, as in the toy preset


def train(texts: list[str]) -> Tokenizer:
    """The same texts give the same tokenizer, to the byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--text", type=Path, default=None, help="folder of plays/, poems/, python/ (default: data/text)"
    )
    parser.add_argument("--out", type=Path, default=None, help="file to write (default: data/tokenizer/tokenizer.json)")
    args = parser.parse_args()
    texts = [d.text for d in split(documents(args.text or paths.text_dir()))[0]]
    out = args.out or paths.tokenizer_path()
    tokenizer = train(texts)
    assert tokenizer.get_vocab_size() == VOCABULARY
    out.write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    print(f"{out}: {VOCABULARY} tokens")


if __name__ == "__main__":
    main()
