"""Replay of random hits in random prompts, against the rules that need no replay to be known."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from minidsv41.cache.replay import reconstruct
from minidsv41.config import ModelConfig
from minidsv41.model import Model, SequenceKeys
from minidsv41.model.attention import Context
from minidsv41.ops import Batch
from minidsv41.serve import Prefill, replay
from tests.test_model import whole
from tests.test_replay import CUTS, ENTRIES, W, close, fed, following, held, lose, rows
from tests.tiny import TINY, prompt, tiny

LONGEST = 150


def play(seed: int, folder: Path) -> dict[str, int]:
    draw = random.Random(seed)
    model, length = tiny(seed=seed % 3), draw.randint(1, LONGEST)
    ids, hit, cut = prompt(length + 3, seed), draw.randint(0, length), draw.choice([*CUTS, None])
    said = elsewhere_first(model, ids, length, hit, cut, draw)
    seen = {"replays": 1, "hits_with_an_open_pair": hit % 2, "hits_within_a_window": 0 < hit <= W}
    seen["hits_of_the_whole_prompt"] = hit == length
    close(said, reference(model, ids, length, hit, cut)[length - 1 :])
    if hit <= W and (cut is None or length <= W):
        close(said[0], whole(model, ids)[length - 1])
        seen["equal_to_no_replay"] = 1
    if 0 < hit < length:
        exactly(model, ids, hit, draw)
        seen["exact_reconstructions"] = 1
    return seen


class HitKeys(SequenceKeys):
    """Keys of a whole sequence, of which entries and index keys of the first `hit` tokens are those of another pass."""

    def __init__(self, config: ModelConfig, batch: Batch, exact: SequenceKeys, hit: int) -> None:
        super().__init__(config, batch)
        self.exact, self.hit = exact, hit

    def write(self, kind: str, layer: int, *rows: torch.Tensor) -> None:
        super().write(kind, layer, *rows)
        if kind != "window":
            known = self.hit // self.config.ratio(layer)
            self.rows[kind, layer].data[:known] = self.exact.rows[kind, layer].data[:known]


@torch.no_grad()
def reference(model: Model, ids: torch.Tensor, length: int, hit: int, cut: str | None) -> torch.Tensor:
    """Logits [T, V] of all rows in one call, where masks and the hit's own entries say what a replay may see."""
    c, plain = model.config, Batch.equal(ids[None])
    exact = SequenceKeys(c, plain)
    model(plain, exact)
    start, at = max(0, hit - W), torch.arange(len(ids))
    floor = torch.where(at >= start, start, 0)
    tail = length - W if cut and length - start > W else 0
    tail_floor = torch.where(at >= tail, tail, 0)
    both = (
        {"floor": torch.maximum(floor, tail_floor)}
        if cut == "report"
        else {"floor": floor, "decoder_floor": tail_floor}
    )
    encoder, decoder = Batch.equal(ids[None], floor=floor), Batch.equal(ids[None], **both)
    keys = HitKeys(c, plain, exact, hit)
    below = Context(c, encoder, keys, model.dtype)
    streams, features = model.encode(below)
    above = Context(c, decoder, keys, model.dtype, below.selected, below.pools)
    return model.logits(model.decode(streams, above, features=features).hidden)


def elsewhere_first(model: Model, ids: torch.Tensor, length: int, hit: int, cut: str | None, draw) -> torch.Tensor:
    """Logits after the prompt and the next 3 tokens. The sequence had gone on otherwise behind the hit: no trace of it.

    Chunks and packing change nothing, entries of the hit stay, and those of the first owner are exact.
    """
    other, texts = prompt(draw.randint(0, 40), seed=draw.randrange(1 << 30)), []
    sizes = [draw.randint(1, 2 * W + 2) for _ in range(3)]
    for packed in (False, True):
        cache, state = held(model, torch.cat([ids[:hit], other]), packed=packed)
        kept = {key: rows(cache, state, *key, 0, hit // TINY.ratio(key[1])) for key in ENTRIES}
        if packed:
            lose(cache, state, hit)
            work = Prefill(model, cache, state, ids[:length], cut=cut)
            logits = model.logits(fed(work, sizes)[-1:])[0]
            assert work.start == max(0, hit - W)
        else:
            logits = replay(model, cache, state, ids[:length], hit, cut=cut)
        assert state.length == length and state.replayed == (hit > W)
        for key, value in kept.items():
            assert torch.equal(rows(cache, state, *key, 0, len(value)), value), f"{key} of the hit was written"
        texts.append(torch.cat([logits[None], following(model, cache, state, ids[length:])]))
        first = ENTRIES[0]
        close(rows(cache, state, *first, 0, length // 2), rows(*held(model, ids[:length]), *first, 0, length // 2))
        cache.release(state)
        assert len(cache.windows.free) == cache.windows.pages and len(cache.entries.free) == cache.entries.pages
    close(*texts)
    return texts[0]


def exactly(model: Model, ids: torch.Tensor, hit: int, draw: random.Random) -> None:
    """Reconstruction, as a rectangle or a staircase, leaves what was there before."""
    cache, state = held(model, ids[:hit])
    lose(cache, state, hit)
    reconstruct(model, cache, state, ids, shape=draw.choice(["staircase", "rectangle"]))
    close(following(model, cache, state, ids[hit:]), whole(model, ids)[hit:])
