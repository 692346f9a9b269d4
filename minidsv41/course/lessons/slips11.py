"""Lesson 11: the planner's answer to `11.plan`, and the wrong machines that people order instead."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from minidsv41.ledger.bytes import swa_bytes_per_sequence
from minidsv41.ledger.findings import read_by_kind
from minidsv41.ledger.line import Line
from minidsv41.ledger.machines import machine
from minidsv41.ledger.plan import Order, Plan, gpus_for, plan, planned

GROUPS = {"dense_read_bytes": "dense weights", "expert_read_bytes": "routed experts"}


def ordered(context: int, sessions: int, gpus: int = 8) -> Order:
    return Order(model=planned("flash"), machine=machine("H200"), gpus=gpus, context=context, sessions=sessions)


def largest(kinds: dict[str, float]) -> str:
    """Which of dense weights, routed experts and cache has most bytes."""
    groups: dict[str, float] = {}
    for name, size in kinds.items():
        group = GROUPS.get(name, "cache")
        groups[group] = groups.get(group, 0) + size
    return max(groups, key=groups.get)


def limit(found: Plan) -> str:
    return "arithmetic" if found.binds == "arithmetic" else largest(read_by_kind(found))


def planned_machine(context: int, sessions: int) -> tuple[int, str]:
    gpus = gpus_for(ordered(context, sessions), sessions)
    return gpus, limit(plan(ordered(context, sessions, gpus)))


def no_reserve(context: int, sessions: int) -> tuple[int, str]:
    return gpus_for(replace(ordered(context, sessions), free=0), sessions), planned_machine(context, sessions)[1]


def growing_only(context: int, sessions: int) -> tuple[int, str]:
    order = ordered(context, sessions)
    need = int(order.model.weights()) + sessions * int(order.model.stored(context))
    return ceil(need / (0.9 * order.machine.memory)), planned_machine(context, sessions)[1]


def bare_windows(context: int, sessions: int) -> tuple[int, str]:
    order = ordered(context, sessions)
    held = int(order.model.stored(context)) + int(swa_bytes_per_sequence(order.model.config))
    need = int(order.model.weights()) + sessions * held
    return ceil(need / (0.9 * order.machine.memory)), planned_machine(context, sessions)[1]


def tables_too(context: int, sessions: int) -> tuple[int, str]:
    return gpus_for(replace(ordered(context, sessions), tables="gpu"), sessions), planned_machine(context, sessions)[1]


def plain_products(context: int, sessions: int) -> tuple[int, str]:
    order = ordered(context, sessions, planned_machine(context, sessions)[0])
    return order.gpus, limit(plan(replace(order, machine=replace(order.machine, fp8=False))))


def own_experts(context: int, sessions: int) -> tuple[int, str]:
    """Each session reads six of a layer for itself."""
    gpus, _ = planned_machine(context, sessions)
    found = plan(ordered(context, sessions, gpus))
    alone = found.order.model.experts().read(Line("sessions", 1))
    kinds = read_by_kind(found) | {"expert_read_bytes": sessions * float(alone.value)}
    binds = found.order.machine.binds(float(found.step["all_step_flops"].value), sum(kinds.values()))
    return gpus, "arithmetic" if binds == "arithmetic" else largest(kinds)


def largest_read(context: int, sessions: int) -> tuple[int, str]:
    gpus = planned_machine(context, sessions)[0]
    return gpus, largest(read_by_kind(plan(ordered(context, sessions, gpus))))


def all_experts(context: int, sessions: int) -> tuple[int, str]:
    gpus, what = planned_machine(context, sessions)
    found = plan(ordered(context, sessions, gpus))
    every = found.order.model.experts().read(Line("sessions", 10**6))
    kinds = read_by_kind(found) | {"expert_read_bytes": float(every.value)}
    return gpus, what if what == "arithmetic" else largest(kinds)
