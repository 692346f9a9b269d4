"""A plan in sentences: what fits, what binds, what waits, what a prompt and retention cost."""

from __future__ import annotations

from minidsv41.ledger.line import Line
from minidsv41.ledger.plan import Plan, gpus_for

WORDS = {
    "dense_read_bytes": "weights that every token meets",
    "expert_read_bytes": "routed experts",
    "cache_read_bytes": "the cache",
    "scan_bytes": "index keys, all of them",
    "pool_bytes": "index keys of the pool",
    "gather_bytes": "chosen entries",
    "window_read_bytes": "windows",
}


def read_by_kind(p: Plan) -> dict[str, float]:
    """Bytes of one step of all running sessions, by what is read."""
    weights = ("dense_read_bytes", "expert_read_bytes")
    return {name: float(p.step[name].value) * (1 if name in weights else p.running) for name in WORDS if name in p.step}


def amount(size: float) -> str:
    unit, scale = next(
        (u, s) for u, s in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= s or u == "kB"
    )
    return f"{size / scale:,.4g} {unit}"


def time(line: Line) -> str:
    seconds = float(line.value)
    return f"{seconds:,.3g} s" if seconds >= 1 else f"{1000 * seconds:,.3g} ms"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def sessions(n: int) -> str:
    return f"{n:,} session" + "s" * (n != 1)


def fits(p: Plan) -> list[str]:
    o = p.order
    said = [f"{sessions(p.fit)} of {o.context:,} tokens fit on {o.gpus:,} {o.machine.name}."]
    if o.sessions > p.fit:
        waiting, more = o.sessions - p.fit, gpus_for(o, o.sessions)
        said.append(f"{o.sessions:,} were asked for: {waiting:,} wait. Memory binds; {more:,} would hold all.")
    return said


def binds(p: Plan) -> str:
    """What limits a step, and how much of it."""
    if p.binds == "arithmetic":
        return "arithmetic"
    kinds = read_by_kind(p)
    largest = max(kinds, key=kinds.get)
    return f"bandwidth: {kinds[largest] / sum(kinds.values()):.0%} of its bytes are {WORDS[largest]}"


def findings(p: Plan) -> list[str]:
    """Sentences, one thing each."""
    o, step = p.order, p.step
    speed, whole = (float(step[n].value) for n in ("tokens_per_second", "tokens_per_second_of_all"))
    ways = ", ".join(f"{time(line)} ({name.replace('_', ' ')})" for name, line in p.prefill.items())
    found = f", {o.hit:,} of them found," if o.hit else ""
    disk, month = (float(p.retention[n].value) for n in ("disk_bytes", "price_of_a_month"))
    price = f"{month:,.4g} a month at {float(o.price):g} a TB, assumed"
    return [
        *fits(p),
        f"A step of {p.running:,} takes {time(step['step_s'])} at least, bound by {binds(p)}.",
        f"That is at most {rate(speed)} tokens/s for each and {rate(whole)} for all.",
        f"A prompt of {o.context:,} tokens{found} takes at least {ways}.",
        f"On disk {sessions(o.sessions)} leave{'s' * (o.sessions == 1)} {amount(disk)}: {price}.",
        *(f"Not from a source: {text}." for text in o.model.assumed),
    ]
