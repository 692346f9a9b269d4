"""Play every fault campaign for some minutes each; writes data/records/soak.json.

A failure is printed with its seed and counted; `--part NAME --seed SEED --rounds 1` plays it again. An interrupted run
records what it has done.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from minidsv41 import paths
from minidsv41.train import machine

PARTS = {"writer": 2, "damage": 1, "readers": 1, "handoff": 1, "engine": 2, "replay": 1}  # shares of the time
LEAST = {"writer": 10}  # rounds that are played whatever they take: 200 kills


def campaign(name: str, *, seconds: float, rounds: int | None, seed: int) -> dict:
    """Play rounds until the time is over, at least `rounds` of them or exactly so many if no time is given."""
    play, draw = importlib.import_module(f"scripts.soak.{name}").play, random.Random(seed)
    out, counts, began = (
        {"seed": seed, "rounds": 0, "faults": [], "seconds": 0.0, "counts": {}},
        Counter(),
        time.monotonic(),
    )
    with tqdm(desc=name, total=round(seconds), unit="s", disable=not seconds) as bar:
        while out["seconds"] < seconds or out["rounds"] < (rounds or 0):
            this = draw.randrange(1 << 32) if rounds != 1 else seed
            try:
                with tempfile.TemporaryDirectory() as folder:
                    counts.update(play(this, Path(folder)))
            except KeyboardInterrupt:
                out["interrupted"] = True
                break
            except Exception as error:
                traceback.print_exc()
                print(f"{name}: seed {this}: {error!r:.300}", file=sys.stderr)
                out["faults"].append({"seed": this, "said": f"{error!r:.300}"})
            out["rounds"] += 1
            out["seconds"] = round(time.monotonic() - began, 1)
            bar.update(min(bar.total, out["seconds"]) - bar.n)
    return out | {"counts": {what: int(n) for what, n in counts.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="for all parts together")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; may repeat")
    parser.add_argument("--rounds", type=int, help="so many rounds of each part instead of minutes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="default: a new one")
    parser.add_argument("--out", type=Path, default=paths.records_dir() / "soak.json")
    args = parser.parse_args()
    parts = args.part or list(PARTS)
    content = {
        "kind": "soak",
        "settings": {"minutes": None if args.rounds else args.minutes, "rounds": args.rounds, "seed": args.seed},
        "machine": machine.describe(threads=1),
        "results": {},
    }
    for name in parts:
        share = 0.0 if args.rounds else 60 * args.minutes * PARTS[name] / sum(PARTS[p] for p in parts)
        found = content["results"][name] = campaign(
            name, seconds=share, rounds=args.rounds or LEAST.get(name), seed=args.seed
        )
        print(f"{name}: {found}")
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if "interrupted" in found:
            break
    sys.exit(any(found["faults"] for found in content["results"].values()))


if __name__ == "__main__":
    main()
