"""Generation: the same text however it is cut, the context's end, sampling, streaming."""

from __future__ import annotations

import pytest
import torch

from minidsv41.cache import Cache
from minidsv41.cache.pool import CacheFull
from minidsv41.config import ConfigError
from minidsv41.serve import RequestError, generate, speak
from minidsv41.serve.generate import choose
from minidsv41.tokens import load_tokenizer
from tests.tiny import TINY, prompt, tiny


def whole_greedy(model, ids: torch.Tensor, n: int) -> list[int]:
    from tests.test_model import whole

    for _ in range(n):
        ids = torch.cat([ids, whole(model, ids)[-1].argmax()[None]])
    return ids[-n:].tolist()


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_greedy_decode_repeats_what_whole_forwards_choose(chunk: int) -> None:
    model, ids = tiny(), prompt(17)
    assert list(generate(model, ids, max_new=12, chunk=chunk, cut=None)) == whole_greedy(model, ids, 12)


def test_generation_stops_at_a_stop_id_and_at_the_context() -> None:
    model, ids = tiny(), prompt(17)
    free = list(generate(model, ids, max_new=12))
    assert list(generate(model, ids, max_new=12, stop=frozenset({free[4]}))) == free[: free.index(free[4]) + 1]
    short = tiny(max_position_embeddings=20)
    assert len(list(generate(short, ids, max_new=50))) == 4  # 17 + 4 tokens, of which the last is never fed
    assert list(generate(model, ids, max_new=0)) == []


def test_a_cache_gets_its_pages_back_even_from_an_abandoned_stream() -> None:
    model = tiny()
    cache = Cache(model.config, dtype=model.dtype)
    stream = generate(model, prompt(17), cache=cache)
    next(stream)
    assert len(cache.entries.free) < cache.entries.pages
    stream.close()
    assert len(cache.entries.free) == cache.entries.pages


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature = -1"),
        ({"temperature": 1e-40}, "temperature = 1e-40"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"temperature": float("inf")}, "temperature = inf"),
        ({"top_p": float("nan")}, "top_p = nan"),
        ({"chunk": 0}, "chunk = 0"),
        ({"top_p": 0}, "top_p = 0"),
        ({"top_p": 1.5}, "top_p = 1.5"),
        ({"max_new": -2}, "max_new = -2"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        generate(tiny(), prompt(4), **settings)


def test_extreme_settings_that_are_allowed() -> None:
    logits = torch.tensor([1.0, 3.0, -2.0])
    for extreme in ({"temperature": 1e-6, "top_p": 1.0}, {"temperature": 1.0, "top_p": 1e-320}):
        assert int(choose(logits, generator=None, **extreme)) == 1
    g = torch.Generator().manual_seed(0)
    hot = [int(choose(logits, temperature=1e30, top_p=1.0, generator=g)) for _ in range(300)]
    assert min(hot.count(i) for i in range(3)) > 60


@pytest.mark.parametrize("ids", [[3, 64], [-1]])
def test_ids_that_are_no_tokens_are_refused(ids: list[int]) -> None:
    with pytest.raises(RequestError, match=r"token ids -?\d+..-?\d+: allowed are 0..63"):
        generate(tiny(), torch.tensor(ids))


def test_a_broken_weight_is_no_traceback() -> None:
    model = tiny()
    model.norm.weight.data[0] = torch.nan
    for temperature in (0, 1):
        with pytest.raises(RequestError, match="NaN or infinity"):
            next(generate(model, prompt(4), temperature=temperature))


def test_a_prompt_must_be_text_in_the_vocabulary_of_the_model() -> None:
    tokenizer = load_tokenizer()
    with pytest.raises(RequestError, match="not valid UTF-8"):
        speak(tiny(vocab_size=tokenizer.get_vocab_size()), tokenizer, "a\udcff")
    with pytest.raises(RequestError, match="a tokenizer of 4096 tokens for a model of 64"):
        speak(tiny(), tokenizer, "a")


@pytest.mark.parametrize("length", [0, TINY.max_position_embeddings + 1])
def test_prompts_out_of_range_are_refused(length: int) -> None:
    with pytest.raises(RequestError, match=f"prompt of {length} tokens: allowed are 1 to"):
        generate(tiny(), prompt(length))


def test_a_full_cache_says_so() -> None:
    model = tiny()
    cache = Cache(model.config, dtype=model.dtype, limit=2)
    with pytest.raises(CacheFull, match="all 2 pages of 64 tokens"):
        next(generate(model, prompt(200), cache=cache))


def test_packed_storage_needs_rounding() -> None:
    with pytest.raises(ConfigError, match="qat must be on"):
        Cache(tiny(qat=False).config, cache_format="packed")


def test_top_p_keeps_the_smallest_set_that_holds_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    g = torch.Generator().manual_seed(0)
    drawn = [int(choose(logits, temperature=1.0, top_p=0.6, generator=g)) for _ in range(2000)]
    assert set(drawn) == {0, 1}
    assert abs(drawn.count(0) / 2000 - 0.625) < 0.05
    cold = [int(choose(logits, temperature=0.5, top_p=1.0, generator=g)) for _ in range(4000)]
    assert abs(cold.count(0) / 4000 - 0.25 / (0.25 + 0.09 + 0.0225 + 0.0025)) < 0.04


def test_the_stream_is_the_decoded_text_and_the_same_seed_repeats_it() -> None:
    tokenizer = load_tokenizer()
    model = tiny(dtype=torch.float32, vocab_size=tokenizer.get_vocab_size())

    def say(seed: int) -> str:
        g = torch.Generator().manual_seed(seed)
        return "".join(speak(model, tokenizer, "春眠不觉晓", max_new=40, temperature=1.0, generator=g))

    assert say(1) == say(1) != say(2)
    ids = torch.tensor([TINY.bos_token_id, *tokenizer.encode("春眠不觉晓").ids])
    g = torch.Generator().manual_seed(1)
    tokens = list(generate(model, ids, max_new=40, temperature=1.0, generator=g, stop=frozenset({TINY.eos_token_id})))
    assert say(1) == tokenizer.decode(tokens, skip_special_tokens=True)
