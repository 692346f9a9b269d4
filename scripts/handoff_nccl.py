"""Hand sequences over from one GPU to another, one process each, through NCCL; writes data/records/handoff_nccl.json.

With --devices cpu cpu the same over gloo. This process decodes, on the second device; it starts those that prefill.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from minidsv41 import __version__, paths
from minidsv41.cache import Cache
from minidsv41.cache.pages import fingerprint
from minidsv41.config import ModelConfig
from minidsv41.ledger.handoff import handoff_bytes
from minidsv41.model import Model
from minidsv41.serve.handoff import receive, send
from minidsv41.serve.link import GroupLink, Link, LinkError
from minidsv41.serve.manifest import HandoffError
from minidsv41.serve.prefill import prefill
from tests.handoff_peer import empty, go_on, start
from tests.tiny import prompt, tiny

ROOT = Path(__file__).parents[1]
STARTS, SILENT = timedelta(seconds=60), timedelta(seconds=5)  # waits for a process that starts, and for its bytes
BURST = 10  # payloads on their way at once where the link alone is timed
GOOD = dict(length=71, packed=True)
LENGTHS = (1, 6, 7, 64, 71, 130)
REFUSED = {
    "a flipped bit": dict(flips=6, refused="damaged on the way"),
    "another model": dict(options={"model": "0" * 32}, refused="model: the sender runs"),
    "DSpark on one side only": dict(options={"draft": False}, refused="DSpark: the sender does not send"),
}
BROKEN = {
    "killed before the manifest": [GOOD | {"dies": 1}],
    "killed within the payload": [GOOD | {"dies": 9}],
    "silent": [{"silent": 600}],
    "a frame of another size": [{"announce": 10**15}, {"silent": 600}],
}


class Counting:
    """A link that counts the bytes of sections: all that comes behind the manifest."""

    def __init__(self, link: Link) -> None:
        self.link, self.payload, self.before = link, 0, 2

    def send(self, data: torch.Tensor) -> None:
        self.link.send(data)

    def receive(self, size: int) -> torch.Tensor:
        self.payload += size if self.before <= 0 else 0
        self.before -= 1
        return self.link.receive(size)


@contextmanager
def peer(link: GroupLink, device: str, jobs: list[dict], role: str = "prefiller") -> Iterator[subprocess.Popen]:
    """Another process on `device`, connected; killed at the end if it still runs."""
    command = [sys.executable, "-m", "tests.handoff_peer", role, str(link.port), json.dumps(jobs), device]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        link.timeout = STARTS
        link.connect()
        yield process
    finally:
        process.kill()
        process.wait(60)


def difference(link: GroupLink, model: Model, job: dict) -> float:
    """Take a sequence over and go on -> the largest difference of a logit to the same within this process."""
    cache = empty(model, packed=job["packed"])
    got = receive(link, cache, model=fingerprint(model))
    here, state, logits = start(model, job["length"], packed=job["packed"])
    if job.get("replay"):
        got.follow(model, cache)
        here.truncate(state, job["length"])
        prefill(model, here, state, prompt(job["length"]).to(model.device))
    wanted, found = go_on(model, here, state, got.token), go_on(model, cache, got.state, got.token)
    assert got.token == int(logits.argmax()) and wanted[0] == found[0], f"another text behind {job}"
    cache.release(got.state)
    return float((wanted[1] - found[1]).abs().max())


def equality(link: GroupLink, model: Model, far: str) -> dict:
    """Two processes, two devices, float64 with fake quantisation: what one process on one device gives."""
    jobs = [dict(length=n, packed=p) for n in LENGTHS for p in (True, False)]
    jobs += [dict(length=n, packed=True, replay=True) for n in LENGTHS]
    with peer(link, far, jobs):
        found = [difference(link, model, job) for job in jobs]
    assert max(found) <= 1e-9, f"logits differ by {max(found)}"
    return {"hand_overs": len(jobs), "largest_difference_of_a_logit": max(found)}


def refusals(link: GroupLink, model: Model, far: str) -> dict:
    """What the receiver refuses in words leaves the group as it was: after each a sequence goes over."""
    out = {}
    with peer(link, far, [job for bad in REFUSED.values() for job in (GOOD | bad, GOOD)]):
        for name, bad in REFUSED.items():
            cache = empty(model, packed=True)
            try:
                receive(link, cache, model=fingerprint(model))
            except HandoffError as error:
                out[name] = {"said": str(error)}
            assert bad["refused"] in out.get(name, {}).get("said", "nothing"), name
            out[name]["difference_afterwards"] = difference(link, model, GOOD)
    return out


def lost(link: GroupLink, model: Model, far: str) -> dict:
    """A peer that is lost fails its request; then the group is formed anew, and the next peer's sequence is whole."""
    cache, state, logits = start(model, GOOD["length"], packed=True)
    name, out = "killed while it takes over", {}
    with peer(link, far, [dict(packed=True, dies=9)], role="decoder"):
        out[name] = noticed(
            link, lambda: send(link, cache, state, model=fingerprint(model), token=int(logits.argmax()))
        )
    for following, jobs in [*BROKEN.items(), ("", [])]:
        with peer(link, far, [GOOD, *jobs]):
            out[name]["difference_afterwards"] = difference(link, model, GOOD)
            print(f"{name}: {out[name]}", flush=True)
            if name := following:
                out[name] = noticed(link, lambda: receive(link, empty(model, packed=True), model=fingerprint(model)))
    return out


def noticed(link: GroupLink, work: Callable[[], object]) -> dict:
    link.timeout = SILENT
    began = time.perf_counter()
    try:
        work()
    except LinkError as error:
        return {"said": str(error), "seconds_until_noticed": round(time.perf_counter() - began, 2)}
    raise AssertionError("the loss of the peer was not noticed")


def seconds(times: list[float]) -> dict:
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def released(link: GroupLink, model: Model, far: str, length: int, *, rounds: int) -> dict:
    """A cache of the released widths, `length` tokens: bytes against the ledger, and how fast they come."""
    ready, lengths = torch.zeros(1, dtype=torch.uint8), {False: rounds, True: 1}
    due = {order: int(handoff_bytes(ModelConfig(), length, replay=order)) for order in lengths}
    jobs = [dict(released=length, replay=order) for order, times in lengths.items() for _ in range(times)]
    wire, whole = [], []
    with peer(link, far, [{"raw": due[False], "times": rounds + 1, "burst": BURST}, *jobs]):
        buffer = torch.empty(due[False], dtype=torch.uint8, device=model.device)
        for _ in range(rounds + 1):
            link.send(ready)
            began = time.perf_counter()
            for work in [dist.irecv(buffer, 1 - link.rank) for _ in range(BURST)]:
                work.wait(link.timeout)
            wire.append((time.perf_counter() - began) / BURST)
        for job in jobs:
            cache, counting = Cache(ModelConfig(), cache_format="packed", device=model.device), Counting(link)
            link.send(ready)
            began = time.perf_counter()
            receive(counting, cache, model="random bytes")
            if not job["replay"]:
                whole.append(time.perf_counter() - began)
            assert counting.payload == due[job["replay"]], f"{counting.payload} bytes came, the ledger has {due}"
    return {
        "tokens": length,
        "payload_bytes": due[False],
        "payload_bytes_with_a_replay_order": due[True],
        "device_to_device_s": seconds(wire[1:]),
        "device_to_device_gb_per_s": due[False] / statistics.median(wire[1:]) / 1e9,
        "hand_over_s": seconds(whole),
        "hand_over_gb_per_s": due[False] / statistics.median(whole) / 1e9,
    }


def described(devices: list[str]) -> dict:
    gpus = [torch.cuda.get_device_name(d) for d in devices if d != "cpu"]
    nccl = {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))} if gpus else {}
    versions = {"python": platform.python_version(), "torch": torch.__version__, "minidsv41": __version__}
    system = f"{platform.system()} {platform.machine()}"
    return {
        "devices": gpus or devices,
        **versions,
        **nccl,
        "system": system,
        "date": str(datetime.now(timezone.utc).date()),
    }


def attempt(part: Callable[[], dict]) -> dict:
    try:
        return part()
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"}


def measure(devices: list[str], lengths: list[int], rounds: int) -> Iterator[tuple[str, dict]]:
    far, near = devices
    model = tiny().to(near)
    link = GroupLink.host(timeout=STARTS.total_seconds(), device=near)
    parts = {"equality": equality, "refused": refusals, "lost": lost}
    parts |= {f"tokens {n}": partial(released, length=n, rounds=rounds) for n in lengths}
    for name, part in parts.items():
        yield name, attempt(lambda part=part: part(link, model, far))
    link.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", nargs=2, default=["cuda:0", "cuda:1"], help="where prefill and decoding run")
    parser.add_argument("--tokens", type=int, nargs="*", default=[131_072, 1_048_576], help="of the released cache")
    parser.add_argument("--rounds", type=int, default=5, help="hand-overs of each length that are timed")
    parser.add_argument("--out", type=Path, default=paths.records_dir() / "handoff_nccl.json")
    args = parser.parse_args()
    settings = {"devices": args.devices, "tokens": args.tokens, "rounds": args.rounds, "silence_s": SILENT.seconds}
    content = {"kind": "handoff", "settings": settings, "machine": described(args.devices), "results": {}}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name, found in measure(args.devices, args.tokens, args.rounds):
        print(f"{name}: {found}", flush=True)
        content["results"][name] = found
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sys.exit(any("failed" in found for found in content["results"].values()))


if __name__ == "__main__":
    main()
