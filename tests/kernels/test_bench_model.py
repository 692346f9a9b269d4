"""The measurement of the whole model, at toy sizes on a CPU: what it says is what is there."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from minidsv41 import ops
from minidsv41.cache import Cache
from minidsv41.cli import app
from minidsv41.config import ConfigError, ModelConfig
from minidsv41.kernels.bench import breakdown
from minidsv41.kernels.bench import model as bench
from minidsv41.kernels.bench.filling import copied, fill, random_model
from minidsv41.kernels.bench.step import Step, compare
from minidsv41.model import Model
from minidsv41.replaced import replaced
from minidsv41.serve.graph import DecodeGraph
from minidsv41.serve.prefill import prefill
from tests.tiny import prompt, tiny

TOY = bench.ModelBench(preset="toy", contexts=(96, 160), batches=(1, 2), chunk=64, repeats=2, device="cpu")
QUICK = replace(TOY, contexts=(96,), batches=(1,), parts=())
GEOMETRY = ModelConfig.preset("geometry")


def measured(c: bench.ModelBench) -> tuple[dict, list[str]]:
    said: list[str] = []
    return bench.measure(c, save=lambda results: json.dumps(results), say=said.append), said


def test_every_kind_of_step_is_in_the_record(tmp_path):
    contexts = ["--context", "96", "--context", "160", "--batch", "1", "--batch", "2"]
    options = ["--preset", "toy", "--device", "cpu", "--chunk", "64", "--repeats", "2", "--into", str(tmp_path)]
    found = CliRunner().invoke(app, ["bench", "model", *contexts, *options])
    assert found.exit_code == 0, found.output
    record = json.loads((tmp_path / "bench_model.json").read_text(encoding="utf-8"))
    results = record["results"]
    assert record["kind"] == "model" and record["settings"]["contexts"] == [96, 160]
    assert [row["tokens"] for row in results["prefill"]] == [89, 153]  # behind them, a token closes a pair
    assert {row["bytes_per_token"] for row in results["prefill"]} == {79.5}
    kinds = {(r["context"], r["batch"], r["rows"], r["pool"], r["cache"]) for r in results["steps"]}
    each = [(1, True, "packed"), (6, True, "packed"), (1, False, "packed"), (1, True, "float")]
    assert kinds == {(n, batch, *kind) for n in (96, 160) for batch in (1, 2) for kind in each}
    for row in results["steps"]:
        assert row["finite"] and not row["captured"] and row["us"]["least"] <= row["us"]["median"] <= row["us"]["most"]
        assert row["versions"]["seam"].keys() == {"plain"}
        assert row["growth"] == 1 or row["context"] == 160
    assert found.output.count("growth") == len(results["steps"])


def test_random_records_take_the_place_of_a_prompt():
    for c in (replace(QUICK, prefill_to=0), replace(QUICK, patience=0.0)):
        results, _ = measured(c)
        assert [row["filled"] for row in results["steps"]] == ["random records"]
        assert results["steps"][0]["finite"]
        assert [row["stopped_after"] for row in results["prefill"]] == [64] * len(results["prefill"])
    results, _ = measured(QUICK)
    assert [row["filled"] for row in results["steps"]] == ["copies of one prefilled sequence"]


def test_what_no_time_is_left_for_is_named():
    results, said = measured(replace(QUICK, limit=-1.0))
    assert not results["steps"] and results["left_out"] == ["96 tokens"] and "left out" in said[0]


def test_a_step_that_fails_is_noted_and_the_others_go_on(monkeypatch):
    run = DecodeGraph.run
    broken = RuntimeError("no room")

    def fails(self):
        if len(self.tokens) == 6:
            raise broken
        return run(self)

    monkeypatch.setattr(DecodeGraph, "run", fails)
    results, said = measured(replace(QUICK, parts=("verify", "no_pool")))
    assert [row.get("failed") for row in results["steps"]] == [None, "RuntimeError: no room", None]
    assert "no room" in said[2]


def test_another_part_is_refused():
    with pytest.raises(ConfigError, match="parts = fast: allowed are verify, no_pool, float"):
        replace(TOY, parts=("fast",))


def test_without_the_pool_none_is_built_and_none_restricts():
    def given(q, w, keys, visible, k, pool, **named):
        return pool

    with replaced(ops, "index_select", lambda original: given):
        assert ops.index_select(*"qwkv", 1, "pool") == "pool"
        with Step(96, 1, pool=False).restricted():
            assert ops.index_select(*"qwkv", 1, "pool") is None


def test_bytes_that_a_step_must_scan():
    every = 68 * (3 * (1 << 19) + (1 << 20))
    assert Step(1 << 20, 1).scanned(GEOMETRY, 68) == every + 4 * 16384 * 68
    assert Step(1 << 20, 32, pool=False).scanned(GEOMETRY, 68) == 32 * (every + 4 * 68 * (1 << 20))
    assert Step(4096, 1, rows=6).scanned(GEOMETRY, 256) == 256 * (3 * 2048 + 5 * 4096)


def test_the_global_cache_takes_890_bytes_a_token():
    cache = Cache(GEOMETRY, dtype=torch.bfloat16, cache_format="packed")
    cache.entries.reserve(10)
    assert bench.global_bytes(cache) == 890
    values = Cache(GEOMETRY, dtype=torch.bfloat16, cache_format="float")
    values.entries.reserve(3)
    assert bench.global_bytes(values) == 2.5 * 2 * (512 + 128)


def test_growth_is_against_the_shortest_of_the_same_kind():
    row = dict(batch=1, rows=1, pool=True, cache="packed")
    steps = [
        row | dict(context=10, us={"median": 100.0}, scanned_bytes=50),
        row | dict(context=20, us={"median": 110.0}, scanned_bytes=150),
        row | dict(context=20, us={"median": 999.0}, scanned_bytes=0, pool=False),
        row | dict(context=40, failed="no room", scanned_bytes=0),
    ]
    compare(steps, speed=1e6)
    assert (steps[1]["added_us"], steps[1]["added_floor_us"]) == (10.0, 100.0)
    assert steps[1]["growth"] == pytest.approx(1.1) and steps[2]["growth"] == 1 and "growth" not in steps[3]


def test_a_copy_answers_like_the_sequence_and_shares_no_page():
    model = tiny(dtype=torch.float32)
    packed, values = (Cache(model.config, cache_format=form) for form in ("packed", "float"))
    state = packed.new()
    prefill(model, packed, state, prompt(75))
    other, decoded = copied(state, packed, packed), copied(state, packed, values)
    assert not set(state.entries.values()) & set(other.entries.values())
    assert not set(state.windows.values()) & set(other.windows.values())
    logits = DecodeGraph(model, packed, [state, other]).replay(torch.tensor([7, 7]))
    assert torch.equal(logits[0], logits[1])
    found = DecodeGraph(model, values, [decoded]).replay(torch.tensor([7]))
    torch.testing.assert_close(found[0], logits[0], rtol=0, atol=1e-4)


def test_random_weights_are_those_of_a_fresh_model_in_kind():
    model = random_model(ModelConfig.preset("toy"), device=torch.device("cpu"), dtype=torch.bfloat16, seed=0)
    fresh = Model(model.config).initialise(torch.Generator().manual_seed(0)).cast(torch.bfloat16)
    for (name, found), expected in zip(model.named_parameters(), fresh.parameters(), strict=True):
        assert found.dtype == expected.dtype, name
        if expected.dim() == 1 or name.endswith(("q_weight", "k_weight")):
            assert torch.equal(found, expected), name
        else:
            a, b = (p.detach().float().std().item() for p in (found, expected))
            assert a == pytest.approx(b, rel=0.1), name
    assert torch.equal(model.token_map, fresh.token_map)


def test_random_records_are_numbers():
    config = ModelConfig.preset("toy")
    cache = Cache(config, cache_format="packed")
    fill(cache, 100, 2, torch.Generator().manual_seed(0))
    for kind, pool in cache.pools.items():
        values = pool.format.decode(pool.data, pool.scales)
        assert values.isfinite().all() and not values[: pool.page].any(), kind
        assert values[pool.page :].std() > 0.01, kind


def test_kernels_of_a_step_are_summed_by_who_wrote_them():
    """Names as the profiler of an H200 gives them."""
    K = breakdown.Kernel
    seen = [
        *(K("cross", 4.0, 80), K("finish", 6.0, 80), K("combine", 8.0, 40), K("scan_kernel", 3.0, 8)),
        K("_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm9xINS_4gemm6kernel1", 9.0, 120),
        K("void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t>", 0.5, 120),
        *(K("nvjet_sm90_tst_128x32_64x10_4x1_v_bz_splitK_TNT", 2.0, 40), K("void cublasLt::splitKreduce_kernel", 1, 9)),
        *(K("void at::native::radixSortKVInPlace<-2, -1>", 2.0, 40), K("Memcpy DtoD (Device -> Device)", 1.0, 4)),
    ]
    found = breakdown.summed(seen)
    assert {name: group["us"] for name, group in found.items()} == {
        **{"seam": 10.0, "attention": 8.0, "index_select": 3.0, "experts": 9.5, "products": 3.0, "small": 3.0}
    }
    assert found["small"]["launches"] == 44 and found["seam"]["launches"] == 160
