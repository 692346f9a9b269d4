"""What Engram's hash needs beside the config: the compressed id of every token."""

from __future__ import annotations

from itertools import accumulate, chain
from pathlib import Path

from minidsv41.checkpoint.errors import CheckpointError, existing, read_object
from minidsv41.config import ModelConfig
from minidsv41.model.engram import multipliers
from minidsv41.tokens import load_tokenizer, token_map


def read_token_map(folder: Path, config: ModelConfig) -> list[int]:
    """Compressed id of each token: by the published rule if there is a tokenizer.json, else from engram.json."""
    if (folder / "tokenizer.json").is_file():
        return from_tokenizer(folder / "tokenizer.json", config)
    path = existing(folder, "engram.json")
    stored = read_object(path)
    ids = checked(path, stored.get("token_map"), config)
    for name, value in engram_json(config, ids).items():
        if stored.get(name, value) != value:
            raise CheckpointError(f"{path}: {name} = {stored[name]!r:.60}, this config gives {value!r:.60}")
    return ids


def from_tokenizer(path: Path, config: ModelConfig) -> list[int]:
    try:
        ids = token_map(load_tokenizer(path))
    except Exception as error:  # the library raises nothing more special
        raise CheckpointError(f"{path}: {error}") from None
    if (size := max(ids, default=-1) + 1) != config.engram_compressed_vocab_size:
        raise CheckpointError(
            f"{path}: {len(ids)} tokens with {size} compressed ids, expected engram_compressed_vocab_size = "
            f"{config.engram_compressed_vocab_size}: Engram's hash depends on it"
        )
    return checked(path, ids, config)


def checked(path: Path, ids: object, config: ModelConfig) -> list[int]:
    """`ids` if they are one compressed id for each token."""
    if not isinstance(ids, list):
        raise CheckpointError(f"{path}: token_map is {type(ids).__name__}, expected a list of compressed ids")
    if len(ids) != config.vocab_size:
        raise CheckpointError(f"{path}: compressed ids of {len(ids)} tokens, expected vocab_size = {config.vocab_size}")
    size = config.engram_compressed_vocab_size
    for token, i in enumerate(ids):
        if type(i) is not int or not 0 <= i < size:
            raise CheckpointError(f"{path}: token_map[{token}] = {i!r}, expected an integer in 0..{size - 1}")
    return ids


def engram_json(config: ModelConfig, ids: list[int]) -> dict:
    """Content of engram.json. Only token_map is news; the rest follows from the config and serves for checking."""
    primes = [[list(order) for order in layer] for layer in config.engram_primes]
    return {
        "token_map": ids,
        "pad_id": ids[config.engram_pad_token_id],
        "layer_ids": list(config.engram_layer_ids),
        "primes": primes,
        "offsets": [[0, *accumulate(chain(*layer))][:-1] for layer in primes],
        "num_embeddings": list(config.engram_num_embeddings),
        "multipliers": [[str(m) for m in multipliers(config, layer)] for layer in config.engram_layer_ids],
    }
