"""The planner behind a few controls: an order from their values, and the plan in words."""

from __future__ import annotations

from minidsv41.ledger.findings import findings
from minidsv41.ledger.machines import machine
from minidsv41.ledger.plan import Order, Plan, PlanError, plan, planned


def ordered(power: int, gpus: int, sessions: int, gpu: str, tables: bool, model: str = "flash") -> Order:
    """power: the context is 2**power tokens; tables: whether Engram's tables lie on the GPUs."""
    return Order(
        model=planned(model),
        machine=machine(gpu),
        gpus=gpus,
        context=2**power,
        sessions=sessions,
        tables="gpu" if tables else "host",
    )


def answered(**values) -> Plan | PlanError:
    """The plan, or why there is none."""
    try:
        return plan(ordered(**values))
    except PlanError as error:
        return error


def described(**values) -> str:
    """A few lines of HTML: what fits, what binds, what a prompt takes and what retention leaves."""
    found = answered(**values)
    return str(found) if isinstance(found, PlanError) else "<br>".join(findings(found))
