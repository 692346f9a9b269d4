"""Processes read a store while one writes, and some of either are killed: no page is wrong, and none stays away."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

from tests.store_process import opened, start

PROMPTS = 40


def play(seed: int, folder: Path) -> dict[str, int]:
    draw, seen = random.Random(seed), Counter()
    opened(folder).close()
    readers = [start("read", folder, seed, PROMPTS) for _ in range(2)]
    for role in draw.sample(["read", "write"], draw.randrange(3)):
        victim = start(role, folder, seed, PROMPTS)
        time.sleep(draw.uniform(0, 0.5))
        victim.kill()
        victim.communicate(timeout=60)
        seen["killed"] += 1
    writer = start("write", folder, seed, PROMPTS)
    for reader in readers:
        said, _ = reader.communicate(timeout=120)
        assert reader.returncode == 0, "a reader failed"
        counters = json.loads(said.splitlines()[-1])
        assert counters["missing"] == counters["damaged"] == counters["strangers"] == 0, counters
        seen.update(lookups=counters["lookups"], lookups_that_missed=counters["misses"], pages_read=counters["pages"])
    said, _ = writer.communicate(timeout=120)
    assert writer.returncode == 0 and said.count("stored") == PROMPTS, "the writer failed"
    return dict(seen)
