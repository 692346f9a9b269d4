"""What is trained by what, and the plain Transformer beside it."""

from __future__ import annotations

import pytest
import torch

from minidsv41 import checkpoint
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.train.evaluate import validate
from minidsv41.train.losses import draft_loss
from minidsv41.train.objective import Backbone, Draft, Plain
from minidsv41.train.plain import PlainCache, PlainConfig, PlainTransformer
from minidsv41.train.stage import Stage, as_stored
from tests.babble import babble, seeded
from tests.tiny import TINY, tiny


def test_only_the_indexer_learns_from_alignment_and_only_from_it():
    model = tiny(dtype=torch.float32)
    tokens = babble().train.tokens[: 4 * 17].reshape(4, 17)
    terms = Backbone(model, replay=1, align=2, seed=0).loss(torch.from_numpy(tokens), step=0).terms
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


def test_without_alignment_its_term_is_zero():
    tokens = torch.from_numpy(babble().train.tokens[: 2 * 17].reshape(2, 17))
    terms = Backbone(tiny(dtype=torch.float32), replay=0, align=0, seed=0).loss(tokens, step=0).terms
    assert terms["align"] == 0
    assert terms["total"].isfinite()


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
    loss = Draft(model, anchors=6, seed=0).loss(tokens, step=0)
    loss.terms["total"].backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert {n.split(".")[0] for n in trained} == {"mtp"}
    last = f"mtp.{TINY.num_nextn_predict_layers - 1}"
    assert {
        f"{last}.markov_head.embed.weight",
        f"{last}.confidence_head.proj.weight",
        "mtp.0.main_proj.weight",
    } < trained
    assert [bias is block.ffn.gate.bias for (bias, _), block in zip(loss.chosen, model.mtp, strict=True)]


def test_two_threads_find_the_gradient_of_the_whole_batch():
    """Without terms that depend on the cut (replay, alignment, balance), parts add up to the batch."""
    tokens = torch.from_numpy(babble().train.tokens[: 4 * 17].reshape(4, 17))
    after = {}
    for threads in (1, 2):
        config = PlainConfig.with_parameters(30_000, vocab_size=64, hidden_size=32, num_layers=2, num_heads=4)
        model = PlainTransformer(config, generator=torch.Generator().manual_seed(0)).double()
        stage = Stage("plain", Plain(model), lr=0.02, warmup=0.1, threads=threads)
        for s in range(3):
            stage.update(tokens, step=s, progress=0.5)
        after[threads] = torch.cat([p.flatten() for p in model.parameters()])
    torch.testing.assert_close(after[1], after[2], rtol=0, atol=1e-9)


def test_two_threads_repeat_themselves_bit_for_bit():
    tokens, after = torch.from_numpy(babble().train.tokens[: 4 * 17].reshape(4, 17)), []
    for _ in range(2):
        model = Model(TINY).initialise(torch.Generator().manual_seed(0))
        stage = Stage("ours", Backbone(model, replay=1, align=1, seed=0), lr=0.02, warmup=0.1, threads=2)
        before = model.layers[3].ffn.gate.bias.clone()
        for s in range(3):
            stage.update(tokens, step=s, progress=0.5)
        assert not torch.equal(before, model.layers[3].ffn.gate.bias)
        after.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*after)


def test_weights_as_stored_are_what_the_file_gives_back(tmp_path):
    model = tiny(dtype=torch.float32)
    rounded = {n: as_stored(n, p.detach()) for n, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(rounded[name])
    checkpoint.save(model, tmp_path)
    for name, p in checkpoint.load(tmp_path).named_parameters():
        assert torch.equal(p, rounded[name]), name


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
