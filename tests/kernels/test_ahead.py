"""What is compiled ahead of a run of the whole model is what it launches; processes that compile, without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from triton import knobs
from triton.runtime.jit import JitFunctionInfo

from minidsv41.config import ModelConfig
from minidsv41.kernels.bench import ahead, rehearsal
from minidsv41.kernels.bench import model as bench
from minidsv41.kernels.bench.ahead import Call
from minidsv41.kernels.bench.clock import compiling
from minidsv41.kernels.compiled import specimens
from minidsv41.kernels.index_select import IN_POOL, specimen
from minidsv41.kernels.launch import capability, recorded
from minidsv41.ops import Pool, PoolSize, twins
from tests.tiny import TINY

SMALL = replace(TINY, candidate_block_size=4)
RUN = bench.ModelBench(
    preset="toy", contexts=(330,), batches=(1, 2), chunk=64, repeats=1, device="cpu", versions="kernels"
)
CARD = 90


@pytest.fixture
def small(monkeypatch):
    """A small model in the dtype of a card, in which experts ask for no numbers."""
    monkeypatch.setattr(ModelConfig, "preset", lambda name: SMALL)
    monkeypatch.setattr(bench.ModelBench, "dtype", torch.bfloat16)


def keys(launches) -> set[tuple[str, str, str]]:
    return {Call.of(made).key(CARD) for made in launches if all(made.grid)}


def launched(c: bench.ModelBench, monkeypatch) -> set[tuple[str, str, str]]:
    """By the run itself, in which plain operations do the work of the kernels that are only recorded."""
    found, attempt = set(), twins.attempt

    def shadow(*args):
        with recorded() as launches:
            attempt(*args)
        found.update(keys(launches))
        return False, None

    with monkeypatch.context() as patch:
        patch.setattr(twins, "attempt", shadow)
        results = bench.measure(c, save=json.dumps, say=lambda text: None)
    assert not [row for row in results["steps"] if "failed" in row]
    return found


def test_all_that_a_run_launches_is_known_before(small, monkeypatch):
    said: list[str] = []
    before = keys(rehearsal.launches(RUN, card=(0, 0), say=said.append))
    assert not said
    found = launched(RUN, monkeypatch)
    assert len(found) > 20 and not found - before


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("pool", [None, PoolSize(2048, 8), IN_POOL], ids=["no pool", "pool built", "in a pool"])
def test_no_chunk_between_those_rehearsed_chooses_by_a_kernel_of_its_own(ratio: int, pool: Pool | PoolSize | None):
    length, chunk = (1 << 20) - 7, bench.ModelBench().chunk

    def at(start: int) -> set[tuple[str, str, str]]:
        end = min(start + chunk, length)
        with recorded((9, 0)) as launches:
            specimen((end - start,), end // ratio, pool)[0]()
        return keys(launches)

    known = set[tuple[str, str, str]]().union(*map(at, rehearsal.starts(length, chunk)))
    assert not [start // chunk for start in range(0, length, chunk) if at(start) - known]


def test_what_cannot_be_rehearsed_is_named_and_the_rest_goes_on(small, monkeypatch):
    c = replace(RUN, contexts=(96,), batches=(1,), parts=("no_pool",))
    whole = keys(rehearsal.launches(c, card=(0, 0)))
    monkeypatch.setattr(rehearsal, "chunks", lambda *args: torch.zeros(1, device="meta").item())
    said: list[str] = []
    steps = keys(rehearsal.launches(c, card=(0, 0), say=said.append))
    assert steps < whole and steps
    assert [text.split(":")[0] for text in said] == ["a prompt of 91 tokens"] and "not all" in said[0]


def test_launches_are_those_of_the_card_that_meta_tensors_stand_for():
    meta, found = torch.device("meta"), {}
    for card in ((0, 0), (8, 9), (9, 0)):
        with recorded(card) as launches:
            assert capability(meta) == card and capability(torch.device("cpu")) == (0, 0)
            specimens()["kv_write: main"]()
        found[card] = launches[0].args["FP8"]
    assert found == {(0, 0): False, (8, 9): True, (9, 0): True} and capability(meta) == (0, 0)


LOADED: list[str] = []  # in this process


def job(calls: list[Call]) -> None:
    LOADED.extend(call.kernel for call in calls)
    if calls[0].kernel == "cross":
        raise ValueError("no such tile")


def test_each_kernel_is_compiled_once_and_loaded_where_it_compiled():
    LOADED.clear()
    with recorded() as launches:
        for name in ("kv_write: main", "kv_write: main", "seam: seam T=4096"):
            specimens()[name]()
    said: list[str] = []
    pool = ahead.compilers(1, "cpu")
    found = ahead.compile_all(launches, capability=CARD, pool=pool, seconds=60.0, say=said.append, job=job)
    count = len(keys(launches))
    assert (found["kernels"], found["done"], found["failed"]) == (count, count - 1, "ValueError: no such tile")
    assert LOADED == ["write", "pack_weights"] and said[-1].startswith(f"{count} of {count} kernels compiled ahead")


def test_a_process_that_dies_costs_no_more_than_what_it_compiled():
    with recorded() as launches:
        specimens()["kv_write: main"]()
    pool = ahead.compilers(1, "nowhere")
    found = ahead.compile_all(launches, capability=CARD, pool=pool, seconds=60.0, say=lambda text: None, job=job)
    assert found["done"] == 0 and found["failed"].startswith("BrokenProcessPool")


def announced() -> None:
    """What Triton tells when it has compiled a kernel."""
    if hook := knobs.runtime.jit_post_compile_hook:
        info = JitFunctionInfo("module", "kernel", None)
        hook(key="", repr="", fn=info, compile={}, is_manual_warmup=False, already_compiled=False)


def test_what_compiles_within_a_block_is_counted():
    with compiling() as names:
        announced()
        assert names == ["kernel"]
    announced()
    assert names == ["kernel"] and knobs.runtime.jit_post_compile_hook is None


@pytest.mark.parametrize("late", [False, True])
def test_a_prompt_is_warmed_up_with_the_same_last_rows(late: bool, monkeypatch):
    """late: a kernel that the warm-up did not start compiles in the second-last chunk."""
    seen: list[int] = []

    class Spied(bench.Prefill):
        def __init__(self, model, cache, state, ids):
            seen.append(len(ids))
            super().__init__(model, cache, state, ids)

        def run(self, rows):
            if late and len(seen) == 2 and self.left == 64 + 25:
                announced()
            return super().run(rows)

    monkeypatch.setattr(bench, "Prefill", Spied)
    c = replace(RUN, contexts=(352,), batches=(1,), parts=(), versions="plain")
    said: list[str] = []
    results = bench.measure(c, save=json.dumps, say=said.append)
    assert said[0].endswith("false, for within it compiled kernel") == late
    assert seen == [128 + 25, 320 + 25] and [row["compiled_during"] for row in results["prefill"]] == [int(late)]
    assert [replace(RUN, chunk=100).warm(n) for n in (50, 199, 250, 1000, 1010)] == [50, 199, 250, 200, 210]
