"""Runs that survive whatever happens to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from minidsv41 import checkpoint
from minidsv41.model import Model
from minidsv41.train.evaluate import validate
from minidsv41.train.loop import SNAPSHOTS, TrainConfig, Trainer
from minidsv41.train.objective import Backbone
from minidsv41.train.product import deliver
from minidsv41.train.runs import Run, RunError, State
from minidsv41.train.stage import Stage, as_stored
from tests.babble import babble
from tests.tiny import TINY

QUICK = TrainConfig(
    threads=1, length=16, batch=4, steps=6, replay=1, align=1, draft_steps=3, draft_anchors=8, save_every=1
)


def trainer(folder: Path, config: TrainConfig = QUICK) -> Trainer:
    model = Model(TINY).initialise(torch.Generator().manual_seed(config.seed))
    return Trainer(config, model, babble(), Run(folder))


def final(folder: Path) -> State:
    return Run(folder).load()


def same(a: State, b: State) -> None:
    assert a.tensors.keys() == b.tensors.keys()
    for name, tensor in a.tensors.items():
        assert torch.equal(tensor, b.tensors[name]), name
    clock = {"seconds"}
    curves = [[{k: v for k, v in line.items() if k not in clock} for line in s.facts["curve"]] for s in (a, b)]
    assert curves[0] == curves[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    trainer(folder).train()
    return folder


CHILD = """
from pathlib import Path
from tests.test_runs import trainer
trainer(Path({folder!r})).train(resume={resume})
"""


def test_killed_at_any_moment_a_run_goes_on_identically(finished, tmp_path):
    folder, resume, kills = tmp_path / "run", False, 0
    for pause in (0.0, 0.01, 0.05, 0.2):
        code = CHILD.format(folder=str(folder), resume=resume)
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True)
        state, resume = folder / "state.safetensors", True
        stamp = state.stat().st_mtime_ns if state.exists() else 0
        while child.poll() is None and not (state.exists() and state.stat().st_mtime_ns != stamp):
            time.sleep(0.005)
        time.sleep(pause)
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        assert child.returncode in (0, -signal.SIGKILL), child.stderr.read()
    assert kills
    trainer(folder).train(resume=True)
    same(final(folder), final(finished))


def test_the_model_is_left_as_it_will_be_stored(finished):
    state = final(finished)
    assert (state.facts["stage"], state.facts["step"]) == ("draft", QUICK.draft_steps)
    for name in ("layers.1.ffn.experts.w1", "layers.1.attn.wq_a.weight", "mtp.0.ffn.experts.w2", "embed.weight"):
        value = state.tensors[f"model.{name}"]
        assert torch.equal(value, as_stored(name, value)), name


def test_the_draft_stage_leaves_the_backbone_alone(tmp_path):
    t = trainer(tmp_path)
    t.config = TrainConfig(**{**vars(QUICK), "draft_steps": 0})
    t.train()
    before = {n: p.clone() for n, p in t.model.named_parameters()}
    stage = t.stage("draft")
    t.run_stage(stage, 0, 2)
    changed = {n.split(".")[0] for n, p in t.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {"mtp"}


def test_product_has_record_curve_and_snapshots(finished, tmp_path):
    t = trainer(tmp_path / "run")
    for file in finished.iterdir():
        (t.run.folder / file.name).parent.mkdir(parents=True, exist_ok=True)
        (t.run.folder / file.name).write_bytes(file.read_bytes())
    t.train(resume=True)
    record = deliver(t, tmp_path / "product")
    assert json.loads((tmp_path / "product" / "record.json").read_text(encoding="utf-8")) == record
    loaded = checkpoint.load(tmp_path / "product")
    bits = validate(Backbone(loaded, replay=0, align=0, seed=0).logits, t.corpus, length=16, batch=4)
    assert record["validation_bits_per_byte"]["total"] == pytest.approx(bits["total"], abs=1e-4)
    curve = (tmp_path / "product" / "curve.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [json.loads(line) for line in curve]
    assert [line["step"] for line in lines if "ce" in line] == [1, 2, 3]
    for percent in SNAPSHOTS:
        assert (tmp_path / "product" / f"indexer-{percent:03}.safetensors").stat().st_size > 0


def test_a_folder_with_a_run_is_not_begun_again(finished):
    with pytest.raises(RunError, match="holds a run already"):
        trainer(finished).train()


def test_settings_can_be_given_as_text():
    assert QUICK.changed(["lr=0.25", "steps=9"]) == TrainConfig(**{**vars(QUICK), "lr": 0.25, "steps": 9})
    with pytest.raises(RunError, match=r"lrr=1: no setting of that name; allowed are seed, threads"):
        QUICK.changed(["lrr=1"])
    with pytest.raises(RunError, match=r"lr: give it as lr=VALUE"):
        TrainConfig().changed(["lr"])
    with pytest.raises(RunError, match=r"steps=1.5: steps is of type int"):
        QUICK.changed(["steps=1.5"])
    for text, allowed in (
        ("lr=-1", "more than 0"),
        ("lr=nan", "more than 0"),
        ("steps=0", "more than 0"),
        ("replay=-1", "0 or more"),
    ):
        with pytest.raises(RunError, match=f"{text}: {allowed}"):
            QUICK.changed([text])
    assert QUICK.changed(["recall=0"]).recall == 0


def test_other_settings_are_refused_by_name(finished):
    with pytest.raises(RunError, match=r"lr = 0.0045, not 0.5"):
        trainer(finished, TrainConfig(**{**vars(QUICK), "lr": 0.5})).train(resume=True)


def test_a_file_that_is_no_checkpoint_is_named(finished, tmp_path):
    (tmp_path / "settings.json").write_bytes((finished / "settings.json").read_bytes())
    (tmp_path / "state.safetensors").write_bytes(b"not tensors")
    with pytest.raises(RunError, match=r"state.safetensors: not a checkpoint of a training run"):
        trainer(tmp_path).train(resume=True)
    (tmp_path / "settings.json").write_text("[", encoding="utf-8")
    with pytest.raises(RunError, match=r"settings.json: not the settings of a run"):
        trainer(tmp_path).train(resume=True)


def test_a_folder_without_a_run_is_not_resumed(tmp_path):
    with pytest.raises(RunError, match=r"typo: holds no run to resume"):
        trainer(tmp_path / "typo").train(resume=True)
    assert not (tmp_path / "typo").exists()


def test_tensors_without_settings_are_no_run(finished, tmp_path):
    (tmp_path / "state.safetensors").write_bytes((finished / "state.safetensors").read_bytes())
    with pytest.raises(RunError, match=r"no settings.json"):
        trainer(tmp_path).train(resume=True)


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_checkpoint(tmp_path):
    t = trainer(tmp_path)
    update = Stage.update

    def poisoned(self, tokens, *, step, **rest):
        if step == 3:
            t.model.norm.weight.data[0] = torch.nan
        return update(self, tokens, step=step, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "update", poisoned)
        with pytest.raises(RunError, match=r"backbone, step 3: the loss is not a finite number .*nan.* 3 steps done"):
            t.train()
    assert final(tmp_path).facts["step"] == 3
    assert all(x.isfinite().all() for x in final(tmp_path).tensors.values())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_keeps_the_last_checkpoint(finished, tmp_path):
    run = Run(tmp_path)
    run.save(State({"x": torch.zeros(3)}, {"step": 1}))
    (tmp_path / "state.safetensors.new").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"state.safetensors: cannot write .*No space left on device"):
        run.save(State({"x": torch.ones(3)}, {"step": 2}))
    assert run.load().facts == {"step": 1}
    assert not (tmp_path / "state.safetensors.new").is_symlink()
