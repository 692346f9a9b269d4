"""Processes that share a store: one writes, others read, and some are killed. None of them imports torch.

python -m tests.store_process ROLE FOLDER SEED COUNT
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from threading import Timer

from minidsv41.cache.record import TOKEN_BYTES, token_bytes
from minidsv41.cache.store import Identity, Store

ROOT = Path(__file__).parents[1]
IDENTITY = Identity("model", "layout", page=64, page_bytes=6000)
MAX_BYTES = 1 << 30


def opened(folder: Path | str, **how) -> Store:
    return Store(folder, IDENTITY, **{"max_bytes": MAX_BYTES} | how)


def pages_of(ids: list[int], identity: Identity = IDENTITY) -> Callable[[int], bytes]:
    """The bytes of each page, which no other prefix has."""
    packed, size = token_bytes(ids), TOKEN_BYTES * identity.page
    repeat = -(-identity.page_bytes // 8)
    return lambda i: (blake2b(packed[: (i + 1) * size], digest_size=8).digest() * repeat)[: identity.page_bytes]


def prompts(seed: int) -> Iterator[list[int]]:
    """Prompts of up to 100 pages; half of them begin as an earlier one does."""
    draw = random.Random(seed)
    earlier: list[list[int]] = []
    while True:
        shared = draw.choice(earlier) if earlier and draw.random() < 0.5 else []
        length = draw.choice([10, 64, 200, 640, 3000, 6400])
        ids = [*shared[: draw.randrange(len(shared) + 1)], *(draw.randrange(1 << 17) for _ in range(length))][:6400]
        earlier = [*earlier[-7:], ids]
        yield ids


def put(store: Store, ids: list[int]) -> int:
    return store.put(ids, pages_of(ids))


def found(store: Store, ids: list[int]) -> int:
    """Pages of ids that the store gives; their bytes must be right."""
    pages, right = store.match(ids), pages_of(ids, store.identity)
    assert all(p.data == right(i) for i, p in enumerate(pages)), "another prompt's bytes"
    return len(pages)


def write(folder: str, seed: int, count: int) -> None:
    """Store `count` prompts (all of them: 0), and say so after each."""
    with opened(folder) as store:
        print("ready", flush=True)
        for ids in islice(prompts(seed), count or None):
            put(store, ids)
            print("stored", flush=True)


def read(folder: str, seed: int, count: int) -> None:
    """Look for `count` prompts, over and over, until all are there; the first look is reported."""
    wanted = list(islice(prompts(seed), count))
    missing, end = 1, time.monotonic() + 60
    with opened(folder) as store:
        found(store, wanted[0])
        print("looked", flush=True)
        while missing and time.monotonic() < end:
            missing = sum(found(store, ids) < len(ids) // IDENTITY.page for ids in wanted)
        print(json.dumps({"missing": missing} | vars(store.counters)))


def look(folder: str, seed: int, count: int) -> None:
    """Look once for `count` prompts, and say how many of their pages are missing."""
    with opened(folder) as store:
        print(sum(len(ids) // IDENTITY.page - found(store, ids) for ids in islice(prompts(seed), count)))


def fill(folder: str, seed: int, limit: int) -> None:
    """Store prompts until something is refused; files may have `limit` bytes (0: whatever the disk has)."""
    if limit:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    kept = []
    with opened(folder) as store:
        for ids in prompts(seed):
            put(store, ids)
            kept.append(found(store, ids))
            if store.counters.refused > 1:
                break
        again = [found(store, ids) for ids in islice(prompts(seed), len(kept))]
        pages, damaged = store.verify()
        said = {"kept": kept, "again": again, "stored": pages, "broken": damaged, "reason": store.last_refusal}
        print(json.dumps(said | vars(store.counters)))


def start(role: str, folder: Path, seed: int, count: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.store_process", role, str(folder), str(seed), str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def start_and_kill(folder: Path, seed: int, delay: float) -> int:
    """Prompts that a writer said it had stored when it was killed after `delay` seconds."""
    with start("write", folder, seed, 0) as process:
        watchdog = Timer(60, process.kill)
        watchdog.start()
        assert process.stdout.readline() == "ready\n", f"the writer after the last kill did not start (seed {seed})"
        time.sleep(delay)
        process.kill()
        acknowledged = process.stdout.read().count("stored\n")
        watchdog.cancel()
    return acknowledged


def check(store: Store, seed: int, acknowledged: int) -> bool:
    """All that was stored is there, and right -> whether the prompt after that is not there as a whole."""
    pages, damaged = store.verify()
    assert not damaged, f"{damaged} of {pages} pages damaged (seed {seed})"
    *whole, last = islice(prompts(seed), acknowledged + 1)
    for ids in whole:
        assert found(store, ids) == len(ids) // IDENTITY.page, f"a stored prompt is gone (seed {seed})"
    return found(store, last) < len(last) // IDENTITY.page


def campaign(folder: Path, kills: int, seed: int, *, longest: float = 0.1, fresh: int = 20) -> dict:
    """Kill a writer `kills` times at random moments; a store lives through `fresh` of them. Raises AssertionError.

    Counts the kills that cut a prompt off, and those in a commit: pages had been written that nobody sees.
    """
    draw = random.Random(seed)
    out = Counter(kills=kills)
    for first in range(0, kills, fresh):
        home, seeds, size = folder / str(first), {}, 0
        for _ in range(min(fresh, kills - first)):
            seed = draw.randrange(1 << 32)
            seeds[seed] = start_and_kill(home, seed, draw.uniform(0, longest))
            with opened(home) as store:
                used = (store.env.info()["last_pgno"] + 1) * store.env.stat()["psize"]
                before, size = size, (home / "data.mdb").stat().st_size
                out["kills_in_a_commit"] += size > max(used, before)
                out["prompts_cut_off"] += check(store, seed, seeds[seed])
        with opened(home) as store:
            for seed, acknowledged in seeds.items():
                check(store, seed, acknowledged)
            out["prompts_stored"] += sum(seeds.values())
            out["pages_stored"] += store.verify()[0]
            assert not store.counters.damaged and not store.counters.strangers
    return dict(out)


if __name__ == "__main__":
    role, folder, seed, count = sys.argv[1:]
    {"write": write, "read": read, "look": look, "fill": fill}[role](folder, int(seed), int(count))
    assert "torch" not in sys.modules
