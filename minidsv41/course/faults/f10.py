"""Lesson 10: slips of stores and hits, which no trace of the model shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from minidsv41.cache import Cache, CacheKeys, State
from minidsv41.cache.record import Record, token_bytes
from minidsv41.cache.store import Identity, Store, roll
from minidsv41.config import ModelConfig
from minidsv41.course.sabotage import Fault, replaced
from minidsv41.model import Model
from minidsv41.ops import Batch
from minidsv41.serve.generate import step
from minidsv41.serve.prefill import prefill, replay

SMALL = Identity("model", "layout", page=2, page_bytes=8)
HIT = 15


@cache
def model() -> Model:
    """An untrained toy in float64."""
    return Model(ModelConfig.preset("toy")).initialise(torch.Generator().manual_seed(0)).cast(torch.float64)


def tokens(count: int, seed: int) -> Tensor:
    return torch.randint(5, model().config.vocab_size, (count,), generator=torch.Generator().manual_seed(seed))


def entries(held: Cache, state: State) -> list[int]:
    """A checksum of the first owner's entries, one by one."""
    pool = held.pools["entry", held.config.kv_source_layer_ids[0]]
    rows = [state.entries[i // pool.page] * pool.page + i % pool.page for i in range(state.length // 2)]
    return [round(float(row.abs().sum()), 6) for row in pool.data[rows].double()]


def after_odd_turn() -> list[int]:
    """A prompt of odd length, then more tokens behind it, windows kept."""
    held = Cache(model().config, dtype=torch.float64)
    state = held.new()
    prefill(model(), held, state, tokens(HIT, 1), cut=None)
    step(model(), held, state, tokens(5, 2))
    return entries(held, state)


def after_odd_branch() -> list[int]:
    """A conversation, then another one that shares its first tokens, an odd number, and no more."""
    held, old = Cache(model().config, dtype=torch.float64), tokens(24, 1)
    state = held.new()
    prefill(model(), held, state, old, cut=None)
    replay(model(), held, state, torch.cat([old[:HIT], tokens(5, 2)]), HIT)
    return entries(held, state)


def after_replay() -> list[int]:
    """The entries of a hit that is longer than a window, after its replay."""
    held, ids = Cache(model().config, dtype=torch.float64), tokens(83, 1)
    state = held.new()
    prefill(model(), held, state, ids[:80], cut=None)
    replay(model(), held, state, ids, 80)
    return entries(held, state)


def pasted() -> list[int]:
    """Pages found of a prompt whose second page another conversation has too, behind another first one."""
    with TemporaryDirectory() as folder, Store(folder, SMALL, max_bytes=1 << 20) as store:
        store.put([1, 2, 7, 8], lambda page: b"original")
        store.put([3, 4], lambda page: b"original")
        return [len(store.match(ids)) for ids in ([1, 2, 7, 8], [3, 4, 7, 8])]


def damaged() -> list[str]:
    """What a store gives of a page of which one bit has flipped."""
    with TemporaryDirectory() as folder, Store(folder, SMALL, max_bytes=1 << 20) as store:
        store.put([1, 2], lambda page: b"original")
        with store.env.begin(write=True) as txn:
            key = roll(b"", token_bytes([1, 2]))
            raw = bytearray(txn.get(key))
            raw[-1] ^= 1
            txn.put(key, bytes(raw))
        return [record.data.decode() for record in store.match([1, 2])]


def forgotten_pair():
    def read(original: Callable) -> Callable:
        def nothing(self: CacheKeys, owner: int, pairs: Tensor) -> Tensor:
            before = original(self, owner, pairs)
            turn = torch.tensor([n > 1 for n in self.batch.lengths], device=before.device)
            return torch.where(turn[:, None, None], 0.0, before)

        return nothing

    return replaced(CacheKeys, "open_pair", read)


def straddling_entry():
    def write(original: Callable) -> Callable:
        def later(self: CacheKeys, kind: str, layer: int, seq: Tensor, index: Tensor, values: Tensor) -> None:
            if kind != "window" and self.kept != list(self.batch.starts):
                new = index * self.cache.config.ratio(layer) >= torch.tensor(self.kept)[seq]
                seq, index, values = seq[new], index[new], values[new]
            original(self, kind, layer, seq, index, values)

        return later

    return replaced(CacheKeys, "write", write)


def overwriting_replay():
    def keys(original: Callable) -> Callable:
        def from_its_start(
            self: Cache, states: list[State], batch: Batch, *, kept: list[int] | None = None
        ) -> CacheKeys:
            return original(self, states, batch, kept=list(batch.starts) if kept else kept)

        return from_its_start

    return replaced(Cache, "keys", keys)


@contextmanager
def own_tokens_only() -> Iterator[None]:
    """A page is found by its own tokens, whatever stood before it."""

    def chain(original: Callable) -> Callable:
        def alone(self: Store, ids: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
            return ((roll(b"", own), own) for _, own in original(self, ids))

        return alone

    def find(original: Callable) -> Callable:
        def careless(self: Store, txn: Any, key: bytes, own: bytes, parent: int) -> Record | None:
            raw = txn.get(key)
            return original(self, txn, key, own, self._unpack(raw).parent if raw else parent)

        return careless

    with replaced(Store, "_chain", chain), replaced(Store, "_find", find):
        yield


def no_checksum():
    return replaced(Record, "unpack", lambda original: classmethod(unchecked))


def unchecked(cls: type[Record], raw: bytes, *, page: int, page_bytes: int) -> Record:
    """What `Record.unpack` gives for a whole record, without a look at its checksum."""
    raw, at = bytes(raw), len(raw) - page_bytes
    return cls(link=1, parent=0, replayed=False, tokens=raw[at - 4 * page : at], data=raw[at:])


FAULTS = (
    Fault(
        name="10.forgotten_pair",
        kind={"en": "state", "zh": "状态"},
        change={
            "en": "a turn begins without the pair that the last one left open",
            "zh": "新一轮开始时丢失了上一轮未完成的压缩组",
        },
        symptom={
            "en": "every second conversation goes on a little wrong, for good; those of even length never do",
            "zh": "每两段对话就有一段从此略有偏差；长度为偶数的从不出错",
        },
        apply=forgotten_pair,
        probe=after_odd_turn,
    ),
    Fault(
        name="10.straddling_entry",
        kind={"en": "state", "zh": "状态"},
        change={
            "en": "a hit of odd length keeps the entry that lies across its end",
            "zh": "奇数长度的命中保留了跨越其末端的条目",
        },
        symptom={
            "en": "an edited message still has one token of its old wording in it",
            "zh": "修改后的消息里仍残留旧文的一个 token",
        },
        apply=straddling_entry,
        probe=after_odd_branch,
    ),
    Fault(
        name="10.overwriting_replay",
        kind={"en": "state", "zh": "状态"},
        change={
            "en": "replayed tokens write their entries and index keys again",
            "zh": "重放的 token 再次写入条目和索引键",
        },
        symptom={
            "en": "every return replaces exact entries by approximate ones; a conversation wears out",
            "zh": "每次返回都用近似条目覆盖精确条目；对话逐渐磨损",
        },
        apply=overwriting_replay,
        probe=after_replay,
    ),
    Fault(
        name="10.own_tokens_only",
        kind={"en": "addressing", "zh": "寻址"},
        change={
            "en": "a page is found by its own 64 tokens, not by all before them",
            "zh": "只按本页的 64 个 token 查找，而不看之前的全部",
        },
        symptom={
            "en": "a file pasted into two chats: the second is answered from the entries of the first",
            "zh": "同一文件贴进两个对话：第二个用的是第一个的条目",
        },
        apply=own_tokens_only,
        probe=pasted,
    ),
    Fault(
        name="10.no_checksum",
        kind={"en": "integrity", "zh": "完整性"},
        change={"en": "a record's checksum is not looked at", "zh": "不检查记录的校验和"},
        symptom={
            "en": "a bad sector speaks in the answers of all who share the prefix",
            "zh": "坏扇区混进了所有共享此前缀的回答",
        },
        apply=no_checksum,
        probe=damaged,
    ),
)
