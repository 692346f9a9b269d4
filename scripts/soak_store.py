"""Kill a store's writer at many random points, and check every page after each; writes data/records/soak_store.json."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

from minidsv41 import paths
from minidsv41.train import machine
from tests.store_process import campaign


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="default: a new one")
    parser.add_argument("--longest", type=float, default=0.2, help="seconds that a writer lives at most")
    parser.add_argument("--out", type=Path, default=paths.records_dir() / "soak_store.json")
    args = parser.parse_args()
    settings = {"kills": args.kills, "seed": args.seed, "longest_life_s": args.longest}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = campaign(Path(folder), args.kills, args.seed, longest=args.longest)
    results["seconds"] = round(time.perf_counter() - began, 1)
    content = {"kind": "soak_store", "settings": settings, "machine": machine.describe(threads=1), "results": results}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{args.out}: {results}")


if __name__ == "__main__":
    main()
