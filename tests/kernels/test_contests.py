"""The measuring harness: what it keeps, what it refuses to time, and what it survives. Clocks are made up."""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from minidsv41.cli import app
from minidsv41.kernels.bench import ceilings, record, run, seam, worker
from minidsv41.kernels.bench.ahead import Call, Place
from minidsv41.kernels.bench.case import Case, Contest
from minidsv41.kernels.bench.ceilings import Ceilings
from minidsv41.kernels.bench.timing import GraphTimer, Timing
from minidsv41.kernels.compiled import specimens
from minidsv41.kernels.launch import launch, recorded
from scripts import gpu_check, tune_kernels

CARD = Ceilings(copy=4000.0, read=4400.0, pinned=55.0, matmul=800.0, launch_us=0.5)
CPU = torch.device("cpu")


def broken() -> None:
    raise RuntimeError("out of memory\nand much more text")


def case(*, error: float = 0.0, target: float | None = 12.0, **peers) -> Case:
    """Doubling: 4 kB in a floor of 1 µs; `peers` run beside the kernel."""

    def build(device: torch.device, seed: int) -> Contest:
        x = torch.full((4,), float(seed), device=device)
        runs = {"kernel": lambda: x + x, "plain": lambda: 2 * x} | peers
        return Contest(runs, lambda: error, 1e-3, workspace=64, eager=frozenset({"host"}))

    return Case("double", "T=4", 4_000_000, 0, target, build)


class Made:
    """A timer on which every call takes 10 µs, then 20, then 30; it runs every slot once."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    def __call__(self, calls, *, capture=True):
        for call in calls:
            call()
        self.seen.append((len(calls), capture))
        return Timing([10.0 * len(self.seen)] * 3, len(calls), len(calls), "graph" if capture else "events")


def rows(case: Case, *, timer=None, **settings) -> dict[str, dict]:
    bench = run.Bench(CPU, timer or Made(), CARD, **settings)
    return {row["contestant"]: row for row in bench.case(case)}


def test_a_kernel_that_is_right_is_timed_in_rounds():
    row = rows(case())["kernel"]
    assert row["median_us"] == 15.0 and [each["median"] for each in row["rounds"]] == [10.0, 20.0]
    assert row["floor_us"] == 1.0 and row["ratio"] == 15.0
    assert row["met"] is False and row["target_us"] == 12.0 and row["error"] == 0.0 and row["workspace"] == 64
    assert rows(case(), rounds=1)["kernel"]["met"] is True
    assert rows(case(target=None))["kernel"]["met"] is None
    assert "target_us" not in rows(case())["plain"]


def test_the_floor_is_that_of_bytes_or_of_products():
    assert CARD.floor_us(4_000_000, 0) == 1.0
    assert CARD.floor_us(0, 1_600_000_000) == 2.0
    assert CARD.floor_us(4_000_000, 1_600_000_000) == 2.0


@pytest.mark.parametrize("error", [0.5, math.nan])
def test_a_wrong_kernel_is_not_timed_but_its_peers_are(error):
    found = rows(case(error=error))
    assert found["kernel"]["median_us"] is None and found["kernel"]["wrong"] and not found["kernel"]["rounds"]
    assert found["plain"]["median_us"] == 15.0
    assert record.line(case(), list(found.values())).startswith("double T=4: kernel: wrong, error")


def test_what_fails_is_text_and_the_rest_goes_on():
    found = rows(case(library=broken))
    assert found["library"]["note"] == "RuntimeError: out of memory"
    assert found["library"]["median_us"] is None and found["plain"]["median_us"]


def test_compiled_peers_come_last_or_not_at_all():
    made = case(compile=lambda: None, other=lambda: None)
    assert list(rows(made)) == ["kernel", "plain", "other", "compile"]
    assert "compile" not in rows(made, compiled=False)


def test_what_no_graph_can_hold_is_not_captured():
    timer = Made()
    found = rows(case(host=lambda: None), timer=timer, rounds=1)
    assert [capture for _, capture in timer.seen] == [True, True, False]
    assert found["host"]["method"] == "events" and found["kernel"]["method"] == "graph"


def test_slots_are_different_inputs():
    slots = run.Bench(CPU, Made(), CARD).slots(case())
    assert [float(slot.runs["kernel"]()[0]) for slot in slots] == [0.0, 2.0]


def kept(tmp_path) -> record.Record:
    return record.Record.begin(tmp_path, {"only": ""}, {"device": "NVIDIA H200"}, CARD)


def test_a_record_keeps_what_was_measured_before(tmp_path):
    bench = run.Bench(CPU, Made(), CARD)
    first = kept(tmp_path)
    record.measure({"a": case()}, first, lambda name: bench.case(case()), seconds=1)
    other = replace(case(), shape="T=8")
    record.measure({"b": other}, again := kept(tmp_path), lambda name: bench.case(other), seconds=1)
    content = json.loads((tmp_path / "kernels_h200.json").read_text(encoding="utf-8"))
    assert [(r["shape"], r["contestant"], r["run"]) for r in content["rows"]] == [
        ("T=4", "kernel", 0),
        ("T=4", "plain", 0),
        ("T=8", "kernel", 1),
        ("T=8", "plain", 1),
    ]
    assert len(content["runs"]) == 2 and content["runs"][1]["ceilings"]["copy"] == 4000.0
    assert {row["shape"] for row in again.latest()} == {"T=8"}
    record.measure({"a": case()}, kept(tmp_path), lambda name: bench.case(case()), seconds=1)
    content = json.loads((tmp_path / "kernels_h200.json").read_text(encoding="utf-8"))
    assert len(content["rows"]) == 4 and content["rows"][0]["run"] == 2


def test_a_lost_process_leaves_a_note_where_it_was_lost(tmp_path):
    bench = run.Bench(CPU, Made(), CARD)

    def dies(name):
        for row in bench.case(case()):
            yield row
            if row["contestant"] == "plain":
                raise record.Lost("the process died")

    def silent(name):
        raise record.Lost("no answer within 60 s")
        yield

    said = []
    record.measure({"a": case()}, found := kept(tmp_path), dies, seconds=1, say=said.append)
    kernel, plain = found.latest()
    assert kernel["note"] == "" and kernel["median_us"] and plain["note"] == "the process died"
    record.measure({"a": case()}, found, silent, seconds=1)
    assert found.latest()[0]["note"] == "no answer within 60 s" and found.latest()[0]["median_us"] is None
    assert said == ["double T=4: kernel 15, plain: the process died"]


def test_cases_after_the_time_are_noted(tmp_path):
    clock = iter([0.0, 5.0, 11.0]).__next__
    bench = run.Bench(CPU, Made(), CARD)
    cases = {shape: replace(case(), shape=shape) for shape in ("early", "late")}
    record.measure(cases, found := kept(tmp_path), lambda n: bench.case(cases[n]), seconds=10, clock=clock)
    notes = {row["shape"]: row["note"] for row in found.latest() if row["contestant"] == "kernel"}
    assert notes == {"early": "", "late": "not measured: the time was up"}


def test_the_table_says_what_is_met(tmp_path):
    found = kept(tmp_path)
    for name, made in {"fast": case(target=100.0), "wrong": case(error=1.0), "slow": case(target=1.0)}.items():
        made = replace(made, shape=name)
        record.measure({name: made}, found, lambda n, made=made: run.Bench(CPU, Made(), CARD).case(made), seconds=1)
    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(record.table(found.latest()))
    lines = {line.split()[3]: line for line in console.export_text().splitlines() if "double" in line}
    assert " met" in lines["fast"] and "missed" in lines["slow"] and "wrong, error 1.0e+00" in lines["wrong"]
    assert "plain 35" in lines["fast"]  # the third and fourth timing: 30 and 40
    assert record.counted(found.latest()) == "1 of 3 targets met"


def served(connection, rounds, compiled, found) -> None:
    """A measuring process without a GPU, in which some cases end badly."""
    connection.send((CARD, {"device": "none", "again": found is not None}))
    while (name := connection.recv()) is not None:
        if name == "fatal":
            os._exit(1)
        if name == "endless":
            time.sleep(60)
        connection.send({"contestant": "kernel", "case": name})
        connection.send(None)


def test_a_process_that_dies_or_hangs_is_replaced():
    made = worker.Worker(rounds=1, compiled=False, patience=0.5, target=served)
    try:
        assert [row["case"] for row in made.rows("a")] == ["a"] and made.machine["again"] is False
        with pytest.raises(record.Lost, match="died"):
            list(made.rows("fatal"))
        assert [row["case"] for row in made.rows("b")] == ["b"] and made.machine["again"] is True
        with pytest.raises(record.Lost, match="no answer within 0.5 s"):
            list(made.rows("endless"))
        assert made.process is None
    finally:
        made.end()


def test_ceilings_follow_from_bytes_and_products(device):
    timer = Made()
    found = ceilings.measure(device, timer, size=1 << 19, side=16)
    assert found.copy == round(2 * 2**19 / 10 / 1e3, 1) and found.read == round(2**19 / 30 / 1e3, 1)
    assert found.launch_us == 60.0 and not timer.seen[0][1]  # a graph would copy more slowly
    g = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**31), 2**31 - 1, (3 * 32 * 4,), generator=g, dtype=torch.int32).to(device)
    largest = torch.full((3,), -1, dtype=torch.int32, device=device)
    launch(ceilings.read, (3,), x=x, out=largest, BLOCK=32, STEPS=4)
    assert torch.equal(largest, x.view(3, -1).amax(1))
    launch(ceilings.copied, (3,), x=x, out=(copy := torch.zeros_like(x)), BLOCK=32, STEPS=4)
    assert torch.equal(copy, x)


def test_every_case_can_be_imported_and_has_a_name_of_its_own():
    found, missing = run.cases()
    assert not [text for text in missing if "No module named" not in text]
    for module in {case.operation for case in found.values()}:
        assert run.cases(module)[0]
    for name, made in found.items():
        assert made.bytes > 0 and made.flops >= 0 and (made.target_us is None or made.target_us > 0), name


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused():
    result = CliRunner().invoke(app, ["bench", "kernels"])
    assert result.exit_code == 2 and "a machine that has a GPU" in result.output


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graph_times_what_events_time():
    """By the best of many short samples: others may use the card as well, and only for a time."""
    timer = GraphTimer(span_us=1000.0, repeats=50)
    with torch.cuda.stream(torch.cuda.Stream()):
        x, out = torch.randn(2, 1 << 26, device="cuda")
        add = partial(torch.add, x, 1, out=out)
        tries = [(timer([add]), timer([add], capture=False)) for _ in range(3)]
        asking = timer([lambda: x[0].item()])
    assert {graph.method for graph, _ in tries} == {"graph"} and {loose.method for _, loose in tries} == {"events"}
    graph, loose = (min(min(timing.samples) for timing in own) for own in zip(*tries, strict=True))
    assert graph == pytest.approx(loose, rel=0.3)
    assert asking.method == "events" and asking.why


class Shape(NamedTuple):
    rows: int
    stages: int = 2
    packed: bool = True
    inner: None = None


class Outer(NamedTuple):
    warps: int
    inner: Shape


def test_neighbours_of_a_tile_differ_in_one_number():
    assert tune_kernels.neighbours(Shape(1)) == [Shape(2), Shape(1, 1), Shape(1, 3)]
    assert tune_kernels.neighbours(Outer(4, Shape(1))) == [
        *(Outer(warps, Shape(1)) for warps in (2, 8)),
        *(Outer(4, inner) for inner in tune_kernels.neighbours(Shape(1))),
    ]


def test_a_tile_is_forced_and_the_default_comes_back():
    (chooser,) = (c for c in tune_kernels.choosers() if c.file == "kv_write")
    default = chooser.function(32768)
    forced = default._replace(rows=2 * default.rows)
    assert forced in tune_kernels.candidates(chooser, default) and default not in tune_kernels.candidates(
        chooser, default
    )
    with tune_kernels.observed() as chosen, recorded() as plain:
        specimens()["kv_write: main"]()
    with chooser.forced(forced), recorded() as other:
        specimens()["kv_write: main"]()
    assert chosen == {chooser: default}
    assert [plain[0].args["ROWS"], other[0].args["ROWS"]] == [default.rows, forced.rows]
    assert chooser.function(32768) == default
    with tune_kernels.observed() as chosen, chooser.forced(forced), recorded() as other:
        specimens()["kv_write: main"]()
    assert other[0].args["ROWS"] == forced.rows and not chosen
    with tune_kernels.observed() as chosen, recorded():
        specimens()["sparse_attention: T=32"]()  # its chooser is in another file than its caller
    assert [c.file for c in chosen] == ["attention_split"]


def test_only_tiles_that_change_the_timed_call_are_tried(device):
    """The timed call of the seam's backward pass does not run forward, though it needs that once before."""
    own, tiles = tune_kernels.asked(seam.backward(5, 64).build(device, 0).runs["kernel"])
    assert own and [chooser.file for chooser in tiles] == ["seam_backward"]
    assert all(calls != own for tried in tiles.values() for _, calls in tried)
    assert pickle.loads(pickle.dumps(own)) == own


def test_a_name_in_full_is_that_case_alone_and_a_part_chooses_short_ones():
    assert list(tune_kernels.named(["seam T=32", "seam T=32,768"])) == ["seam T=32", "seam T=32,768"]
    assert {"seam T=32", "seam T=4,096"} < set(found := tune_kernels.named(["seam"])) and "seam T=32,768" not in found
    assert all(case.target_us for case in tune_kernels.named([]).values())


def test_a_wrong_tile_wins_nothing():
    """Halved tiles are wrong and the fastest, then come doubled ones."""
    (chooser,) = (c for c in tune_kernels.choosers() if c.file == "kv_write")
    default = chooser.function(32768)
    small, large = (default._replace(rows=n) for n in (1, 64))
    contest = Contest({"kernel": broken}, lambda: float(chooser.function(1).rows == 1), 0.5)
    file = f"{chooser.file}.{chooser.name}"
    rows = [{"case": "c", "tile": "default", "us": 9.0}]
    rows += [{"chooser": file, "tile": repr(t), "us": us} for t, us in ((small, 5.0), (large, 7.0), (default, 11.0))]
    sweep = tune_kernels.Sweep(None, math.inf, Path("none"))
    sweep.check(case(), {chooser: [(t, None) for t in (small, large, default)]}, rows, contest)
    assert [row.get("right") for row in rows[1:]] == [False, True, None]
    lines = list(tune_kernels.told(rows))
    assert lines[0] == "c: default 9 µs" and "7 µs  -22%" in lines[1] and "2 of 3 tiles timed" in lines[-1]


@pytest.mark.parametrize("name", specimens())
def test_kernels_compiled_without_inputs_are_those_that_a_launch_looks_for(name):
    with recorded() as launches:
        specimens()[name]()
    assert launches
    for made in launches:
        sent = Call.of(made)
        assert any(isinstance(value, Place) for value in sent.args.values())
        assert pickle.loads(pickle.dumps(sent)).key(90) == sent._replace(args=made.args).key(90)


def test_where_a_tensor_begins_is_part_of_what_is_compiled():
    with recorded() as launches:
        specimens()["kv_write: main"]()
    whole = launches[0].args | {"seq": torch.empty(16, dtype=torch.int64)}
    apart = whole | {"seq": whole["seq"][1:]}  # 8 bytes on
    keys = []
    for args in (whole, apart):
        sent = Call.of(replace(launches[0], args=args))
        keys.append(sent.key(90))
        assert keys[-1] == sent._replace(args=args).key(90)
    assert keys[0] != keys[1]


def test_what_was_timed_before_the_end_is_kept(tmp_path, monkeypatch):
    (chooser,) = (c for c in tune_kernels.choosers() if c.file == "kv_write")
    times = iter([9.0, 7.0])

    def timer(calls, *, capture):
        if (us := next(times, None)) is None:
            raise KeyboardInterrupt
        return Timing([us], 1, 1, "graph")

    monkeypatch.setattr(tune_kernels, "TIMER", timer)
    (done := Future()).set_result({"registers": 64, "spills": 0})
    tiles = [(tile, done) for tile in tune_kernels.candidates(chooser, chooser.function(1))[:3]]
    sweep = tune_kernels.Sweep(None, math.inf, tmp_path / "tuned.json")
    with pytest.raises(KeyboardInterrupt):
        sweep.time(case(), {chooser: tiles}, run.Bench(CPU, Made(), CARD))
    kept = json.loads(sweep.into.read_text())["rows"]
    assert [(row["tile"], row["us"]) for row in kept] == [("default", 9.0), (repr(tiles[0][0]), 7.0)]


def test_a_first_look_tells_right_from_wrong(capsys):
    made = [case(), case(error=1.0), replace(case(), build=lambda device, seed: broken())]
    assert [gpu_check.check(c, CPU, 2, Made()) for c in made] == [True, False, False]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "right  double T=4: error 0.0e+00 of 1e-03, 10 µs"
    assert lines[1].startswith("WRONG") and "out of memory" in lines[2]
