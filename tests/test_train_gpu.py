"""Training in bfloat16, and the comparison of kernels with plain operations. All of it runs on the CPU as well."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from minidsv41 import ops
from minidsv41.cli import app
from minidsv41.model.moe import Experts, swiglu
from minidsv41.train import bench_gpu
from minidsv41.train.data import Batches
from minidsv41.train.loop import ON_GPU, TrainConfig, Trainer
from minidsv41.train.objective import Backbone, Draft
from minidsv41.train.optim import Optimizer
from minidsv41.train.runs import Run, RunError
from minidsv41.train.stage import Stage
from tests.babble import babble
from tests.tiny import TINY, tiny


def test_bfloat16_trains_with_float32_states():
    model = tiny(dtype=torch.bfloat16)
    stage = Stage("ours", Backbone(model, replay=1, align=1, seed=0), lr=0.02, warmup=0.0)
    batches = Batches(tokens=babble().train.tokens, batch_size=2, length=16, seed=0)
    losses = [stage.update(batches(step), step=step, progress=0.5)["lm"] for step in range(12)]
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.5, losses
    assert {t.dtype for t in stage.optimizer.state().values()} == {torch.float32}
    assert model.layers[0].attn.wq_a.weight.dtype == torch.bfloat16
    assert model.layers[0].attn.attn_sink.dtype == torch.float32
    master = stage.optimizer.master["layers.0.attn.wq_a.weight"]
    assert torch.equal(model.layers[0].attn.wq_a.weight, master.bfloat16())
    assert not torch.equal(model.layers[0].attn.wq_a.weight.float(), master)


def test_updates_below_a_bfloat16_step_add_up():
    p = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = Optimizer([("norm.weight", p)], stacks={})
    for _ in range(8):
        p.grad = torch.ones_like(p)
        optimizer.step(1e-3)  # a step of bfloat16 below 1 is 2**-8
    assert p.tolist() == [float((1 - 8e-3 * torch.ones(())).bfloat16())] * 4


def test_alignment_of_bfloat16_tensors_is_computed_in_float32():
    model = tiny(dtype=torch.bfloat16)
    tokens = torch.from_numpy(babble().train.tokens[: 4 * 17].reshape(4, 17))
    terms = Backbone(model, replay=1, align=2, seed=0).loss(tokens, step=0).terms
    assert {term.dtype for term in terms.values()} == {torch.float32}
    assert {t.dtype for t in Draft(model, anchors=4, seed=0).loss(tokens, step=0).terms.values()} == {torch.float32}


def test_the_dtype_is_a_setting_of_the_run(tmp_path):
    sizes = ["steps=2", "draft_steps=1", "batch=2", "length=16", "replay=1", "align=1"]
    config = TrainConfig().changed([*ON_GPU, "device=cpu", *sizes])
    assert config.dtype == "bfloat16" and config.threads == 1
    trainer = Trainer(config, tiny(dtype=torch.float32), babble(), Run(tmp_path / "run"))
    trainer.train()
    assert trainer.model.dtype == torch.bfloat16
    state = trainer.run.load()
    assert {t.dtype for name, t in state.tensors.items() if not name.startswith("model.")} == {torch.float32}
    with pytest.raises(RunError, match="dtype=half: allowed are float32, bfloat16"):
        TrainConfig().changed(["dtype=half"])


@pytest.mark.parametrize("ids", [[0, 0, 0, 2, 2] + 9 * [4], 9 * [1], [0, 1, 2, 3, 4], 8 * [4]])
def test_grouped_experts_have_the_gradients_of_single_ones(ids):
    generator, experts = torch.Generator().manual_seed(0), Experts(TINY, 5)
    with torch.no_grad():
        for p in experts.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    experts.bfloat16()
    xs = torch.randn(len(ids), TINY.hidden_size, generator=generator).bfloat16().requires_grad_()
    ws = torch.rand(len(ids), 1, generator=generator).requires_grad_()
    w1, w2, w3, limit = experts.w1, experts.w2, experts.w3, experts.limit
    rows = zip(xs, ws, ids, strict=True)
    single = [F.linear(swiglu(F.linear(x, w1[i]), F.linear(x, w3[i]), limit, w), w2[i]) for x, w, i in rows]
    found = experts.grouped(xs, torch.tensor(ids), ws)
    with torch.no_grad():
        assert torch.equal(found, experts.grouped(xs, torch.tensor(ids), ws))
    pairs = []
    for out in (found, torch.stack(single)):
        pairs.append((out, *torch.autograd.grad(out.float().square().sum(), [xs, ws, *experts.parameters()])))
    for a, b in zip(*pairs, strict=True):
        assert (a - b).float().norm() <= 1e-2 * b.float().norm()


class Clock:
    """A second passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


SMALLEST = bench_gpu.TrainGpuConfig(
    contenders=("kernels", "plain"), seeds=(0, 1), steps=4, warm=2, batch=2, length=16, device="cpu", minutes=10.0
)


@pytest.fixture
def small_world(monkeypatch):
    monkeypatch.setattr(bench_gpu, "fresh", lambda preset, seed: tiny(dtype=torch.float32, seed=seed))


def test_training_is_compared_over_seeds(small_world):
    saved = []
    found = bench_gpu.measure(babble(), SMALLEST, save=saved.append, clock=Clock())
    assert len(saved) == 4 and saved[-1] == found
    runs, summary = found["runs"], found["summary"]
    assert runs["plain"][0]["loss"] != runs["plain"][1]["loss"]
    assert runs["kernels"][0]["loss"] == runs["plain"][0]["loss"]  # on the CPU no kernel is asked for
    assert runs["plain"][0]["operations"]["seam"]["plain"] > 0
    assert summary["plain"]["tokens_per_second"] == SMALLEST.batch * SMALLEST.length  # one look at the clock a step
    assert summary["kernels"]["from_plain"] == 0.0 and summary["kernels"]["within_noise"]
    assert summary["plain"].keys() == {"tokens_per_second", "tokens_per_second_range", "final_loss"}
    assert sum("from plain, within the seeds'" in line for line in bench_gpu.lines(found)) == 1


def test_a_run_that_would_not_be_done_in_time_is_left_out(small_world, monkeypatch):
    """Runs of 4 steps of a second; the first ones take half a minute more, which is not expected again."""
    clock, train = Clock(), bench_gpu.train

    def slow(name, seed, *args, **kwargs):
        clock.now += 30.0 if seed == 0 else 0.0
        return train(name, seed, *args, **kwargs)

    monkeypatch.setattr(bench_gpu, "train", slow)
    c = bench_gpu.TrainGpuConfig(**{**vars(SMALLEST), "minutes": 87 / 60})  # 39 for each of the first two, then 9
    found = bench_gpu.measure(babble(), c, clock=clock)
    kept = {(name, seed): "loss" in run for name, runs in found["runs"].items() for seed, run in runs.items()}
    assert kept == {("kernels", 0): True, ("plain", 0): True, ("kernels", 1): True, ("plain", 1): False}


def test_a_difference_beyond_the_spread_of_seeds_is_told():
    assert bench_gpu.beside({0: 2.0, 1: 2.2}, {0: 2.1, 1: 2.2})["within_noise"] is True
    assert bench_gpu.beside({0: 2.4, 1: 2.5}, {0: 2.1, 1: 2.2}) == {
        "from_plain": 0.3,
        "noise": 0.1,
        "within_noise": False,
    }


def test_compiled_operations_stand_in_for_the_duration_of_a_run(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda f, dynamic: ("compiled", f, dynamic))
    before = ops.seam
    with bench_gpu.chosen("compile") as versions:
        assert ops.seam == ("compiled", before.plain, False) and versions.choice == "plain"
        assert all(isinstance(getattr(ops, name), tuple) for name in ("index_select", "sparse_attention"))
    assert ops.seam is before
    with bench_gpu.chosen("kernels") as versions:
        assert versions.choice == "auto"


def test_the_command_leaves_a_record(small_world, tmp_path, monkeypatch):
    monkeypatch.setattr("minidsv41.train.data.corpus", babble)
    said = ["bench", "train-gpu", "--device", "cpu", "--steps", "2", "--seeds", "1", "--batch", "2", "--length", "16"]
    result = CliRunner().invoke(app, [*said, "--contender", "plain", "--into", str(tmp_path)])
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "bench_train_gpu.json").read_text(encoding="utf-8"))
    assert content["settings"]["steps"] == 2 and len(content["results"]["runs"]["plain"]["0"]["loss"]) == 2
    refused = CliRunner().invoke(app, [*said, "--contender", "magic"])
    assert refused.exit_code == 2 and "magic: allowed are" in refused.output


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_with_kernels_has_the_loss_of_a_plain_one():
    tokens = torch.from_numpy(babble().train.tokens[: 8 * 65].reshape(8, 65)).cuda()
    losses = {}
    for name in ("kernels", "plain"):
        model = tiny(dtype=torch.float32).cuda().cast(torch.bfloat16)
        stage = Stage(name, Backbone(model, replay=2, align=2, seed=0), lr=0.02, warmup=0.0)
        with bench_gpu.chosen(name) as versions:
            losses[name] = [stage.update(tokens, step=0, progress=0.5)["lm"] for _ in range(6)]
        assert versions.ran["seam", "kernel" if name == "kernels" else "plain"]
    assert losses["kernels"] == pytest.approx(losses["plain"], abs=0.05)
    assert losses["kernels"][-1] < losses["kernels"][0]
