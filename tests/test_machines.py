"""Machines: ridges that others give, and what binds on either side of them."""

from __future__ import annotations

import pytest

from minidsv41.ledger.machines import MACHINES, machine


@pytest.mark.parametrize(("name", "ridge"), [("H20", 37), ("H100", 295), ("H200", 206), ("H200 measured", 178)])
def test_ridge_is_flops_over_bandwidth(name: str, ridge: float):
    assert float(machine(name).ridge.value) == pytest.approx(ridge, abs=0.5)
    assert machine(name).ridge.formula == "flops / bandwidth"


def test_what_was_measured_stays_below_the_datasheet():
    paper, found = machine("H200"), machine("H200 measured")
    assert found.basis == "measured" and paper.basis == "datasheet"
    assert found.bandwidth < paper.bandwidth and found.flops < paper.flops


@pytest.mark.parametrize("m", MACHINES, ids=lambda m: m.name)
def test_the_slower_of_memory_and_arithmetic_binds(m):
    ridge = float(m.ridge.value)
    assert m.binds(0.9 * ridge * 1e9, 1e9) == "memory" and m.binds(1.1 * ridge * 1e9, 1e9) == "arithmetic"
    assert m.seconds(0.9 * ridge * 1e9, 1e9) == 1e9 / m.bandwidth
    assert m.seconds(1.1 * ridge * 1e9, 1e9) == pytest.approx(1.1 * 1e9 / m.bandwidth)
    assert m.source and m.memory >= 32e9


def test_an_unknown_machine_is_answered_with_the_names():
    with pytest.raises(KeyError, match="no machine 'H2O'; there are H20, H100, H200"):
        machine("H2O")


def test_names_are_unique():
    assert len({m.name for m in MACHINES}) == len(MACHINES)
