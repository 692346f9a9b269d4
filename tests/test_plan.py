"""The planner: its lines add up and open, impossible requests are explained, and what it agrees with when measured."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from fractions import Fraction
from math import ceil

import pytest

from minidsv41.config import ModelConfig
from minidsv41.course.records import record
from minidsv41.ledger import checkpoint, flops
from minidsv41.ledger.bytes import state_bytes
from minidsv41.ledger.deployed import model as deployed
from minidsv41.ledger.findings import findings, read_by_kind
from minidsv41.ledger.line import Line
from minidsv41.ledger.machines import Machine, machine, recorded
from minidsv41.ledger.plan import (
    Order,
    Plan,
    PlanError,
    books,
    gpus_for,
    machine_named,
    machine_recorded,
    plan,
    planned,
)
from minidsv41.ledger.planned import V41
from minidsv41.ledger.scratch import scratch_bytes
from minidsv41.serve.study import counting

FLASH = ModelConfig.preset("flash")
COLD, CPU_FACTOR, SPEEDUP_FACTOR = ("all_layers", "decoder_on_its_tail"), 5, 1.35


def planned_for(name: str = "flash", **wishes) -> Plan:
    return plan(Order(model=planned(name), **wishes))


def evaluated(line: Line) -> Fraction:
    """The formula's text, computed afresh from its parts; round() only ever hides a power, so floats will do there."""
    names = {part.name: Fraction(part.value) for part in line.parts}
    scope = {"Fraction": Fraction, "min": min, "max": max, "ceil": ceil, "round": round, "__builtins__": {}}

    class Exact(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            return ast.Call(ast.Name("Fraction", ast.Load()), [node], [])

    tree = ast.fix_missing_locations(Exact().visit(ast.parse(line.formula, mode="eval")))
    return eval(compile(tree, line.name, "eval"), scope, names)


WISHES = [
    dict(name="flash", context=131_072, sessions=1000),
    dict(name="flash", context=1_048_576, sessions=2000, tables="gpu", hit=1_000_000),
    dict(name="toy", context=999, sessions=3, machine=machine("laptop"), gpus=1),
    dict(name="v4-flash", context=131_072, sessions=64),
    dict(name="v3.2", context=65_536, sessions=64, machine=machine("H20"), gpus=16),
    dict(name="67b", context=4096, sessions=64, machine=machine("laptop"), gpus=16),
]


@pytest.mark.parametrize("wishes", WISHES, ids=lambda w: f"{w['name']} {w['context']}")
def test_every_formula_gives_its_value_from_parts_of_different_names(wishes: dict):
    seen = 0
    for book in books(planned_for(**wishes)):
        for top in book.lines:
            for _, line in top.tree():
                if line.parts:
                    assert len({part.name for part in line.parts}) == len(line.parts), line
                    assert evaluated(line) == line.value, line
                    seen += 1
    assert seen > 30


def test_weights_and_tables_are_the_checkpoint():
    v41 = planned("flash")
    assert v41.weights().value + v41.tables().value == checkpoint.checkpoint_bytes(FLASH).value
    host, gpu = planned_for(gpus=8), planned_for(gpus=8, tables="gpu")
    assert gpu.memory["resident_bytes"].value - host.memory["resident_bytes"].value == v41.tables().value
    assert gpu.fit < host.fit


def test_a_session_is_what_the_ledger_says_it_holds():
    p = planned_for(context=131_072)
    assert p.memory["session_bytes"].value == state_bytes(FLASH, 131_072).value + scratch_bytes(FLASH).value
    room = p.memory["usable_bytes"].value - p.memory["resident_bytes"].value
    assert p.fit * p.memory["session_bytes"].value <= room < (p.fit + 1) * p.memory["session_bytes"].value


@pytest.mark.parametrize("context", [1024, 5000, 131_072, 1_048_576])
def test_a_session_reads_what_the_deployed_model_reads(context: int):
    assert (
        sum(line.value for line in planned("flash").reads(context))
        == deployed("DeepSeek-V4.1-Flash").reads(context).value
    )


@pytest.mark.parametrize("context", flops.CONTEXTS)
def test_a_tokens_flops_are_the_ledgers_but_for_index_scores_at_fp8(context: int):
    ours = planned("flash").step_flops(context, fp8=True).value
    assert ours == flops.flop_decode(FLASH, context).value + flops.flop_indexer(FLASH, context).value
    assert planned("flash").step_flops(context, fp8=False).value > ours


@pytest.mark.parametrize(("name", "running"), [("flash", 1), ("toy", 1)])
def test_one_token_touches_as_many_experts_as_it_chooses(name: str, running: int):
    experts = planned(name).experts()
    assert experts.touched(Line("running", running)).value == experts.chosen.value
    assert experts.touched(Line("running", 10**6)).value == experts.number.value


def test_rows_of_a_prompt_are_those_that_a_run_counts():
    """The ways' row-layers against rows that went through the layers of a small model."""
    import torch

    from minidsv41.cache import Cache
    from minidsv41.ledger.reading import ways
    from minidsv41.model import Model
    from minidsv41.serve.prefill import Prefill
    from tests.tiny import TINY

    small = Model(TINY).initialise(torch.Generator().manual_seed(0))
    length = 3 * TINY.sliding_window + 1
    ids = torch.arange(length) % TINY.vocab_size
    for way, cut in zip(ways(TINY, length, 0).values(), (None, "report"), strict=True):
        cache = Cache(TINY)
        with counting(small) as rows:
            Prefill(small, cache, cache.new(), ids, cut=cut).finish()
        half = TINY.decoder_start
        assert sum(rows) == way.encoder.value * half + way.decoder.value * (TINY.num_hidden_layers - half)


def test_a_hit_leaves_the_rest_and_lost_windows_run_again():
    from minidsv41.ledger.reading import ways

    found = ways(FLASH, 10_050, 10_000)
    rows = {name: (int(way.encoder), int(way.decoder)) for name, way in found.items()}
    assert rows == {
        "windows_kept_all_layers": (50, 50),
        "windows_kept_decoder_on_its_tail": (50, 50),
        "windows_lost_both_replays": (178, 128),
    }


def test_the_causal_encoder_halves_a_long_prompt():
    p = planned_for(context=131_072)
    whole, half = (float(p.prefill[name].value) for name in COLD)
    assert 1.9 < whole / half < 2.1


def test_a_short_turn_is_bound_by_reading_weights_so_that_replay_is_cheaper_than_its_rows():
    """Row-layers say 3.06 times; one reading of the weights, which 50 rows need as well, hides half of it."""
    p = planned_for(context=10_050, hit=10_000)
    kept, lost = (float(p.prefill[f"windows_{name}"].value) for name in ("kept_all_layers", "lost_both_replays"))
    assert 1 < lost / kept < 2


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        (dict(gpus=1), r"take 306.6 GB and 1 H200 leave 126.9 GB; from 3 on they fit"),
        (dict(context=2_000_000), r"context = 2,000,000: DeepSeek-V4.1-Flash reads 1 to 1,048,576 tokens"),
        (dict(name="67b", context=8192), r"DeepSeek-67B reads 1 to 4,096 tokens"),
        (dict(gpus=0), "gpus = 0: 1 or more"),
        (dict(sessions=0), "sessions = 0: 1 or more"),
        (dict(context=100, hit=100), "hit = 100: from 0 to context - 1 = 99"),
        (dict(tables="disk"), "tables = disk: host or gpu"),
        (dict(free=100), "free = 100: percent"),
        (dict(name="v9"), "model = 'v9': there are toy, small"),
    ],
)
def test_an_impossible_request_is_explained(wishes: dict, why: str):
    with pytest.raises(PlanError, match=why):
        planned_for(**wishes)


def test_one_session_too_many_for_the_room_names_gpus_that_have_it():
    tight = Machine(name="tight", memory=341 * 10**9, bandwidth=1, flops=1, basis="datasheet", source="made up")
    with pytest.raises(PlanError, match=r"no room for one session of 0.936 GB; 2 tight have it"):
        planned_for(machine=tight, gpus=1, context=1_048_576)


@pytest.mark.parametrize("sessions", [1, 757, 3000])
def test_the_named_number_of_gpus_holds_the_sessions_and_one_less_does_not(sessions: int):
    order = Order(model=planned("flash"), context=1_048_576, sessions=sessions)
    enough = gpus_for(order, sessions)
    assert planned_for(context=1_048_576, gpus=enough).fit >= sessions
    with_less = planned_for(context=1_048_576, gpus=enough - 1).fit if enough > 3 else 0
    assert with_less < sessions


def test_sessions_that_do_not_fit_wait_and_the_sentence_says_so():
    p = planned_for(context=1_048_576, sessions=1000)
    assert p.running == p.fit == 756
    assert "1,000 were asked for: 244 wait. Memory binds; 10 would hold all." in findings(p)


def test_what_binds_moves_with_the_machine_and_the_load():
    assert planned_for(sessions=1).binds == "bandwidth"
    assert planned_for(sessions=5000, context=4096, machine=machine("H20")).binds == "arithmetic"
    kinds = read_by_kind(planned_for(context=1_048_576, sessions=1))
    assert max(kinds, key=kinds.get) == "dense_read_bytes"
    assert sum(kinds.values()) == planned_for(context=1_048_576, sessions=1).step["read_bytes"].value


@pytest.fixture(scope="module")
def cpu() -> Machine:
    return recorded(record("bench_machine"))


def test_prefill_of_the_toy_takes_up_to_5_times_its_floor(cpu: Machine):
    """Measured over planned seconds, on one machine: the floor holds, within the stated factor; so does the gain."""
    for row in record("bench_lifecycle")["results"]["cold"]:
        p = planned_for("toy", machine=cpu, gpus=1, context=row["tokens"])
        floor = {name: float(p.prefill[name].value) for name in COLD}
        found = {name: row["cut"][cut]["seconds"] for name, cut in zip(COLD, ("none", "report"), strict=True)}
        assert all(1 < found[name] / floor[name] < CPU_FACTOR for name in COLD), (found, floor)
        gain, expected = found[COLD[0]] / found[COLD[1]], floor[COLD[0]] / floor[COLD[1]]
        assert 1 / SPEEDUP_FACTOR < gain / expected < SPEEDUP_FACTOR, (gain, expected)


def test_decoding_of_the_toy_is_no_matter_of_bytes_or_flops(cpu: Machine):
    """A step of 27 ms over a floor of less than 1 ms: Python's overhead, which the planner does not know."""
    for row in record("bench_lifecycle")["results"]["decode"]:
        p = planned_for("toy", machine=cpu, gpus=1, context=128, sessions=row["requests"])
        floor = float(p.step["tokens_per_second_of_all"].value)
        assert floor / row["plain"]["tokens_per_second"] > 20
    for row in record("bench_decode")["results"]["minidsv41"]:
        p = planned_for("toy", machine=cpu, gpus=1, context=row["context"])
        assert float(p.step["tokens_per_second"].value) > 100 * row["decode_tokens_per_second"]


def test_a_recorded_machine_keeps_its_best_round():
    found = record("bench_machine")
    for name in ("bytes_per_second", "flops_per_second"):
        assert found["results"][name] == max(found["results"]["rounds"][name])
    m = recorded(found)
    assert m.basis == "measured" and not m.fp8 and str(found["machine"]["threads"]) in m.source


def test_a_machine_is_measured_round_by_round():
    from minidsv41.train.bench_machine import MachineConfig, lines, measure

    ticks = iter(range(100))
    found = measure(
        MachineConfig(copied=1 << 12, width=8, rounds=2, pause=0, threads=1), clock=lambda: float(next(ticks))
    )
    assert found["bytes_per_second"] == 2 * (1 << 12) and found["rounds"]["flops_per_second"] == [1024.0, 1024.0]
    assert len(list(lines(found))) == 3


def test_an_unknown_machine_is_answered_with_the_names():
    with pytest.raises(PlanError, match="gpu = 'H1': there are H20"):
        machine_named("H1")


def test_the_planner_needs_no_torch_and_prints_json():
    code = "import sys; from minidsv41.ledger import findings; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    command = [sys.executable, "-m", "minidsv41", "plan", "--sessions", "10", "--json"]
    out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    lines = out["lines"]["What fits in memory"]
    assert lines["sessions_that_fit"]["value"] == planned_for().fit
    assert lines["session_bytes"]["formula"] == "state_bytes + scratch_bytes"


def test_any_shape_can_be_planned():
    for name in ("toy", "small", "geometry"):
        p = plan(Order(model=V41(name, ModelConfig.preset(name)), gpus=1, context=512))
        assert p.fit > 0 and float(p.step["step_s"].value) > 0


@pytest.mark.parametrize(
    ("text", "said"), [("x", "no JSON"), ("[1]", "no record"), ('{"kind": "decode"}', "a record of decode")]
)
def test_a_file_that_is_no_record_of_a_machine_is_refused_by_name(tmp_path, text: str, said: str):
    path = tmp_path / "record.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match=said) as refused:
        machine_recorded(path)
    assert str(path) in str(refused.value)


def test_a_session_of_v4_holds_the_tokens_that_wait_for_their_group():
    (held,) = planned("v4-flash").session(4096)
    flash = deployed("DeepSeek-V4-Flash")
    assert held.value == flash.held(4096).value + flash.open_groups.value
