"""A decode step of the whole model on a GPU, and what its context adds to it: the record of `minidsv41 bench model`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from minidsv41.config import ModelConfig
from minidsv41.course.records import from_gpu
from minidsv41.ledger.flops import label
from minidsv41.ledger.params import active_decode_full

RECORD = "bench_model"


class Kind(NamedTuple):
    """batch: sequences in the step; rows: tokens of each; pool: whether it binds later layers; cache: packed, float."""

    batch: int
    rows: int
    pool: bool
    cache: str


Steps = dict[Kind, dict[int, dict[str, Any]]]


def steps() -> Steps:
    """What was measured, by kind and context; empty as long as there is no record."""
    out: Steps = {}
    for row in (from_gpu(RECORD) or {"results": {"steps": []}})["results"]["steps"]:
        if "us" in row:
            kind = Kind(row["batch"], row["rows"], row["pool"], row["cache"])
            out.setdefault(kind, {})[row["context"]] = row
    return out


def prompts() -> list[dict[str, Any]]:
    """Prompts that were taken in, each with its seconds and the bytes that a token left.

    Where nobody looked whether kernels were compiled meanwhile, the seconds say nothing of the prompt.
    """
    rows = found["results"]["prefill"] if (found := from_gpu(RECORD)) else []
    return [row for row in rows if "stopped_after" not in row and "compiled_during" in row]


def taken(prompt: dict[str, Any]) -> str:
    """A prompt, to be read; what was compiled meanwhile is in its seconds."""
    most = "at most " if prompt["compiled_during"] else ""
    times = f"{prompt['seconds']:.1f} s, {prompt['tokens_per_second']:,.0f} tokens/s"
    said = f"{times}{' or more, for a kernel was compiled meanwhile' if most else ''}"
    return f"prompt of {prompt['tokens']:,}: {most}{said}; {prompt['bytes_per_token']:.0f} B a token"


def lines(found: Steps) -> Iterator[str]:
    """Decoding with the pool: the step at each context, its growth, and a step that verifies the tokens of a draft."""
    for kind, own in found.items():
        if kind.rows == 1 and kind.pool and kind.cache == "packed":
            times = ", ".join(f"{label(n)} {step['us']['median'] / 1e3:.2f} ms" for n, step in own.items())
            n, last = max(own.items())
            yield f"{kind.batch:>2} at once: {times}; growth {last['growth']:.3f}"
            yield f"            added {last['added_us']:,.0f} µs, reading alone {last['added_floor_us']:,.0f}"
            for other, step in ((k, v[n]) for k, v in found.items() if k._replace(rows=1) == kind != k and n in v):
                times = step["us"]["median"] / last["us"]["median"]
                yield f"            {other.rows} tokens of each at once, at {label(n)}: {times:.2f} times as long"


def shares(found: Steps) -> Iterator[str]:
    """Of a decode step at the shortest and at the longest context, the ms of its kernels by what they are for."""
    for kind, own in found.items():
        for n in dict.fromkeys((min(own), max(own))):
            if groups := own[n].get("kernels"):
                parts = sorted(groups.items(), key=lambda group: -group[1]["us"])
                ms = ", ".join(f"{name} {group['us'] / 1e3:.1f}" for name, group in parts)
                launches = sum(group["launches"] for group in groups.values())
                yield f"{kind.batch:>2} at once, {label(n):>2}, ms: {ms}; {launches:,} launches"


def weights() -> Iterator[str]:
    """The weights that one token meets, and the time to read them at the rate of the record."""
    if found := from_gpu(RECORD):
        size = 2 * float(active_decode_full(ModelConfig.preset(found["settings"]["preset"])).value)
        ms = 1e3 * size / found["results"]["copy_bytes_per_second"]
        yield f"weights that a token meets: {size / 1e9:.1f} GB, read in {ms:.1f} ms"


def formats(found: Steps) -> Iterator[str]:
    """The same steps on packed caches and on caches in BF16, each at the longest context that both have."""
    for kind, own in found.items():
        packed = found.get(kind._replace(cache="packed"), {})
        if kind.cache == "float" and (both := own.keys() & packed.keys()):
            n = max(both)
            times = (
                f"{name} {step[n]['us']['median'] / 1e3:.2f} ms" for name, step in (("packed", packed), ("BF16", own))
            )
            yield f"a decode step, {kind.batch} at once, {label(n)}: " + ", ".join(times)
