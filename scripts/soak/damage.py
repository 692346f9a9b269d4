"""Bits of a store's file flip. In a record: exactly that page is a miss. Elsewhere: never another prompt's bytes.

Elsewhere is beside a record, or in LMDB's tree: then its reader may fail in any way, so a process of its own looks.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

from minidsv41.cache.store import IDENTITY as IDENTITY_KEY
from tests.store_process import IDENTITY, ROOT, found, opened, prompts, put

FLIPS = 12
KIND, TREE = 10, 0b1011  # where a page of LMDB says what it is, and the bits of branches, leaves and roots


def play(seed: int, folder: Path) -> dict[str, int]:
    draw, seen = random.Random(seed), Counter()
    with opened(folder / "whole") as store:
        for ids in islice(prompts(seed), 5):
            put(store, ids)
        page = store.env.stat()["psize"]
        with store.env.begin() as txn:
            records = [bytes(value) for key, value in txn.cursor() if bytes(key) != IDENTITY_KEY]
    raw = (folder / "whole" / "data.mdb").read_bytes()
    spans = [(at, at + len(r)) for r in records if (at := raw.find(r)) >= 0]
    assert len(spans) == len(records), "a record is not in the file as one piece"
    whole = [(start // page * page, -(-end // page) * page) for start, end in spans]
    pages = [(at, at + page) for at in range(0, len(raw), page) if not any(s <= at < e for s, e in whole)]
    trees = [(start, end) for start, end in pages if raw[start + KIND] & TREE]
    for i in range(FLIPS):
        hurt = folder / str(i)
        shutil.copytree(folder / "whole", hurt)
        where = draw.choice(["record", "beside", "tree"])
        at = outside(draw, spans, len(raw))
        if where != "beside":
            at = draw.randrange(*draw.choice(spans if where == "record" else trees))
        with (hurt / "data.mdb").open("r+b") as file:
            file.seek(at)
            file.write(bytes([raw[at] ^ 1 << draw.randrange(8)]))
        seen.update(in_a_record(hurt, seed) if where == "record" else elsewhere(hurt, seed, where))
        shutil.rmtree(hurt)
    return dict(seen)


def outside(draw: random.Random, spans: list[tuple[int, int]], size: int) -> int:
    """A byte of the file that belongs to no record."""
    while True:
        at = draw.randrange(size)
        if not any(start <= at < end for start, end in spans):
            return at


def in_a_record(folder: Path, seed: int) -> list[str]:
    """One page is noticed, everything before it is found, and storing again mends it."""
    with opened(folder) as store:
        pages, damaged = store.verify()
        assert damaged == 1, f"{damaged} of {pages} pages are damaged"
        some = list(islice(prompts(seed), 5))
        there, whole = sum(found(store, ids) for ids in some), sum(len(ids) // IDENTITY.page for ids in some)
        assert there < whole and store.counters.damaged, "a damaged page was believed"
        for ids in some:
            put(store, ids)
            assert found(store, ids) == len(ids) // IDENTITY.page, "not mended"
        assert store.verify()[1] == 0
    return ["bits_record", "record_detected_and_mended"]


def elsewhere(folder: Path, seed: int, where: str) -> list[str]:
    command = [sys.executable, "-m", "tests.store_process", "look", str(folder), str(seed), "5"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return [f"bits_{where}", f"{where}_reader_stuck"]
    assert "another prompt's bytes" not in done.stderr, done.stderr
    if done.returncode < 0:
        return [f"bits_{where}", f"{where}_reader_crashed"]
    if done.returncode:
        return [f"bits_{where}", f"{where}_refused"]
    return [f"bits_{where}", f"{where}_harmless" if done.stdout.strip() == "0" else f"{where}_pages_missing"]
