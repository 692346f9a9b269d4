"""Lesson 11: what the bill is made of, the waterfall, what a step reads, and the planner behind its widget."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import pytest

from minidsv41.config import ModelConfig
from minidsv41.course import figures, planning, waterfall
from minidsv41.course.lessons.l11 import (
    CROSSOVER,
    FASTER,
    MOVE,
    PLAN,
    machine_by_hand,
    moved,
    planned_machine,
    released,
    speed,
)
from minidsv41.course.lessons.slips11 import largest_read
from minidsv41.course.pictures import planning as pictures
from minidsv41.course.sabotage import sabotage
from minidsv41.ledger import bytes as kept
from minidsv41.ledger.deployed import model as deployed
from minidsv41.ledger.models import V1_67B, ratio_vs
from minidsv41.ledger.plan import Order, Plan, PlanError, plan, planned

FLASH = ModelConfig.preset("flash")
START = dict(power=17, gpus=8, sessions=1000, gpu="H200", tables=False)


def test_windows_outweigh_the_global_cache_below_3038_tokens():
    windows, per_token = kept.swa_bytes_per_sequence(FLASH).value, kept.kv_bytes_per_token(FLASH).value
    assert 3037 * per_token < windows <= 3038 * per_token
    (inputs,) = [i for i in CROSSOVER.inputs() if i["per_token"] == 890]
    assert CROSSOVER.reference(**inputs) == 3038
    assert deployed("DeepSeek-V4.1-Flash").crossover.value == Fraction(windows, per_token)


def test_the_waterfall_leads_from_67b_to_890_and_its_factors_multiply_to_437():
    steps = waterfall.steps(FLASH)
    assert steps[0].line == V1_67B.books()["kv_bytes_per_token"] and steps[0].size == 389_120
    assert steps[-1].line.value == kept.kv_bytes_per_token(FLASH).value
    assert prod(waterfall.factors(steps)) == pytest.approx(float(ratio_vs(FLASH, V1_67B).value))


def test_only_the_index_keys_cost_and_sharing_is_the_largest_saving():
    steps = waterfall.steps(FLASH)
    by = dict(zip([s.change for s in steps[1:]], waterfall.factors(steps), strict=True))
    assert [name for name, factor in by.items() if factor < 1] == ["an index key beside each row"]
    shared = by["one owner for the whole decoder"] * by["three owners for the encoder"]
    assert shared == pytest.approx(9.5) and shared > max(by.values())
    assert {s.lesson for s in steps} - {""} == {"00", "01", "02", "04", "05", "06"}


def test_a_step_that_only_changes_the_layout_is_the_ledgers_layout():
    steps = waterfall.steps(FLASH)
    sizes = [float(kept.kv_bytes_per_token(FLASH, layout).value) for layout in (kept.BF16, kept.FP8, kept.PACKED)]
    assert [s.size for s in steps[-3:]] == sizes


def test_at_a_million_tokens_93_percent_of_a_step_is_deciding_what_to_read():
    rows = {line.name: line.value for line in planned("flash").reads(1_048_576)}
    whole = sum(rows.values())
    assert rows["scan_bytes"] / whole == pytest.approx(0.93, abs=0.005)
    assert (rows["scan_bytes"] + rows["pool_bytes"]) / rows["gather_bytes"] == pytest.approx(32.6, abs=0.05)


def test_under_load_routed_experts_are_most_of_what_is_read():
    step = plan(Order(model=planned("flash"), sessions=1000)).step
    assert step["expert_read_bytes"].value / step["read_bytes"].value > 0.86
    assert 1000 * step["session_read_bytes"].value / step["read_bytes"].value < 0.11


def test_the_widgets_answer_is_the_planners():
    found = planning.answered(**START)
    assert isinstance(found, Plan) and found.fit == 5915
    assert planning.described(**START).startswith("5,915 sessions of 131,072 tokens fit on 8 H200.")
    refused = START | {"gpus": 2}
    assert isinstance(planning.answered(**refused), PlanError) and "from 3 on" in planning.described(**refused)
    assert planning.ordered(**START | {"tables": True}).tables == "gpu"


@pytest.mark.parametrize("change", [{}, {"power": 18}, {"gpus": 9}, {"gpus": 2}, {"sessions": 10_000}, {"gpu": "H20"}])
def test_every_control_changes_picture_and_readout(change: dict):
    moved_to = START | (change or {"tables": True})
    assert planning.described(**moved_to) != planning.described(**START)
    assert figures.png(pictures.planner(**moved_to)) != figures.png(pictures.planner(**START))


def test_the_exercise_names_four_different_limits_and_the_solution_agrees():
    answers = [planned_machine(**inputs) for inputs in PLAN.inputs()]
    assert {what for _, what in answers} == {"dense weights", "routed experts", "cache", "arithmetic"}
    assert answers == [machine_by_hand(**inputs) for inputs in PLAN.inputs()]
    assert any(largest_read(**i) != right for i, right in zip(PLAN.inputs(), answers, strict=True))


def test_the_fewest_gpus_of_the_exercise_hold_all_and_one_less_does_not():
    for inputs in PLAN.inputs():
        gpus, _ = planned_machine(**inputs)
        assert plan(Order(model=planned("flash"), gpus=gpus, **inputs)).running == inputs["sessions"]
        try:
            assert plan(Order(model=planned("flash"), gpus=gpus - 1, **inputs)).running < inputs["sessions"]
        except PlanError:
            assert gpus == 3


def test_the_open_exercise_asks_for_more_than_any_single_move_gives():
    goal = FASTER * released().tokens
    assert speed(moved).tokens >= goal
    assert all(speed(mistake.answer).tokens < goal for mistake in MOVE.mistakes)


def test_a_slip_sells_the_same_machine_2_8_times():
    order = Order(model=planned("flash"), context=2000)
    right = plan(order).fit
    with sabotage("11.growing_only"):
        assert plan(order).fit / right == pytest.approx(2.76, abs=0.01)


def test_the_same_slip_hides_at_a_million_tokens():
    order = Order(model=planned("flash"), context=1_048_576)
    right = plan(order).fit
    with sabotage("11.growing_only"):
        assert plan(order).fit / right < 1.01
