"""Losses by hand, the yardstick, and runs that survive whatever happens to them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from minidsv41 import checkpoint
from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import kv_bytes_per_token
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.train import bench, bench_decode, bench_train, losses
from minidsv41.train.data import Corpus, Stream
from minidsv41.train.evaluate import validate
from minidsv41.train.loop import SNAPSHOTS, TrainConfig, Trainer
from minidsv41.train.losses import Queries, alignment_loss, balance_loss, draft_loss, update_bias
from minidsv41.train.objective import Backbone, Draft, Plain
from minidsv41.train.plain import PlainCache, PlainConfig, PlainTransformer
from minidsv41.train.product import deliver
from minidsv41.train.runs import Run, RunError, State
from minidsv41.train.stage import Stage, as_stored
from tests.tiny import TINY, tiny

QUICK = TrainConfig(
    threads=1, length=16, batch=4, steps=6, replay=1, align=1, draft_steps=3, draft_anchors=8, save_every=1
)


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def babble() -> Corpus:
    """A corpus of the tiny vocabulary in which every third token repeats the one before."""
    draw = np.random.default_rng(0)

    def text(count: int) -> Stream:
        tokens = draw.integers(5, 64, count)
        tokens[2::3] = tokens[1::3][: len(tokens[2::3])]
        return Stream(np.concatenate([[0], tokens, [1]]), 3 * count)

    return Corpus(text(2000), {"plays": text(120), "python": text(90)})


def trainer(folder: Path, config: TrainConfig = QUICK) -> Trainer:
    model = Model(TINY).initialise(torch.Generator().manual_seed(config.seed))
    return Trainer(config, model, babble(), Run(folder))


# Losses


def test_balance_loss_is_one_when_even_and_the_number_of_experts_when_one_gets_all():
    even = torch.tensor([[[0, 1], [2, 3]]])
    assert balance_loss(torch.ones(1, 2, 4), even).item() == pytest.approx(1)
    scores = torch.tensor([[[1.0, 0, 0, 0]]]).expand(1, 8, 4)
    assert balance_loss(scores, torch.zeros(1, 8, 1, dtype=torch.int64)).item() == pytest.approx(4)


def test_balance_loss_is_taken_within_each_sequence():
    """Two sequences that each use one expert only are unbalanced, although the batch is even."""
    ids = torch.tensor([[[0]] * 3, [[1]] * 3])
    scores = torch.nn.functional.one_hot(ids[..., 0], 2).float()
    assert balance_loss(scores, ids).item() == pytest.approx(2)


def test_bias_follows_the_sign_of_the_load():
    bias = torch.zeros(4)
    update_bias(bias, torch.tensor([[0, 1], [0, 1], [0, 2]]))  # loads 3, 2, 1, 0, mean 1.5
    assert bias.tolist() == pytest.approx([-1e-3, -1e-3, 1e-3, 1e-3])


def attention_of(seed: int = 0, *, ratio: int = 2, window: int = 3) -> Queries:
    """Two sequences of 8 tokens, two heads; the second sequence reads no window row before 4 from row 4 on."""
    at = torch.arange(8)
    first = (at - window + 1).clamp(min=0)
    return Queries(
        q=seeded(2, 8, 2, 4, seed=seed).double(),
        entries=seeded(2, 8 // ratio, 4, seed=seed + 1).double(),
        window=seeded(2, 8, 4, seed=seed + 2).double(),
        sink=seeded(2, seed=seed + 3).double(),
        visible=(at + 1) // ratio,
        first=torch.stack([first, torch.where(at >= 4, first.clamp(min=4), first)]),
    )


def test_attention_mass_equals_a_loop():
    queries = attention_of()
    mass = queries.mass()
    for b in range(2):
        for t in range(8):
            entries, rows = queries.entries[b, : queries.visible[t]], queries.window[b, queries.first[b, t] : t + 1]
            total = torch.zeros(len(entries), dtype=torch.float64)
            for q, sink in zip(queries.q[b, t], queries.sink, strict=True):
                scores = torch.cat([entries @ q / 2, rows @ q / 2, sink[None]])
                total += scores.softmax(0)[: len(entries)]
            expected = torch.zeros(4, dtype=torch.float64)
            if len(entries):
                expected[: len(entries)] = total / total.sum()
            assert torch.allclose(mass[b, t], expected, atol=1e-12), (b, t)


def test_alignment_loss_equals_a_loop_and_is_least_where_scores_match():
    queries = attention_of()
    p = queries.mass()
    q, k, w = seeded(2, 8, 3, 4, seed=9).double(), seeded(2, 4, 4, seed=10).double(), seeded(2, 8, 3, seed=11).double()
    total = 0.0
    for b in range(2):
        for t in range(1, 8):  # row 0 sees no complete pair
            n = queries.visible[t]
            scores = (w[b, t, :, None] * (q[b, t] @ k[b, :n].T).relu()).sum(0)
            total += (p[b, t, :n] * (p[b, t, :n].log() - scores.log_softmax(0))).sum()
    assert alignment_loss(q, k, w, queries).item() == pytest.approx(float(total) / 14, abs=1e-12)
    # One key axis for each entry lets the scores be log p + 40 exactly.
    q, k, w = (p.clamp(min=1e-12).log() + 40)[:, :, None], torch.eye(4).double().expand(2, 4, 4), torch.ones(2, 8, 1)
    assert alignment_loss(q, k, w.double(), queries).item() == pytest.approx(0, abs=1e-9)


def test_draft_loss_by_hand():
    """One anchor, two drafts, two tokens: the draft is uniform, the target (0.75, 0.25)."""
    logits = torch.zeros(1, 2, 2)
    target = torch.tensor([[[math.log(3), 0.0]] * 2])
    terms = draft_loss(logits, torch.zeros(1, 2), target, torch.tensor([[0, 1]]))
    assert terms["ce"].item() == pytest.approx(math.log(2))
    assert terms["l1"].item() == pytest.approx(0.5)
    assert terms["confidence"].item() == pytest.approx(math.log(2))
    assert terms["total"].item() == pytest.approx(1.1 * math.log(2) + 0.9 * 0.5)


def test_draft_loss_weighs_early_drafts_more_and_labels_the_overlap():
    logits, target = torch.zeros(1, 2, 2), torch.zeros(1, 2, 2)
    target[0, 0, 0] = math.log(3)
    early = draft_loss(logits, torch.full((1, 2), 30.0), target, torch.zeros(1, 2, dtype=torch.int64))
    weight = 1 / (1 + math.exp(-1 / losses.DRAFT_DECAY))
    assert early["l1"].item() == pytest.approx(0.5 * weight)
    assert early["confidence"].item() == pytest.approx(30 * 0.25 * weight)  # label 0.75 at draft 1, 1 at draft 2


# Objectives


def test_only_the_indexer_learns_from_alignment_and_only_from_it():
    model = tiny(dtype=torch.float32)
    tokens = babble().train.tokens[: 4 * 17].reshape(4, 17)
    terms = Backbone(model, replay=1, align=2, seed=0).loss(torch.from_numpy(tokens), step=0)
    parameters = dict(model.named_parameters())

    def touched(term: torch.Tensor) -> set[str]:
        wanted = {n: p for n, p in parameters.items() if p.requires_grad}
        grads = torch.autograd.grad(term, list(wanted.values()), allow_unused=True, retain_graph=True)
        return {n for n, g in zip(wanted, grads, strict=True) if g is not None and g.abs().max() > 0}

    indexer = {n for n in parameters if ".indexer." in n}
    assert touched(terms["align"]) == indexer
    language = touched(terms["lm"])
    assert not language & indexer
    assert {n.split(".")[0] for n in language} == {"embed", "layers", "norm", "head"}


def test_replay_floor_reaches_the_decoder_of_the_stated_sequences_only():
    objective = Backbone(tiny(dtype=torch.float32), replay=2, align=1, seed=3)
    floor = objective.replay_floor(5, 20, step=7).view(5, 20)
    window = TINY.sliding_window
    assert not floor[2:].any()
    for row in floor[:2]:
        start = int(row.max())
        assert 1 <= start <= 20 - window
        assert row.tolist() == [0] * start + [start] * (20 - start)
    assert torch.equal(floor.flatten(), objective.replay_floor(5, 20, step=7))
    assert not torch.equal(floor.flatten(), objective.replay_floor(5, 20, step=8))
    assert objective.replay_floor(5, window, step=7) is None


def test_a_replayed_sequence_predicts_what_replay_predicts():
    """Rows after the prompt's last window equal those of a decoder that never had the earlier window rows."""
    model, tokens = tiny(), torch.from_numpy(babble().train.tokens[:20])[None]
    start = 9
    floor = torch.where(torch.arange(20) >= start, start, 0)
    whole = Batch.equal(tokens, decoder_floor=floor)
    seen = model(whole, SequenceKeys(model.config, whole)).hidden
    exact = Batch.equal(tokens)
    plain = model(exact, SequenceKeys(model.config, exact)).hidden
    assert torch.equal(seen[:start], plain[:start])
    assert (seen[start : start + 3] - plain[start : start + 3]).abs().max() > 1e-6


def test_drafts_are_scored_where_they_stand(monkeypatch):
    """Draft k after an anchor at place a: target and true token are those of place a + k, given the tokens before."""
    model = tiny(dtype=torch.float32)
    tokens = torch.from_numpy(babble().train.tokens[: 2 * 17].reshape(2, 17))
    seen = {}

    def spy(logits, confidence, target, true):
        seen.update(logits=logits, target=target, true=true)
        return draft_loss(logits, confidence, target, true)

    monkeypatch.setattr("minidsv41.train.objective.draft_loss", spy)
    Draft(model, anchors=6, seed=0).loss(tokens, step=0)
    whole = Backbone(model, replay=0, align=0, seed=0).logits(tokens[:, :-1])
    places = [
        (b, p) for b in range(2) for p in range(16) if torch.allclose(whole[b, p], seen["target"][0, 0], atol=1e-4)
    ]
    ((b, p),) = places
    assert torch.allclose(seen["target"][0], whole[b, p : p + 3], atol=1e-4)
    assert seen["true"][0].tolist() == tokens[b, p + 1 : p + 4].tolist()
    batch = Batch.equal(tokens[b : b + 1, :p])  # the draft must know nothing beyond the anchor, which is tokens[b, p]
    keys = SequenceKeys(model.config, batch)
    model.mtp.remember(model(batch, keys).features, batch, keys)
    true = iter(tokens[b, p + 1 :])
    drafted = model.mtp.draft(
        tokens[b, p : p + 1],
        torch.tensor([0]),
        torch.tensor([p - 1]),
        model.embed,
        model.head,
        keys,
        choose=lambda logits: next(true)[None],
    )
    assert torch.allclose(seen["logits"][0], drafted.logits[0], atol=1e-4)


def test_only_the_draft_learns_from_the_draft_loss():
    model = tiny(dtype=torch.float32)
    tokens = torch.from_numpy(babble().train.tokens[: 2 * 17].reshape(2, 17))
    objective = Draft(model, anchors=6, seed=0)
    objective.loss(tokens, step=0)["total"].backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert {n.split(".")[0] for n in trained} == {"mtp"}
    last = f"mtp.{TINY.num_nextn_predict_layers - 1}"
    assert {
        f"{last}.markov_head.embed.weight",
        f"{last}.confidence_head.proj.weight",
        "mtp.0.main_proj.weight",
    } < trained
    before = [b.ffn.gate.bias.clone() for b in model.mtp]
    objective.settle()
    assert all((b.ffn.gate.bias - old).abs().max() > 0 for b, old in zip(model.mtp, before, strict=True))


def test_weights_as_stored_are_what_the_file_gives_back(tmp_path):
    model = tiny(dtype=torch.float32)
    rounded = {n: as_stored(n, p.detach()) for n, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(rounded[name])
    checkpoint.save(model, tmp_path)
    for name, p in checkpoint.load(tmp_path).named_parameters():
        assert torch.equal(p, rounded[name]), name


# The yardstick


def test_plain_transformer_has_the_parameters_asked_for_and_is_causal():
    config = PlainConfig.with_parameters(30_000, vocab_size=64, hidden_size=32, num_layers=2, num_heads=4)
    model = PlainTransformer(config, generator=torch.Generator().manual_seed(0))
    inner = sum(p.numel() for n, p in model.named_parameters() if not n.startswith(("embed", "head")))
    assert inner == config.parameters
    assert abs(inner - 30_000) <= 3 * 32 * 2 / 2
    tokens = torch.arange(12)[None]
    changed = tokens.clone()
    changed[0, 8:] += 20
    assert torch.allclose(model(tokens)[0, :8], model(changed)[0, :8], atol=1e-6)
    assert not torch.allclose(model(tokens)[0, 8:], model(changed)[0, 8:], atol=1e-3)


def test_plain_transformer_decodes_as_it_trains():
    config = PlainConfig.with_parameters(30_000, vocab_size=64, hidden_size=32, num_layers=2, num_heads=4)
    model = PlainTransformer(config, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(12)[None]
    whole, cache = model(tokens)[0], PlainCache(config, 12)
    for start, end in ((0, 5), (5, 8), *((i, i + 1) for i in range(8, 12))):
        assert torch.allclose(model(tokens[:, start:end], cache)[0, 0], whole[end - 1], atol=1e-5)
    assert cache.nbytes == 2 * 2 * 32 * 12 * 4  # keys and values, layers, width, tokens, bytes


def test_plain_attention_depends_on_distance_alone():
    """The scores of two rotated rows do not change when both move by the same number of places."""
    from minidsv41.train.plain import rotate, rotation

    config = PlainConfig(vocab_size=8, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=8)
    turns = rotation(10, config, torch.device("cpu"))
    q, k = (seeded(1, 1, 1, 8, seed=s).expand(1, 1, 10, 8) for s in (0, 1))
    scores = (rotate(q, turns) @ rotate(k, turns).mT)[0, 0]
    for gap in (0, 1, 5):
        assert torch.allclose(scores.diagonal(gap), scores[0, gap].expand(10 - gap), atol=1e-5)
    assert abs(scores[0, 0] - scores[0, 5]) > 1e-3


def test_too_few_parameters_are_refused():
    with pytest.raises(ValueError, match="100 parameters"):
        PlainConfig.with_parameters(100, vocab_size=64, hidden_size=32, num_layers=2, num_heads=4)


@pytest.mark.parametrize("kind", ["plain", "minidsv41"])
def test_both_contenders_learn_a_repeated_sequence(kind):
    if kind == "plain":
        config = PlainConfig.with_parameters(30_000, vocab_size=64, hidden_size=32, num_layers=2, num_heads=4)
        objective = Plain(PlainTransformer(config, generator=torch.Generator().manual_seed(0)))
    else:
        model = Model(TINY).initialise(torch.Generator().manual_seed(0))
        objective = Backbone(model, replay=1, align=1, seed=0)
    stage = Stage(kind, objective, lr=0.02, warmup=0.1)
    tokens = torch.from_numpy(babble().train.tokens[: 4 * 17].reshape(4, 17))
    steps = [stage.update(tokens, step=s, progress=s / 40)["total"] for s in range(40)]
    assert steps[-1] < 0.25 * steps[0]


def test_a_uniform_model_needs_the_bits_of_its_vocabulary():
    corpus = babble()
    bits = validate(lambda t: torch.zeros(*t.shape, 64), corpus, length=16, batch=3)
    scored = {k: len(s.tokens) - 1 for k, s in corpus.validation.items()}
    for kind, source in corpus.validation.items():
        assert bits[kind] == pytest.approx(6 * scored[kind] / source.text_bytes)
    assert bits["total"] == pytest.approx(6 * sum(scored.values()) / (3 * 210))
    estimate = validate(lambda t: torch.zeros(*t.shape, 64), corpus, length=16, batch=2, batches=1)
    assert estimate == pytest.approx(bits)


# Benchmarks


def test_contenders_have_equal_active_parameters():
    plain = bench.contender("plain", "toy", seed=0).config
    assert plain.parameters == pytest.approx(bench.active_parameters(ModelConfig.preset("toy")), rel=1e-3)


@pytest.mark.parametrize("name", bench.CONTENDERS)
def test_training_is_measured(name, monkeypatch):
    monkeypatch.setattr(bench_train, "corpus", babble)
    config = bench_train.BenchConfig(minutes=0.01, threads=1, length=64, batch=2)
    found = bench_train.train(name, config)
    assert found["curve"][-1]["step"] == found["steps"] >= 1
    assert found["curve"][-1]["seconds"] >= 0.6
    low, high = found["tokens_per_second_range"]
    assert 0 < low <= found["tokens_per_second"] <= high
    assert found["peak_memory_mb"] > 50


def test_decoding_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_decode, "corpus", babble)
    config = bench_decode.DecodeConfig(lengths=(40, 70), tokens=2, threads=1)
    results = {name: bench_decode.decode(name, config) for name in bench.CONTENDERS}
    c = ModelConfig.preset("toy")
    plain = [row["cache_bytes"] for row in results["plain"]]
    assert plain == [2 * c.num_hidden_layers * c.hidden_size * 4 * tokens for tokens in (42, 72)]
    ours = [row["cache_bytes"] for row in results["minidsv41"]]
    assert ours[1] - ours[0] == kv_bytes_per_token(c).value * 30
    path = bench.write(bench.record("decode", config, results), tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "bench_decode.json"
    assert content["results"] == results and content["machine"]["threads"] == 1


# Runs


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
from tests.test_train import trainer
trainer(Path({folder!r})).train(resume={resume})
"""


def test_killed_at_any_moment_a_run_goes_on_identically(finished, tmp_path):
    folder, resume, kills = tmp_path / "run", False, 0
    draw = np.random.default_rng(0)
    for _ in range(4):
        code = CHILD.format(folder=str(folder), resume=resume)
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True)
        state, resume = folder / "state.safetensors", True
        stamp = state.stat().st_mtime_ns if state.exists() else 0
        while child.poll() is None and not (state.exists() and state.stat().st_mtime_ns != stamp):
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.3))
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
    with pytest.raises(RunError, match=r"steps=1.5: steps is of type int"):
        QUICK.changed(["steps=1.5"])


def test_other_settings_are_refused_by_name(finished):
    with pytest.raises(RunError, match=r"lr = 0.006, not 0.5"):
        trainer(finished, TrainConfig(**{**vars(QUICK), "lr": 0.5})).train(resume=True)


def test_a_file_that_is_no_checkpoint_is_named(finished, tmp_path):
    (tmp_path / "settings.json").write_bytes((finished / "settings.json").read_bytes())
    (tmp_path / "state.safetensors").write_bytes(b"not tensors")
    with pytest.raises(RunError, match=r"state.safetensors: not a checkpoint of a training run"):
        trainer(tmp_path).train(resume=True)
    (tmp_path / "settings.json").write_text("[", encoding="utf-8")
    with pytest.raises(RunError, match=r"settings.json: not the settings of a run"):
        trainer(tmp_path).train(resume=True)


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
