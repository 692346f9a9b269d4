"""Pages on disk: found by their tokens, never mistaken, and whole after whatever happened to the process."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidsv41.cache import store as module
from minidsv41.cache.store import Identity, Store, StoreError
from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import kv_bytes_per_token
from tests.store_process import IDENTITY, ROOT, campaign, found, opened, pages_of, prompts, put, start

PAGE = IDENTITY.page
THREE = list(range(3 * PAGE + 10))  # three pages and a rest


def test_the_longest_stored_prefix_is_found(tmp_path):
    with opened(tmp_path) as store:
        assert found(store, THREE) == 0
        assert put(store, THREE) == 3
        assert put(store, THREE) == 0
        for length, pages in ((0, 0), (PAGE - 1, 0), (PAGE, 1), (3 * PAGE - 1, 2), (len(THREE), 3)):
            assert found(store, THREE[:length]) == pages
        assert found(store, [*THREE[: 2 * PAGE], *range(PAGE)]) == 2
        assert found(store, THREE[1:]) == 0
        assert vars(store.counters) == dict(lookups=8, pages=8, misses=3, damaged=0, strangers=0, written=3, refused=0)
        assert store.verify() == (3, 0)
        assert 3 * IDENTITY.page_bytes < store.nbytes < 3 * (IDENTITY.page_bytes + PAGE * 4 + 24) + 4 * 4096


def test_on_disk_a_token_takes_what_the_ledger_says_and_less_than_one_percent_more(tmp_path):
    per_token = kv_bytes_per_token(ModelConfig.preset("flash")).value
    with Store(tmp_path, Identity("model", "layout", PAGE, PAGE * per_token)) as store:
        ids = list(range(100 * PAGE))
        store.put(ids, lambda i: bytes(PAGE * per_token))
        assert 1 < store.nbytes / (per_token * len(ids)) < 1.01


def test_a_store_outlives_its_process(tmp_path):
    with opened(tmp_path / "new" / "folder") as store:
        put(store, THREE)
    with opened(tmp_path / "new" / "folder") as store:
        assert found(store, THREE) == 3
        assert put(store, [*THREE[:PAGE], *range(1000, 1000 + 2 * PAGE)]) == 2
        assert found(store, [*THREE[:PAGE], *range(1000, 1000 + 2 * PAGE)]) == 3


def test_what_follows_a_replayed_page_is_replayed(tmp_path):
    with opened(tmp_path) as store:
        page = pages_of(THREE)
        store.put(THREE[:PAGE], page)
        store.put(THREE[: 2 * PAGE], page, replayed=True)
        store.put(THREE, page)
        assert [p.replayed for p in store.match(THREE)] == [False, True, True]
        store.put(THREE, page)  # what is there stays as it is
        assert [p.replayed for p in store.match(THREE)] == [False, True, True]


# Never another prompt's entries

WEAK = {
    "all alike": lambda before, tokens: b"k",
    "own tokens only": lambda before, tokens: module.roll(b"", tokens),
    "prefix only": lambda before, tokens: module.roll(before, b""),
    "two keys": lambda before, tokens: module.roll(before, tokens)[:1].translate(bytes(i & 1 for i in range(256))),
}
SMALL = Identity("model", "layout", page=2, page_bytes=8)
IDS = st.lists(st.integers(0, 1), max_size=9)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "match", "flip"]), IDS, st.integers(0, 10**6)), max_size=25)


def flip(store: Store, at: int) -> None:
    """One bit of one stored record, as the disk would."""
    with store.env.begin(write=True) as txn:
        records = [(key, value) for key, value in txn.cursor() if key != module.IDENTITY]
        if records:
            key, value = records[at % len(records)]
            bit = at % (8 * len(value))
            value = bytearray(value)
            value[bit // 8] ^= 1 << bit % 8
            txn.put(key, bytes(value))


@pytest.mark.parametrize("weak", WEAK.values(), ids=WEAK)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_colliding_hashes_and_flipped_bits_never_give_another_prompts_page(weak, steps):
    with tempfile.TemporaryDirectory() as folder, Store(folder, SMALL, hash=weak) as store:
        for what, ids, at in steps:
            if what == "flip":
                flip(store, at)
                continue
            if what == "put":
                store.put(ids, pages_of(ids, SMALL))
            found(store, ids)


def test_a_collision_is_counted_and_the_later_prompt_is_kept(tmp_path):
    with opened(tmp_path, hash=WEAK["own tokens only"]) as store:
        first, second = [0] * PAGE + THREE[:PAGE], [1] * PAGE + THREE[:PAGE]
        put(store, first)
        assert put(store, second) == 2  # the second page has the first prompt's key and tokens
        assert (found(store, second), found(store, first)) == (2, 1)
        assert store.counters.strangers == 2


def test_a_check_of_the_pages_own_tokens_would_not_do(tmp_path, monkeypatch):
    """The property above has teeth: without the links it fails."""
    find = Store._find

    def careless(self, txn, key, tokens, parent):
        raw = txn.get(key)
        return find(self, txn, key, tokens, self._unpack(raw).parent if raw else parent)

    monkeypatch.setattr(Store, "_find", careless)
    with opened(tmp_path, hash=WEAK["own tokens only"]) as store:
        put(store, [0] * PAGE + THREE[:PAGE])
        put(store, [1] * PAGE)
        with pytest.raises(AssertionError, match="another prompt's bytes"):
            found(store, [1] * PAGE + THREE[:PAGE])


# Damage


@pytest.mark.parametrize(
    "offset",
    [-280, -277, -276, -272, -264, -257, -256, -1, 0, 1, IDENTITY.page_bytes // 2, IDENTITY.page_bytes - 1],
)
def test_a_flipped_bit_is_a_miss_and_is_mended(tmp_path, offset):
    """Offsets are those of the record: checksum, flag, link, parent's link, tokens, then (from 0) data."""
    with opened(tmp_path) as store:
        put(store, THREE)
    path = tmp_path / "data.mdb"
    raw = bytearray(path.read_bytes())
    data = pages_of(THREE)(1)
    at = raw.index(data)
    assert raw.count(data) == 1
    raw[at + offset] ^= 0x10
    path.write_bytes(raw)
    with opened(tmp_path) as store:
        assert store.verify() == (3, 1)
        assert found(store, THREE) == 1
        assert (store.counters.damaged, store.counters.misses) == (1, 1)
        assert put(store, THREE) == 2  # the page, and the one that named it as its forerunner
        assert found(store, THREE) == 3 and store.verify() == (3, 0)


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000], ids=["empty", "text"])
def test_a_file_that_is_no_store(tmp_path, content):
    (tmp_path / "data.mdb").write_bytes(content)
    if content:
        with pytest.raises(StoreError, match="cannot be used as a store"):
            opened(tmp_path)
    else:
        with opened(tmp_path) as store:
            assert put(store, THREE) == 3


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be used as a store"):
        opened(tmp_path / "file")


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"layout": "other"}, {"page": 32}, {"page_bytes": 5}], ids=lambda c: next(iter(c))
)
def test_another_models_store_is_refused(tmp_path, change):
    with opened(tmp_path) as store:
        put(store, THREE)
    ((name, value),) = change.items()
    with pytest.raises(StoreError, match=f"{name} = {getattr(IDENTITY, name)!r}, expected {value!r}.*another folder"):
        Store(tmp_path, replace(IDENTITY, **change))
    with opened(tmp_path) as store:
        assert found(store, THREE) == 3


def test_another_versions_store_is_refused(tmp_path, monkeypatch):
    opened(tmp_path).close()
    monkeypatch.setattr(module, "VERSION", 2)
    with pytest.raises(StoreError, match="version = 1, expected 2"):
        opened(tmp_path)


# Processes


def test_a_writer_killed_at_twenty_random_points(tmp_path):
    result = campaign(tmp_path, 20, seed=1)
    assert result["prompts_stored"] > 20 and result["pages_stored"] > 100
    assert result["prompts_cut_off"] > 10


def test_two_processes_read_while_one_writes(tmp_path):
    opened(tmp_path).close()
    readers = [start("read", tmp_path, 5, 60) for _ in range(2)]
    assert [reader.stdout.readline() for reader in readers] == ["looked\n"] * 2
    writer = start("write", tmp_path, 5, 60)
    for reader in readers:
        said, _ = reader.communicate(timeout=90)
        assert reader.returncode == 0
        counters = json.loads(said)
        assert counters["missing"] == counters["damaged"] == counters["strangers"] == 0
        assert counters["misses"] > 0, "it never looked before all was there"
    said, _ = writer.communicate(timeout=90)
    assert writer.returncode == 0 and said.count("stored") == 60


def test_a_reader_with_a_smaller_limit_follows_the_writer(tmp_path):
    with opened(tmp_path, max_bytes=1 << 20) as store:
        put(store, THREE)
        writer = start("write", tmp_path, 6, 30)
        assert writer.wait(timeout=60) == 0
        writer.stdout.close()
        assert (tmp_path / "data.mdb").stat().st_size > 1 << 20
        for ids in islice(prompts(6), 30):
            assert found(store, ids) == len(ids) // PAGE


# A full disk


def check_full(said: dict) -> None:
    assert said["refused"] == 2 and said["damaged"] == said["strangers"] == said["broken"] == 0
    assert said["again"] == said["kept"] and sum(said["kept"]) > 0
    assert said["written"] == said["stored"] > 0
    assert said["reason"].startswith("mdb_txn_commit")


def test_a_full_store_keeps_what_it_has(tmp_path):
    with opened(tmp_path, max_bytes=1 << 20) as store:
        some = list(islice(prompts(3), 12))
        wanted = sum(map(len, some)) // PAGE
        assert 0 < sum(put(store, ids) for ids in some) < wanted
        assert store.counters.refused > 0 and "MAP_FULL" in store.last_refusal
        kept = [found(store, ids) for ids in some]
        assert store.verify() == (store.counters.written, 0)
    with opened(tmp_path) as store:  # with more room the rest is taken as well
        assert [found(store, ids) for ids in some] == kept
        for ids in some:
            put(store, ids)
            assert found(store, ids) == len(ids) // PAGE


def test_a_write_that_the_system_refuses(tmp_path):
    """A limit on the size of files makes the write itself fail, in the middle of a commit."""
    pytest.importorskip("resource", reason="no limits on this system")
    process = start("fill", tmp_path, 3, 1 << 20)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    check_full(json.loads(said))


def test_a_disk_without_room(tmp_path):
    """A small file system of its own, in a name space of its own."""
    own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=1m tmpfs '{tmp_path}'"
    if not shutil.which("unshare") or subprocess.run([*own, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    process = f"{mount} && exec '{sys.executable}' -m tests.store_process fill '{tmp_path}' 3 0"
    done = subprocess.run([*own, process], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    check_full(json.loads(done.stdout))


# What it must not depend on


def test_bytes_only_and_no_clock():
    source = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    names = {a.name for n in ast.walk(source) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in ast.walk(source) if isinstance(n, ast.ImportFrom)}
    assert not names & {"torch", "numpy", "time", "datetime"}
    alone = "import sys, minidsv41.cache.store; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", alone], cwd=ROOT).returncode == 0
