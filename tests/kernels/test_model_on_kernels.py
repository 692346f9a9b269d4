"""The whole model with a kernel in every place that has one, against the same model on plain operations."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minidsv41 import ops
from minidsv41.cache import Cache, State
from minidsv41.cache.pool import PAGE
from minidsv41.config import ModelConfig
from minidsv41.kernels.bench.filling import random_model
from minidsv41.kernels.launch import recorded
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch, twins
from minidsv41.ops.select import weigh
from minidsv41.parity import difference, parity
from minidsv41.serve import prefill
from minidsv41.serve.generate import step
from minidsv41.serve.graph import DecodeGraph
from minidsv41.serve.prefill import Prefill
from tests.tiny import prompt, tiny

GOLDEN = Path(__file__).parents[1] / "golden" / "v41_tiny"
LONG = pytest.mark.skipif(not torch.cuda.is_available(), reason="minutes without a GPU")
KERNELS = {"engram_gate", "seam", "index_select", "sparse_attention"}


def small(device: torch.device, **changes) -> Model:
    return tiny(dtype=torch.float32, candidate_block_size=4, **changes).to(device)


def misses(trace: dict[str, torch.Tensor], config: ModelConfig) -> dict[str, int]:
    """Of each selecting layer, how many choices the float64 scores of its own queries and keys do not bear out.

    A choice may differ where scores tie within 1e-4 of the row's largest.
    """
    out = {}
    for layer in config.index_source_layer_ids:
        owner = config.kv_owner(layer)
        q, w, keys = (trace[name].double() for name in (f"L{layer}.idx.q", f"L{layer}.idx.w", f"L{owner}.idx.k"))
        at = torch.arange(len(keys), device=keys.device)
        seen = at < (torch.arange(len(q), device=q.device)[:, None] + 1) // config.ratio(layer)
        if config.mode(layer) == "reindex" and owner == config.candidate_source_layer_id:
            seen &= trace[f"L{owner}.idx.candidates"][:, : len(keys)]
        scores = weigh(q, w, keys).masked_fill(~seen, -torch.inf)
        chosen = torch.zeros(len(q), len(keys) + 1, dtype=torch.bool, device=q.device)
        topk = trace[f"L{layer}.idx.topk"]
        chosen = chosen.scatter_(1, torch.where(topk < 0, len(keys), topk), True)[:, :-1]
        k = min(config.index_topk, len(keys))
        threshold = scores.topk(k).values[:, -1:]
        near = 1e-4 * scores.masked_fill(~seen, 0).abs().amax(1, keepdim=True)
        wrong = chosen & (~seen | (scores < threshold - near)) | ~chosen & seen & (scores > threshold + near)
        assert torch.equal(chosen.sum(1), seen.sum(1).clamp(max=k)), f"L{layer}: as many as there are"
        out[f"L{layer}"] = int(wrong.sum())
    return out


def tolerance(device: torch.device) -> float:
    """Of a short prompt whose keys are rounded to few bits: a GPU's last places can move a code."""
    return 2e-4 if device.type == "cpu" else 2e-3


def test_every_operation_finds_its_kernels():
    found = {name: op for name in ops.__all__ if hasattr(op := getattr(ops, name), "kernels")}
    assert found.keys() == KERNELS | {"kv_write", "pool_write", "engram_read"}
    for operation in found.values():
        assert all(callable(twins.load(kernel)) for kernel in operation.kernels)


@pytest.mark.parametrize("qat", [True, pytest.param(False, marks=LONG)])
def test_every_stage_of_a_prompt_is_that_of_the_plain_model(device, qat):
    """Few tokens where values are rounded to few bits: of many, one is so near a tie that its code is another."""
    model, ids = small(device, qat=qat), prompt(13 if qat else 300).to(device)
    with ops.versions("plain"):
        plain = model.trace(ids)
    with ops.versions("kernels") as seen:
        found = model.trace(ids)
    assert set(seen.summary()) == KERNELS and not any(version == "plain" for _, version in seen.ran)
    assert found.keys() == plain.keys()
    allowed = tolerance(device) if qat else 2e-4
    off = {name: difference(found[name], value, allowed) for name, value in plain.items() if "topk" not in name}
    assert not {name: error for name, error in off.items() if error[1]}
    assert not any(misses(found, model.config).values())


@pytest.mark.parametrize("cache_format", ["packed", pytest.param("float", marks=LONG)])
def test_chunks_and_steps_on_kernels_are_those_of_the_plain_model(device, cache_format):
    model, ids = small(device), prompt(11).to(device)

    def served(version: str) -> tuple[torch.Tensor, set[str]]:
        cache = Cache(model.config, device=device, cache_format=cache_format)
        state = cache.new()
        with ops.versions(version) as seen:
            logits = [prefill(model, cache, state, ids, chunk=7)]
            logits += [model.logits(step(model, cache, state, token).hidden)[0] for token in ids[:1, None]]
        return torch.stack(logits), {name for name, ran in seen.ran if ran == "kernel"}

    (plain, none), (found, kernels) = served("plain"), served("kernels")
    assert not none and kernels == KERNELS | ({"kv_write"} if cache_format == "packed" else set())
    torch.testing.assert_close(found, plain, rtol=0, atol=tolerance(device))


@LONG
def test_the_golden_folder_agrees_on_kernels():
    with ops.versions() as seen:
        rows = parity(GOLDEN, device="cuda", versions="kernels")
    assert [row for row in rows if row.verdict == "FAIL"] == []
    assert {name for name, ran in seen.ran if ran == "kernel"} >= KERNELS
    assert {row.dtype for row in rows} == {"float64", "float32"}


@pytest.fixture(scope="module")
def shapes():
    """The model at released widths without its numbers: whoever asks for one raises."""
    with torch.device("meta"):
        return Model(ModelConfig.preset("geometry")).cast(torch.bfloat16)


def meta_cache(model: Model, cache_format: str, *, length: int, count: int = 1) -> tuple[Cache, list[State]]:
    cache = Cache(model.config, dtype=torch.bfloat16, device="meta", cache_format=cache_format)
    states = [cache.new() for _ in range(count)]
    for state in states if length else []:
        state.length, pages = length, range(-(-length // PAGE))
        state.entries = {page: cache.entries.take() for page in pages}
        state.windows = {page: cache.windows.take() for page in pages[-3:]}
    return cache, states


@pytest.mark.parametrize(
    ("length", "count", "rows", "cache_format"),
    [(4089, 1, 1, "packed"), (4089, 32, 1, "packed"), (131065, 1, 6, "packed"), (1048569, 1, 1, "float")],
)
def test_a_step_at_released_widths_runs_on_kernels_and_asks_for_no_numbers(shapes, length, count, rows, cache_format):
    cache, states = meta_cache(shapes, cache_format, length=length, count=count)
    with recorded() as launches, ops.versions("kernels") as seen:
        logits = DecodeGraph(shapes, cache, states, rows=rows).run()
    assert logits.shape == (count * rows, shapes.config.vocab_size) and logits.dtype == torch.float32
    layers = shapes.config.num_hidden_layers
    expected = {"seam": 2 * layers, "sparse_attention": layers, "index_select": 8, "engram_gate": 2}
    expected |= {"kv_write": layers + 3 + 4} if cache_format == "packed" else {}  # windows, the draft's, index keys
    assert {name: found["kernel"] for name, found in seen.summary().items()} == expected
    assert not any(version == "plain" for _, version in seen.ran)
    assert len(launches) >= sum(expected.values())


def test_chunks_at_released_widths_run_on_kernels_and_ask_for_no_numbers(shapes):
    cache, [state] = meta_cache(shapes, "packed", length=0)
    work = Prefill(shapes, cache, state, torch.zeros(20000, dtype=torch.int64, device="meta"))
    with recorded(), ops.versions("kernels") as seen:
        for _ in range(2):
            assert work.run(8192) is None
    assert seen.ran["sparse_attention", "kernel"] == 2 * shapes.config.decoder_start
    assert not any(version == "plain" for _, version in seen.ran)


def wide() -> ModelConfig:
    """Released widths and few layers, with every mode among them, and a pool that restricts."""
    return replace(
        ModelConfig.preset("geometry"),
        num_hidden_layers=8,
        compress_ratios=(0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0),
        kv_source_layer_ids=(1, 4),
        index_source_layer_ids=(1, 4, 6),
        candidate_source_layer_id=4,
        candidate_topk_blocks=80,
        engram_layer_ids=(1, 3),
        dspark_target_layer_ids=(5, 6, 7),
    )


@LONG
@torch.no_grad()
def test_bfloat16_at_released_widths_is_as_near_to_float64_as_the_plain_model(device):
    model = random_model(wide(), device=device, dtype=torch.bfloat16, seed=0)
    ids = torch.randint(model.config.vocab_size, (1500,), generator=torch.Generator().manual_seed(1)).to(device)
    with ops.versions("auto") as seen:
        trace = model.trace(ids)
    assert {name for name, ran in seen.ran if ran == "kernel"} >= KERNELS, seen.summary()
    wrong = misses(trace, model.config)
    kernels = trace.pop("logits")[-256:].double()
    del trace

    def logits() -> torch.Tensor:
        batch = Batch.equal(ids[None])
        with ops.versions("plain"):
            return model.logits(model(batch, SequenceKeys(model.config, batch)).hidden[-256:]).double()

    plain = logits()
    model.cast(torch.float64)
    exact = logits()
    errors = {name: float((x - exact).norm() / exact.norm()) for name, x in (("kernels", kernels), ("plain", plain))}
    assert errors["kernels"] <= 1.5 * errors["plain"], errors
    assert not any(wrong.values()), wrong
