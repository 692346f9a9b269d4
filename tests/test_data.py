import hashlib
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidsv41 import paths
from minidsv41.config import ModelConfig
from minidsv41.tokens import load_tokenizer, token_map
from minidsv41.train.data import (
    BOS,
    EOS,
    KINDS,
    PAD,
    Batches,
    Document,
    Stream,
    bits_per_byte,
    corpus,
    documents,
    split,
    stream,
    validation_windows,
)

ROOT = Path(__file__).parent.parent
TOKENIZER = load_tokenizer()
SPECIALS = ["<|bos|>", "<|eos|>", "<|pad|>", "<|image|>", "<|noise|>"]


def script(name: str) -> dict:
    return runpy.run_path(str(ROOT / "scripts" / f"{name}.py"))


# Files


def test_readme_lists_every_file_with_size_and_sha256():
    data = paths.data_dir()
    listed = re.findall(r"\| `(\S+/\S+)` \| ([\d,]+) \| `([0-9a-f]{64})` \|", (data / "README.md").read_text("utf-8"))
    shipped = [p for folder in ("text", "tokenizer", "licences") for p in (data / folder).rglob("*") if p.is_file()]
    assert sorted(name for name, *_ in listed) == sorted(p.relative_to(data).as_posix() for p in shipped)
    for name, size, sha256 in listed:
        raw = (data / name).read_bytes()
        assert (int(size.replace(",", "")), sha256) == (len(raw), hashlib.sha256(raw).hexdigest()), name


def test_text_is_two_megabytes_of_clean_utf8():
    texts = [p.read_bytes() for p in paths.text_dir().rglob("*.txt")]
    assert 1.9e6 < sum(map(len, texts)) < 2.1e6
    for raw in texts:
        assert raw.decode("utf-8").endswith("\n")
        assert not re.search(rb"[\x00-\x08\x0b-\x1f]|[Gg]utenberg", raw)


def test_shipped_files_are_those_that_make_corpus_names():
    names = script("make_corpus")
    modules = [m.removesuffix("/__init__").replace("/", ".") for m in names["MODULES"]]
    wanted = {"plays": names["PLAYS"], "poems": ["tang300"], "python": modules}
    for kind in KINDS:
        assert sorted(p.stem for p in (paths.text_dir() / kind).iterdir()) == sorted(wanted[kind])


def test_make_corpus_refuses_another_source(tmp_path):
    (tmp_path / "tang300").write_bytes(b"another text")
    with pytest.raises(SystemExit, match="the slices were cut from b69cab"):
        script("make_corpus")["poems"](tmp_path / "tang300")


def test_make_corpus_tidies():
    assert script("make_corpus")["tidy"]("\n A  \n\n\tB \r\nC\n\n") == " A\n\n\tB\nC\n"


# Tokenizer


def test_shipped_tokenizer_is_its_script_s_product(tmp_path, monkeypatch):
    out = tmp_path / "tokenizer.json"
    monkeypatch.setattr("sys.argv", ["train_tokenizer.py", "--out", str(out)])
    script("train_tokenizer")["main"]()
    assert out.read_bytes() == paths.tokenizer_path().read_bytes()


@pytest.mark.parametrize("preset", ["toy", "small"])
def test_tokenizer_agrees_with_the_presets(preset):
    c = ModelConfig.preset(preset)
    assert TOKENIZER.get_vocab_size() == c.vocab_size == 4096
    ids = (c.bos_token_id, c.eos_token_id, c.pad_token_id, c.image_token_id, c.dspark_noise_token_id)
    assert [TOKENIZER.id_to_token(i) for i in ids] == SPECIALS
    assert ids[:3] == (BOS, EOS, PAD)
    assert len(set(token_map(TOKENIZER))) == c.engram_compressed_vocab_size


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_decode_undoes_encode(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_text_cannot_forge_special_tokens():
    text = "".join(SPECIALS) + "春<|eos|> if x:\n\t<|pad|>"
    ids = TOKENIZER.encode(text).ids
    assert min(ids) >= len(SPECIALS)
    assert TOKENIZER.decode(ids) == text


# Documents and streams


def test_split_holds_out_whole_documents_of_every_kind():
    found = documents(paths.text_dir())
    train, validation = split(found)
    assert len(train) + len(validation) == len(found)
    assert not {d.text for d in train} & {d.text for d in validation}
    for kind in KINDS:
        held_out = sum(len(d.text) for d in validation if d.kind == kind)
        assert 0.06 < held_out / sum(len(d.text) for d in found if d.kind == kind) < 0.1


def test_poems_are_whole():
    poems = [d.text for d in documents(paths.text_dir()) if d.kind == "poems"]
    assert len(poems) == 313
    assert all(re.fullmatch(r"《.+》\n作者：.+\n(.+\n)+(\n(.+\n)+)?", p) for p in poems)  # some have a preface


def test_streams_hold_exactly_the_documents():
    train, validation = split(documents(paths.text_dir()))
    for chosen, source in [(train, corpus().train)] + [
        ([d for d in validation if d.kind == kind], corpus().validation[kind]) for kind in KINDS
    ]:
        starts = np.flatnonzero(source.tokens == BOS)
        assert (source.tokens[np.append(starts[1:], len(source.tokens)) - 1] == EOS).all()
        pieces = np.split(source.tokens, starts[1:])
        assert [TOKENIZER.decode(p[1:-1]) for p in pieces] == [d.text for d in chosen]
        assert source.text_bytes == sum(len(d.text.encode("utf-8")) for d in chosen)
        assert source.scored.sum() == len(source.tokens) - len(chosen)


def test_bits_per_byte_of_a_uniform_model():
    two = {"a": stream([Document("a", "春")], TOKENIZER), "b": stream([Document("b", "to be")], TOKENIZER)}
    n = {k: int(s.scored.sum()) for k, s in two.items()}
    result = bits_per_byte({k: n[k] * math.log(8) for k in two}, two)
    assert result == pytest.approx({"a": 3 * n["a"] / 3, "b": 3 * n["b"] / 5, "total": 3 * (n["a"] + n["b"]) / 8})


def test_missing_kind_is_named(tmp_path):
    with pytest.raises(paths.DataNotFound, match=r"plays: no \*\.txt files"):
        documents(tmp_path)


# Batches


@given(st.integers(17, 400), st.integers(1, 7), st.integers(1, 8), st.integers(0, 3))
@settings(deadline=None)
def test_an_epoch_takes_each_token_at_most_once(total, batch_size, length, seed):
    batches = Batches(np.arange(total), batch_size=batch_size, length=length, seed=seed)
    seen = []
    for step in range(-(-batches.windows // batch_size)):
        batch = batches(step).numpy()
        assert batch.shape == (batch_size, length + 1)
        assert (np.diff(batch) == 1).all()
        seen += list(batch[:, 1:])
    targets = np.concatenate(seen[: batches.windows])
    assert len(np.unique(targets)) == len(targets)
    assert 0 <= (total - 1) - len(targets) < 2 * length


def test_a_batch_depends_on_seed_and_step_alone():
    def make(seed):
        return Batches(corpus().train.tokens, batch_size=8, length=256, seed=seed)

    running = make(7)
    history = [running(step) for step in range(5)]
    far = 3 * running.windows // 8 + 1  # the fourth epoch
    assert all((make(7)(step) == history[step]).all() for step in (4, 0, 3))
    assert (make(7)(far) == running(far)).all()
    assert (make(8)(0) != history[0]).any()
    assert (running(far) != history[1]).any()


def test_each_epoch_cuts_and_shuffles_anew():
    one_epoch = Batches(np.arange(5000), batch_size=1, length=64, seed=0)
    whole = Batches(np.arange(5000), batch_size=one_epoch.windows, length=64, seed=0)
    epochs = [whole.starts(epoch) for epoch in range(4)]
    assert len({int(starts[0]) % 64 for starts in epochs}) > 1
    assert len({tuple(np.argsort(starts)) for starts in epochs}) == 4


def test_too_short_a_stream_is_refused():
    with pytest.raises(ValueError, match="length = 8: a stream of 16 tokens"):
        Batches(np.arange(16), batch_size=1, length=8, seed=0)


# Validation


@given(st.integers(2, 300), st.integers(2, 17), st.integers(1, 5))
@settings(deadline=None)
def test_validation_scores_every_token_once_with_half_a_window_of_context(total, length, batch_size):
    source = Stream(np.arange(total), text_bytes=1)  # token 0 is bos, so each other position is scored
    scored = []
    for window in validation_windows(source, length=length, batch_size=batch_size):
        assert window.tokens.shape == (len(window.tokens), length + 1)
        assert window.scored.shape == (len(window.tokens), length)
        for row, keep in zip(window.tokens.numpy(), window.scored.numpy(), strict=True):
            targets = row[1:][keep]
            scored += list(targets)
            assert all(t - row[0] >= min(t, length // 2) for t in targets)
    assert sorted(scored) == list(range(1, total))


def test_validation_scores_what_the_stream_says():
    for source in corpus().validation.values():
        windows = list(validation_windows(source, length=256, batch_size=8))
        assert sum(int(w.scored.sum()) for w in windows) == source.scored.sum()
        assert not any((w.tokens[:, 1:][w.scored] == BOS).any() for w in windows)


def test_validation_needs_a_context():
    with pytest.raises(ValueError, match="length = 1"):
        list(validation_windows(corpus().train, length=1, batch_size=1))


# Paths


def test_data_folder_by_variable(tmp_path, monkeypatch):
    (tmp_path / "tokenizer").mkdir()
    monkeypatch.setenv("MINIDSV41_DATA", str(tmp_path))
    assert paths.data_dir() == tmp_path
    assert paths.checkpoint_dir() == tmp_path / "checkpoints" / "toy"
    assert paths.records_dir() == tmp_path / "records"


def test_wrong_data_folder_says_where_and_how(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIDSV41_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(paths.DataNotFound, match=r"MINIDSV41_DATA = .*nowhere.*Set MINIDSV41_DATA"):
        paths.data_dir()
