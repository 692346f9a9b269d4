"""A machine for a model: how many sessions fit, what binds a step, how long prompts take, what retention costs.

Times are floors: every weight and row is read once at full bandwidth, every product runs at the full rate, work is
divided evenly over the GPUs and what they tell each other is free.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

from minidsv41.config import ModelConfig
from minidsv41.config.presets import PRESETS
from minidsv41.ledger.books import Book
from minidsv41.ledger.line import Line, call, ceiling, fields, least, lift, total
from minidsv41.ledger.machines import MACHINES, Machine, machine, recorded
from minidsv41.ledger.planned import V41, Planned
from minidsv41.ledger.planned_before import BEFORE

CHUNK = 8192  # tokens of a prompt that share one reading of the weights
Bound = Literal["arithmetic", "bandwidth"]


class PlanError(ValueError):
    """A request that no such machine can serve."""


def planned(name: str) -> Planned:
    """A preset, or an ancestor. Raises PlanError with the names."""
    if name in PRESETS:
        return V41("DeepSeek-V4.1-Flash" if name == "flash" else f"preset {name}", ModelConfig.preset(name))
    if name not in BEFORE:
        raise PlanError(f"model = {name!r}: there are {', '.join([*PRESETS, *BEFORE])}")
    return BEFORE[name]


def machine_named(name: str) -> Machine:
    """Raises PlanError with the names."""
    try:
        return machine(name)
    except KeyError:
        raise PlanError(f"gpu = {name!r}: there are {', '.join(m.name for m in MACHINES)}") from None


def machine_recorded(path: Path) -> Machine:
    """The machine of a record that `minidsv41 bench machine` wrote. Raises PlanError for another file."""
    allowed = "allowed is a file that `minidsv41 bench machine` wrote"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise PlanError(f"record = {path}: no JSON; {allowed}") from None
    kind = found.get("kind") if isinstance(found, dict) else None
    if kind != "machine":
        what = f"a record of {kind}" if kind else "no record"
        raise PlanError(f"record = {path}: {what}; {allowed}")
    return recorded(found)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is asked for. context: tokens of a session; hit: tokens of a prompt whose entries are found in the store.

    tables: where Engram's rows lie. free: percent of the memory that activations and the runtime keep. price: what
    a TB (10^12 B) costs for a month, in any currency; an assumption of the user's.
    """

    model: Planned
    machine: Machine = field(default_factory=lambda: machine("H200"))
    gpus: int = 8
    context: int = 131_072
    sessions: int = 1
    hit: int = 0
    tables: Literal["host", "gpu"] = "host"
    free: int = 10
    price: Fraction = Fraction(20)

    def __post_init__(self) -> None:
        rules = {
            "gpus": (self.gpus >= 1, "1 or more"),
            "sessions": (self.sessions >= 1, "1 or more"),
            "hit": (0 <= self.hit < self.context, f"from 0 to context - 1 = {self.context - 1:,}"),
            "tables": (self.tables in ("host", "gpu"), "host or gpu"),
            "free": (0 <= self.free < 100, "percent, from 0 to 99"),
            "price": (self.price >= 0, "0 or more"),
        }
        if not 1 <= self.context <= self.model.longest:
            raise PlanError(f"context = {self.context:,}: {self.model.name} reads 1 to {self.model.longest:,} tokens")
        for name, (holds, allowed) in rules.items():
            if not holds:
                raise PlanError(f"{name} = {getattr(self, name)}: {allowed}")

    def over_gpus(self, name: str, unit: str) -> Line:
        """The machine's quantity `name`, of all GPUs."""
        gpus, one = Line("gpus", self.gpus), fields(self.machine, name)[0]
        return (gpus * one).named(f"all_{name}", unit)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer, in lines whose formulas can be opened; `binds`: the slower of the two in a decode step."""

    order: Order
    memory: dict[str, Line]
    step: dict[str, Line]
    prefill: dict[str, Line]
    retention: dict[str, Line]

    @property
    def fit(self) -> int:
        return int(self.memory["sessions_that_fit"])

    @property
    def running(self) -> int:
        """Sessions that decode together: those asked for, as far as they fit."""
        return int(self.step["running"])

    @property
    def binds(self) -> Bound:
        return "arithmetic" if self.step["arithmetic_s"].value > self.step["bandwidth_s"].value else "bandwidth"


def usable(order: Order) -> Line:
    line = order.over_gpus("memory", "B") * (lift(100) - Line("free", order.free, "%")) / 100
    return line.named("usable_bytes", "B")


def resident(order: Order) -> Line:
    """Weights that lie on the GPUs."""
    tables = order.model.tables() if order.tables == "gpu" else lift(0)
    return (order.model.weights() + tables).named("resident_bytes", "B")


def session_bytes(order: Order) -> Line:
    return total(order.model.session(order.context)).named("session_bytes", "B")


def gpus_for(order: Order, sessions: int) -> int:
    """Fewest GPUs of this kind that hold weights and so many sessions."""
    one = order.machine.memory * Fraction(100 - order.free, 100)
    need = resident(order).value + sessions * session_bytes(order).value
    return -(-need // one)


def check_room(order: Order, have: Line, weights: Line, one: Line) -> None:
    """Raises PlanError, with the GPUs that would do, if not even one session fits."""
    what = f"{order.gpus:,} {order.machine.name} leave {float(have.value) / 1e9:,.1f} GB"
    if weights.value > have.value:
        raise PlanError(
            f"gpus = {order.gpus}: the weights of {order.model.name} take {float(weights.value) / 1e9:,.1f} GB and "
            f"{what}; from {gpus_for(order, 1):,} on they fit, with one session"
        )
    if weights.value + one.value > have.value:
        raise PlanError(
            f"context = {order.context:,}: beside the weights there is no room for one session of "
            f"{float(one.value) / 1e9:,.3f} GB; {gpus_for(order, 1):,} {order.machine.name} have it"
        )


def memory_lines(order: Order) -> dict[str, Line]:
    """Raises PlanError if not even one session fits."""
    have, weights, one = usable(order), resident(order), session_bytes(order)
    check_room(order, have, weights, one)
    fit = ((have - weights) // one).named("sessions_that_fit", "sessions")
    host = [order.model.tables().named("host_table_bytes", "B, in host memory")] if order.tables == "host" else []
    parts = order.model.session(order.context)
    return {line.name: line for line in [have, weights, *host, *parts, one, fit]}


def slower(arithmetic: Line, bandwidth: Line) -> Line:
    return call("max", max, arithmetic, bandwidth)


def step_lines(order: Order, fit: Line) -> dict[str, Line]:
    """One decode step of all sessions that run."""
    asked = Line("sessions", order.sessions, "sessions")
    running = least(asked, fit).named("running", "sessions")
    experts = order.model.experts()
    weights = [order.model.dense_read(), *([experts.read(running)] if experts else [])]
    rows = order.model.reads(order.context)
    one = total(rows).named("session_read_bytes", "B/step")
    read = (total(weights) + running * one).named("read_bytes", "B/step")
    flops = (running * order.model.step_flops(order.context, fp8=order.machine.fp8)).named(
        "all_step_flops", "FLOP/step"
    )
    memory = (read / order.over_gpus("bandwidth", "B/s")).named("bandwidth_s", "s/step")
    arithmetic = (flops / order.over_gpus("flops", "FLOP/s")).named("arithmetic_s", "s/step")
    step = slower(arithmetic, memory).named("step_s", "s/step")
    lines = [running, *weights, *rows, one, read, flops, memory, arithmetic, step]
    lines += [(1 / step).named("tokens_per_second", "tokens/s, a session")]
    lines += [(running / step).named("tokens_per_second_of_all", "tokens/s")]
    return {line.name: line for line in lines}


def prefill_lines(order: Order) -> dict[str, Line]:
    """Seconds of one prompt of `context` tokens, alone on the machine, in each way that the model knows."""
    lines = {}
    rate, bandwidth = order.over_gpus("flops", "FLOP/s"), order.over_gpus("bandwidth", "B/s")
    experts, chunk = order.model.experts(), Line("chunk", CHUNK, "tokens")
    for name, work in order.model.prefill(order.context, order.hit, fp8=order.machine.fp8).items():
        chunks = ceiling(work.rows / chunk).named("chunks", "chunks")
        tokens = least(work.rows, chunk).named("tokens_of_a_chunk", "tokens")
        once = order.model.dense_read() + (experts.read(tokens) if experts else 0)
        rest = lift(1) - work.share  # of the layers runs on the tail alone
        read = ((chunks * work.share + rest) * once).named(f"{name}_weight_read_bytes", "B")
        arithmetic = (work.flops / rate).named(f"{name}_arithmetic_s", "s")
        memory = (read / bandwidth).named(f"{name}_bandwidth_s", "s")
        lines[name] = slower(arithmetic, memory).named(f"{name}_s", "s a prompt")
    return lines


def retention_lines(order: Order) -> dict[str, Line]:
    """What the sessions leave on disk, and its price for a month."""
    one = order.model.stored(order.context)
    whole = (Line("sessions", order.sessions, "sessions") * one).named("disk_bytes", "B")
    price = Line("price", order.price, "for 10^12 B and month, assumed")
    month = (whole / Line("terabyte", 10**12, "B") * price).named("price_of_a_month", "in the currency of price")
    return {line.name: line for line in (one, whole, month)}


def plan(order: Order) -> Plan:
    """Raises PlanError for what cannot be."""
    memory = memory_lines(order)
    return Plan(
        order=order,
        memory=memory,
        step=step_lines(order, memory["sessions_that_fit"]),
        prefill=prefill_lines(order),
        retention=retention_lines(order),
    )


def books(p: Plan) -> list[Book]:
    """The plan as books, to be shown like those of a model."""
    titles = {
        "What fits in memory": p.memory,
        "One decode step of all running sessions (floors)": p.step,
        "One prompt, alone on the machine (floors)": p.prefill,
        "What stays on disk": p.retention,
    }
    return [Book(title, tuple(lines.values())) for title, lines in titles.items()]
