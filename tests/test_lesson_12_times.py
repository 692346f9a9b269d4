"""Times of a GPU in the lessons: what they say with a record and without one, and what the shipped record must hold."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.main import get_command

from minidsv41.cli import app
from minidsv41.config import ModelConfig
from minidsv41.course import absorbing, figures, growth, limiters, limits, live, measured, peers, records
from minidsv41.course.pictures import intensity, roofline, timing
from minidsv41.kernels.bench.step import compare
from minidsv41.ledger import operations
from minidsv41.ledger.params import active_decode_full

FLASH = ModelConfig.preset("flash")
PEERS = records.record("peers_h200")
ON = limits.card(PEERS)
WORK = limits.released()
MACHINE = {"device": "NVIDIA H200", "torch": "2.11.0", "date": "2026-11-30"}
PNG = b"\x89PNG"


def row(operation: str, shape: str, us: float | None, target: float | None = None, **others) -> dict:
    met = None if target is None or us is None else us <= target
    base = {"operation": operation, "shape": shape, "contestant": "kernel", "median_us": us, "target_us": target}
    return base | {"met": met, "bytes": 10**6, "flops": 0, "note": "", "run": 0} | others


ROWS = [
    row("seam", "T=1", 12.0, 10.0),
    row("seam", "T=1", 16.0, contestant="three_step"),
    row("seam", "T=4,096", 150.0, 132.0, bytes=WORK["seam"].bytes(4096)),
    row("seam", "T=4,096", 250.0, contestant="three_step"),
    row("index_select", "32 x 1M", 1000.0, 1100.0),
    row("index_select", "32 x 1M, in a pool", 40.0),
    row("index_select", "prefill 4,096 x 32K", None, 3500.0, note="out of memory"),
    row("kv_write", "main T=32,768", 17.0, 17.3),
    row("engram_read", "host table T=4,096", 900.0, 700.0, bytes=4096 * 24 * 512),
    row("gated_delta", "T=4,096 heads=16/16 D=128", 100.0),
]


def kernels(rows: list[dict]) -> dict:
    ceilings = {"copy": 4240.0, "read": 4380.0, "pinned": 55.0, "matmul": 770.0, "launch_us": 0.5}
    return {"kind": "kernels", "runs": [{"machine": MACHINE, "ceilings": ceilings}], "rows": rows}


def model(steps: list[dict]) -> dict:
    """Of the prompts only the first one's time is its own."""
    row = {"tokens": 9, "bytes_per_token": 1.0, "compiled_during": 0, "seconds": 2.0, "tokens_per_second": 4.5}
    prefill = [row | {"bytes_per_token": 890.0}, row | {"stopped_after": 3}, row | {"compiled_during": 2}]
    prefill.append({"tokens": 9, "bytes_per_token": 1.0})  # nobody looked
    results = {"prefill": prefill, "steps": steps, "copy_bytes_per_second": 4e12}
    return {"kind": "model", "machine": MACHINE, "settings": {"preset": "geometry"}, "results": results}


def steps() -> list[dict]:
    kinds = [(1, True), (1, False), (32, True), (32, False)]
    found = [
        {"context": n, "batch": b, "rows": 1, "pool": pool, "cache": "packed", "scanned_bytes": b * n * (2 - pool)}
        | {"us": {"median": 5000.0 + 1e-3 * b * n * (2 - pool)}}
        for b, pool in kinds
        for n in (4096, 2**20)
    ]
    compare(found, 1e9)
    return [*found, {"context": 2**20, "batch": 64, "rows": 1, "pool": True, "cache": "packed", "failed": "no room"}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of records, empty but for the peers."""
    monkeypatch.setattr(records, "records_dir", lambda: tmp_path)
    (tmp_path / "peers_h200.json").write_text(json.dumps(PEERS), encoding="utf-8")
    return tmp_path


def put(folder: Path, name: str, content: dict) -> None:
    (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("name", records.MAKERS)
def test_without_a_record_it_is_said_how_to_make_it(folder: Path, name: str):
    assert records.from_gpu(name) is None
    assert records.origin(name) == f"not measured yet: `{records.MAKERS[name]}` does it, on a GPU"


def test_the_commands_that_make_records_exist():
    commands = get_command(app).commands["bench"].commands
    for made in records.MAKERS.values():
        _, bench, name, *options = made.split()
        known = {flag for p in commands[name].params for flag in p.opts}
        assert bench == "bench" and {o for o in options if o.startswith("--")} <= known


def test_without_records_lessons_show_what_others_measured(folder: Path):
    points = peers.points(PEERS, FLASH)
    assert measured.points(FLASH) == [] and measured.rows() == {} and growth.steps() == {} == measured.rows("seam")
    assert growth.prompts() == [] and list(growth.lines({})) == [] == list(growth.weights())
    assert measured.table(ON, FLASH) == records.origin(measured.RECORD)
    lines = measured.crossings(points, ON)
    assert set(lines) == {"floor", "best peer"} and set(lines["floor"]) == {1, 32, 128, 4096, 32768}
    for figure in (
        roofline.roofline(points, [], ON),
        roofline.distances(points, [], ON),
        timing.seams(lines, live=live.Live()),
    ):
        assert figures.png(figure)[:4] == PNG


def test_rows_become_points_beside_the_work_of_the_ledger(folder: Path):
    put(folder, measured.RECORD, kernels(ROWS))
    found = {(p.work.name, p.tokens): p for p in measured.points(FLASH)}
    assert set(found) == {("seam", 1), ("seam", 4096), ("index, decode", 32), ("kv_write", 32768)}
    assert found["seam", 4096].times(ON) == pytest.approx(150 / limits.floor(WORK["seam"], 4096, ON))
    index = found["index, decode", 32]
    assert index.label == "32 × 1M" and index.work.bytes(32) == operations.index_select(FLASH, 2**20).bytes(32)
    assert [measured.number(text) for text in ("1M", "128K", "32,768", "7", None)] == [2**20, 2**17, 32768, 7, 0]
    others = peers.points(PEERS, FLASH)
    pictures = [
        make(others, own, ON) for make in (roofline.roofline, roofline.distances) for own in ([], found.values())
    ]
    assert len({figures.png(p) for p in pictures}) == 4


def test_the_table_says_what_was_aimed_at_and_what_limits(folder: Path, monkeypatch: pytest.MonkeyPatch):
    put(folder, measured.RECORD, kernels(ROWS))
    monkeypatch.setattr(limiters, "LIMITERS", {"seam": "Waits.", "seam T=4": "Reads."})
    said = measured.table(ON, FLASH)
    assert said.startswith("2 of 6 aims met; in the same run: copy 4,240 GB/s, BF16 770 TFLOP/s\n\n| operation |")
    assert "| seam | T=1 | 12 | 0.5 | 10 | **missed** Waits. |" in said and "| **missed** Reads. |" in said
    assert "| index_select | 32 x 1M | 1,000 | 0.5 | 1,100 | met |" in said
    assert "| index_select | prefill 4,096 x 32K | – | 0.5 | 3,500 | out of memory |" in said


def test_a_table_in_host_memory_has_the_bus_as_its_floor(folder: Path):
    put(folder, measured.RECORD, kernels(ROWS))
    host = measured.rows("engram_read")["host table T=4,096"]
    assert measured.floor(host, ON, FLASH) == pytest.approx(4096 * 24 * 264 / 55e3)


def test_seams_are_drawn_by_tokens_and_a_gpu_of_this_machine_beside_them(folder: Path):
    put(folder, measured.RECORD, kernels(ROWS))
    lines = measured.crossings(peers.points(PEERS, FLASH), ON)
    assert lines["one pass"] == {1: 12.0, 4096: 150.0} and lines["three passes"] == {1: 16.0, 4096: 250.0}
    here = live.Live({("T=4,096", "kernel"): 90.0, ("T=4,096", "plain"): 9e3}, "rings: this machine's card, now")
    assert figures.png(timing.seams(lines, live=here)) != figures.png(timing.seams(lines, live=live.Live()))


@pytest.mark.parametrize("log", [False, True])
def test_bars_show_the_floor_and_this_machine(log: bool):
    here = live.Live(said="rings: this machine's card, now")
    given = [timing.Bar("a", 30.0, 10.0, "index"), timing.Bar("b", 900.0, 100.0, "main", live=1000.0)]
    plain = [timing.Bar("a", 30.0, 10.0, "index"), timing.Bar("b", 900.0, 100.0, "main")]
    drawn = [figures.png(timing.bars(b, live=here, log=log)) for b in (given, plain)]
    assert drawn[0] != drawn[1]


def test_a_step_is_told_with_what_its_context_adds(folder: Path):
    put(folder, growth.RECORD, model(steps()))
    found = growth.steps()
    assert set(found) == {growth.Kind(b, 1, pool, "packed") for b in (1, 32) for pool in (True, False)}
    assert list(growth.lines(found))[2:] == [
        "32 at once: 4K 5.13 ms, 1M 38.55 ms; growth 7.514",
        "            added 33,423 µs, reading alone 33,423",
    ]
    whole, compiled = (growth.taken(prompt) for prompt in growth.prompts())
    assert whole == "prompt of 9: 2.0 s, 4 tokens/s; 890 B a token"
    assert (
        compiled == "prompt of 9: at most 2.0 s, 4 tokens/s or more, for a kernel was compiled meanwhile; 1 B a token"
    )
    (said,) = growth.weights()
    met = active_decode_full(ModelConfig.preset("geometry")).value * 2
    assert said == f"weights that a token meets: {met / 1e9:.1f} GB, read in {met / 4e9:.1f} ms"
    assert figures.png(timing.growth(found))[:4] == PNG
    put(folder, growth.RECORD, model([r for r in steps() if r["context"] == 4096]))
    assert figures.png(timing.growth(growth.steps()))[:4] == PNG


def test_a_verify_step_is_held_against_a_step_of_one_token(folder: Path):
    six = [r | {"rows": 6, "us": {"median": 2 * r["us"]["median"]}} for r in steps()[:2]]
    put(folder, growth.RECORD, model([*steps(), *six]))
    assert list(growth.lines(growth.steps()))[2] == "            6 tokens of each at once, at 1M: 2.00 times as long"


def test_formats_are_compared_at_the_longest_context_that_both_have(folder: Path):
    floats = [r | {"cache": "float", "us": {"median": 9000.0}} for r in steps()[:1]]
    put(folder, growth.RECORD, model([*steps(), *floats]))
    assert list(growth.formats(growth.steps())) == ["a decode step, 1 at once, 4K: packed 5.00 ms, BF16 9.00 ms"]


def test_shares_of_a_step_are_told_for_the_shortest_and_the_longest_context(folder):
    kernels = {"small": {"us": 8100.0, "launches": 3400}, "experts": {"us": 9250.0, "launches": 240}}
    put(folder, growth.RECORD, model([s | {"kernels": kernels} for s in steps() if s["pool"]]))
    assert list(growth.shares(growth.steps()))[2:] == [
        "32 at once, 4K, ms: experts 9.2, small 8.1; 3,640 launches",
        "32 at once, 1M, ms: experts 9.2, small 8.1; 3,640 launches",
    ]
    put(folder, growth.RECORD, model(steps()))
    assert list(growth.shares(growth.steps())) == []


def results(crossing: float | None, naive: float, absorbed: float) -> dict:
    rows = [{"queries": n, "naive": naive, "absorbed": absorbed} for n in (1, 384)]
    return {"seconds": rows, "crossing": crossing}


def test_a_break_even_is_told_as_far_as_the_record_goes():
    assert absorbing.break_even(results(171.2, 1, 1)) == "171 queries"
    assert absorbing.break_even(results(None, 2, 1)) == "more than 384 queries"
    assert absorbing.break_even(results(None, 1, 2)) == "fewer than 2 queries"
    settings = {"heads": 128, "prefix": 4096, "nope": 128, "rope": 64, "v": 128, "device": "cuda"}
    assert absorbing.written(settings, 164) == 4260 * 128 * 320 * 2


def test_a_climb_is_microseconds_for_one_query_more():
    seconds = [{"queries": n, "naive": max(5e-4, n * 1e-5)} for n in (1, 16, 64, 384)]
    assert absorbing.climb({"seconds": seconds}, "naive") == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("tokens", "helper"), [(1, "finish"), (128, "finish"), (4096, "pack_weights"), (32768, "pack_weights")]
)
def test_one_pass_of_the_seam_is_two_launches_and_three_are_four(tokens: int, helper: str):
    pytest.importorskip("triton")
    from minidsv41.kernels.launch import recorded
    from minidsv41.kernels.seam import seam
    from minidsv41.kernels.seam_steps import seam_in_steps
    from minidsv41.ops.seam import Next

    made = partial(torch.empty, device="meta")
    given = [made(tokens, 4, 5120, dtype=torch.bfloat16), made(tokens, 5120, dtype=torch.bfloat16)]
    given += [made(tokens, 4), made(tokens, 4), made(tokens, 4, 4)]
    into = Next(made(24, 4 * 5120), made(24), made(3), made(5120), 1e-20, 1e-6, 20)
    found = []
    for cross in (seam, seam_in_steps):
        with recorded((9, 0)) as launches:
            cross(*given, into)
        found.append({launch.kernel.__name__ for launch in launches})
        assert len(launches) == len(found[-1])
    assert found == [{"cross", helper}, {"update", "cross", helper, "collapse"}]


def test_both_clocks_stand_side_by_side():
    cpu = records.record("bench_absorption")
    gpu = cpu | {"results": results(None, 2e-4, 1e-4)}
    one, two = (intensity.crossed(clocks, lambda prefix: 164.0) for clocks in ({"CPU": cpu}, {"CPU": cpu, "GPU": gpu}))
    assert (len(one.axes), len(two.axes)) == (1, 2) and figures.png(two)[:4] == PNG


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(live.torch.cuda, "get_device_name", lambda: "NVIDIA X")
    live.timed.cache_clear()
    yield
    live.timed.cache_clear()


def test_a_gpu_that_is_here_is_asked_in_a_process_that_does_not_interpret(card, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def run(command, *, env, **options):
        asked.append((command, env, options["timeout"]))
        put(Path(command[command.index("--into") + 1]), "kernels_x", kernels(ROWS))
        return SimpleNamespace(returncode=0)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(live.subprocess, "run", run)
    found = live.timed("seam T=4,096")
    assert found.us["T=4,096", "three_step"] == 250.0 and found.said == "rings: this machine's NVIDIA X, now"
    ((command, environment, _),) = asked
    assert command[1:5] == ["-m", "minidsv41", "bench", "kernels"] and "TRITON_INTERPRET" not in environment
    known = get_command(app).commands["bench"].commands["kernels"].params
    flags = {flag for p in known for flag in (*p.opts, *p.secondary_opts)}
    assert {word for word in command if word.startswith("--")} <= flags


def test_a_gpu_that_cannot_measure_leaves_the_record_alone(card, monkeypatch: pytest.MonkeyPatch):
    def run(command, **options):
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(live.subprocess, "run", run)
    assert live.timed("seam") == live.Live(said="NVIDIA X: not measured, CalledProcessError")


def shipped(name: str) -> dict:
    if not (found := records.from_gpu(name)):
        pytest.skip(records.origin(name))
    return found


def test_the_shipped_times_are_those_of_an_h200_and_no_kernel_is_wrong():
    found = shipped(measured.RECORD)
    assert {run["machine"]["device"] for run in found["runs"]} == {"NVIDIA H200"}
    assert not [row for row in found["rows"] if row.get("wrong")]
    assert all(p.times(ON) > 0.95 for p in measured.points(FLASH))  # reading alone is a little faster than copying


def test_each_missed_target_has_its_limiter():
    shipped(measured.RECORD)
    missed = [measured.name(row) for row in measured.targets() if not row["met"] and not row.get("note")]
    assert not [name for name in missed if not limiters.limiter(name)]


def test_what_limiters_say_of_engram_follows_from_the_record():
    shipped(measured.RECORD)
    both, host = measured.rows("engram"), measured.rows("engram_read").get("host table T=4,096")
    assert all(1 < row["median_us"] / measured.floor(row, ON, FLASH) < 1.07 for row in both.values()) and both
    assert "within 7 %" in limiters.limiter("engram read and gate T=4,096")
    rate = 4096 * 24 * 264 / host["median_us"] / 1e3  # GB/s of rows over the link
    assert round(rate) == 24 and "at 24" in limiters.limiter("engram_read host table T=4,096")


def test_recorded_bytes_are_those_of_the_ledger():
    shipped(measured.RECORD)
    timed = measured.rows()
    found = {name: p for name, row in timed.items() if (p := measured.point(row, FLASH))}
    assert {p.work.name for p in found.values()} == set(roofline.KINDS)
    for name, p in found.items():
        assert p.work.bytes(p.tokens) == pytest.approx(timed[name]["bytes"], rel=0.02), name


def test_one_pass_is_ahead_of_three_and_a_pool_of_all_keys():
    shipped(measured.RECORD)
    one, three = measured.rows("seam"), measured.rows("seam", "three_step")
    for shape in ("T=4,096", "T=32,768"):
        assert one[shape]["median_us"] < three[shape]["median_us"]
    index = {shape: row["median_us"] for shape, row in measured.rows("index_select").items()}
    gain = {s: index[f"{s} x 1M"] / index[f"{s} x 1M, in a pool"] for s in (1, 32)}
    assert 1 < gain[1] < gain[32] < 64


def test_four_bits_a_key_are_ahead_of_sixteen():
    shipped(measured.RECORD)
    index = {shape: row["median_us"] for shape, row in measured.rows("index_select").items()}
    assert index["32 x 128K"] < index["32 x 128K, bfloat16 keys"]


def test_the_shipped_steps_keep_890_bytes_a_token():
    shipped(growth.RECORD)
    assert growth.steps() and all(prompt["bytes_per_token"] == 890 for prompt in growth.prompts())
    assert all(step["finite"] for own in growth.steps().values() for step in own.values())


def test_what_lesson_12_says_of_a_step_follows_from_the_record():
    shipped(growth.RECORD)
    kinds = ((1, 1, True), (32, 1, True), (32, 1, False))
    steps = [growth.steps()[growth.Kind(*kind, "packed")] for kind in kinds]
    one, many, free = (own[2**20] for own in steps)
    assert one["growth"] < 1.015 and 1.08 < many["growth"] < 1.12  # 1 %, a tenth; FLOP: 1.25
    assert free["added_us"] > 2 * many["added_us"]
    assert all(abs(steps[0][n]["growth"] - 1) < 0.02 for n in steps[0])  # lost in the spread
    before, after = (steps[1][n]["kernels"] for n in (4096, 2**20))
    assert after["small"]["launches"] > 3000 and all(
        after[name]["us"] < 1.05 * before[name]["us"] for name in after.keys() - {"index_select"}
    )
    assert after["index_select"]["us"] > 10 * before["index_select"]["us"]


def test_a_gpu_absorbs_for_one_query():
    found = shipped("bench_absorption_gpu")
    assert (found["settings"]["heads"], found["settings"]["device"]) == (128, "cuda")
    first = found["results"]["seconds"][0]
    assert first["queries"] == 1 and first["absorbed"] < first["naive"]


def test_what_lesson_06_says_of_a_step_on_bfloat16_rows_follows_from_the_record():
    shipped(growth.RECORD)
    for batch, n in ((1, 2**20), (32, 2**17)):
        packed, wide = (growth.steps()[growth.Kind(batch, 1, True, form)][n] for form in ("packed", "float"))
        assert 1.11 < wide["us"]["median"] / packed["us"]["median"] < 1.16  # an eighth to a seventh
