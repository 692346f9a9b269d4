"""The golden folder passes; a folder that differs anywhere does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from minidsv41.cli import app
from minidsv41.parity import ParityError, by_stage, difference, parity

GOLDEN = Path(__file__).parent / "golden" / "v41_tiny"
BASE = ("config.json", "engram.json", "meta.json", "model.safetensors")


@pytest.fixture(scope="module")
def rows():
    return parity(GOLDEN)


def test_every_stage_of_the_golden_folder_agrees(rows) -> None:
    assert [r for r in rows if r.verdict == "FAIL"] == []
    exact = [r for r in rows if r.dtype == "float64"]
    assert {r.verdict for r in exact} == {"ok", "not compared"}
    compared = {r.case for r in exact if r.verdict == "ok"}
    assert compared == {
        f"{case} {mode}" for case in ("prefill", "decode", "imagemask", "dspark", "replay") for mode in ("qat", "noqat")
    }


def test_every_tensor_of_every_trace_is_accounted_for(rows) -> None:
    inputs = {"ids", "image_mask", "positions"}
    for mode in ("qat", "noqat"):
        for case in ("decode", "imagemask", "dspark", "replay"):
            names = load_file(GOLDEN / f"trace_{case}.safetensors")
            expected = {n.removeprefix(f"{mode}.") for n in names if n.startswith(f"{mode}.")}
            assert {r.stage for r in rows if r.case == f"{case} {mode}"} == expected
        names = load_file(GOLDEN / f"trace_prefill_{mode}.safetensors").keys() - inputs
        assert {r.stage for r in rows if r.case == f"prefill {mode}"} == names


def test_rows_are_grouped_by_stage_with_the_worst_error(rows) -> None:
    grouped = {(r.case, r.dtype, r.stage): r for r in by_stage(rows)}
    worst = max(
        r.error for r in rows if r.case == "prefill qat" and r.dtype == "float64" and r.stage.endswith("attn.q")
    )
    assert grouped["prefill qat", "float64", "attn.q"].error == worst


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*BASE, "trace_prefill_noqat.safetensors"):
        shutil.copy(GOLDEN / name, tmp_path / name)
    return tmp_path


def edit(file: Path, name: str, change) -> None:
    tensors = load_file(file)
    tensors[name] = change(tensors[name].clone())
    save_file(tensors, file)


def bump(t: torch.Tensor) -> torch.Tensor:
    t.view(-1)[5] += 1
    return t


@pytest.mark.parametrize("name", ["L3.attn.heads", "L4.idx.topk", "L1.engram.rows", "L6.ffn.expert_ids", "logits"])
def test_one_changed_number_is_found_and_placed(folder: Path, name: str) -> None:
    edit(folder / "trace_prefill_noqat.safetensors", name, bump)
    result = CliRunner().invoke(app, ["parity", str(folder), "--json"])
    assert result.exit_code == 1
    bad = [r for r in json.loads(result.stdout) if r["verdict"] == "FAIL"]
    assert {r["stage"] for r in bad} == {name}
    assert all(r["first"].startswith("[") for r in bad)


def test_a_changed_weight_fails_in_both_types(folder: Path) -> None:
    edit(folder / "model.safetensors", "layers.5.attn_norm.weight", lambda t: 2 * t)
    failed = [r for r in parity(folder) if r.verdict == "FAIL"]
    assert {r.dtype for r in failed} == {"float64", "float32"}
    assert not any(r.stage.startswith(("L0", "L1", "L2", "L3", "L4")) for r in failed)


def test_a_narrow_margin_excuses_float32_only_where_float64_agrees(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    meta["prompt_margin_ratio"] = 0.5
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    reference = folder / "trace_prefill_noqat.safetensors"
    edit(reference, "final.collapsed", bump)
    assert {r.verdict for r in parity(folder) if r.stage == "final.collapsed"} == {"FAIL"}


def test_a_folder_without_traces_is_refused(folder: Path) -> None:
    (folder / "trace_prefill_noqat.safetensors").unlink()
    with pytest.raises(ParityError, match="no trace_"):
        parity(folder)


def test_index_lists_may_be_as_narrow_as_the_entries_there_are(folder: Path) -> None:
    """The first 5 tokens see at most 2 entries of ratio 2."""
    full = load_file(GOLDEN / "trace_prefill_noqat.safetensors")
    ids, topk = full["ids"][:5], full["L2.idx.topk"][:5, :2]
    save_file({"ids": ids.clone(), "L2.idx.topk": topk.clone()}, folder / "trace_prefill_noqat.safetensors")
    assert {r.verdict for r in parity(folder)} == {"ok"}
    edit(folder / "trace_prefill_noqat.safetensors", "L2.idx.topk", lambda t: t.clamp(min=0))
    assert {r.verdict for r in parity(folder)} == {"FAIL"}


def test_drafts_are_compared_wherever_the_reference_has_one(folder: Path) -> None:
    (folder / "trace_prefill_noqat.safetensors").unlink()
    full = load_file(GOLDEN / "trace_dspark.safetensors")
    some = {n: v for n, v in full.items() if n.startswith(("noqat.p1.", "noqat.p77.")) and "anchor" not in n}
    save_file(some | {"ids": full["ids"]}, folder / "trace_dspark.safetensors")
    rows = parity(folder)
    assert {r.verdict for r in rows if r.dtype == "float64"} == {"ok"}
    assert {r.case for r in rows} == {"dspark noqat"}
    assert {r.stage for r in rows} == {n.removeprefix("noqat.") for n in some}


def test_a_decode_without_continuation(folder: Path) -> None:
    full = load_file(GOLDEN / "trace_decode.safetensors")
    part = {"ids": full["ids"][:4], "noqat.logits": full["noqat.logits"][:4]}
    part |= {"noqat.greedy_ids": full["noqat.greedy_ids"][:0], "noqat.greedy_logits": full["noqat.logits"][3:4]}
    save_file({n: v.clone() for n, v in part.items()}, folder / "trace_decode.safetensors")
    rows = [r for r in parity(folder) if r.case.startswith("decode")]
    assert {(r.case, r.verdict) for r in rows} == {("decode noqat", "ok")}
    assert len(rows) == 6


@pytest.mark.parametrize("meta", [None, {}, {"prompt_margin_ratio": None, "greedy_qat": 3, "thresholds": []}])
def test_margins_may_be_missing(folder: Path, meta: dict | None) -> None:
    (folder / "meta.json").unlink()
    if meta is not None:
        (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    assert {r.verdict for r in parity(folder)} == {"ok"}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t: t.pop("ids"), "ids are missing"),
        (lambda t: t.update(ids=t["ids"][None]), "ids are missing, or not the token ids"),
        (lambda t: t.update(ids=t["ids"][:0].clone()), "ids are missing, or not the token ids"),
        (lambda t: t.update(ids=t["ids"] + 256), r"token ids \d+..\d+, allowed are 0..255"),
        (lambda t: t.update(image_mask=torch.zeros(3)), r"image_mask \[3\], expected one value"),
        (lambda t: t.update({"p99.logits": t["logits"].clone()}), "a draft at position 99 of a prompt of 48 tokens"),
    ],
)
def test_a_trace_of_another_form_is_refused(folder: Path, damage, said: str) -> None:
    file = folder / "trace_prefill_noqat.safetensors"
    tensors = load_file(file)
    damage(tensors)
    save_file(tensors, file)
    with pytest.raises(ParityError, match=f"trace_prefill_noqat.safetensors: {said}"):
        parity(folder)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("trace_prefill_noqat.safetensors", b"\x80\x04.", "not a whole safetensors file"),
        ("meta.json", b"{", "not JSON"),
        ("meta.json", b"[]", "a JSON object is expected"),
    ],
)
def test_a_broken_file_is_named(folder: Path, name: str, content: bytes, said: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ParityError, match=f"{name}: {said}"):
        parity(folder)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t: t.pop("next_ids"), "next_ids are missing"),
        (lambda t: t.update({"noqat.enc.H80.T80.logits": t["ids"]}), "enc.H80.T80.logits: a prompt needs more tokens"),
        (
            lambda t: t.update({"noqat.dec.early.T44.logits": t["ids"]}),
            "dec.early.T44.logits: not the name of a replay",
        ),
    ],
)
def test_a_replay_that_is_not_known_is_refused(folder: Path, damage, said: str) -> None:
    tensors = load_file(GOLDEN / "trace_replay.safetensors")
    damage(tensors)
    save_file({n: v.clone() for n, v in tensors.items()}, folder / "trace_replay.safetensors")
    with pytest.raises(ParityError, match=said):
        parity(folder)


def test_a_folder_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ParityError, match="no such folder"):
        parity(folder / "nowhere")


def test_differences() -> None:
    inf = torch.inf
    assert difference(torch.tensor([-inf, 1.0]), torch.tensor([-inf, 1.0]), 1e-6) == (0.0, "")
    assert difference(torch.tensor([0.0, 1.0]), torch.tensor([-inf, 1.0]), 1e-6) == (inf, "[0]")
    assert difference(torch.tensor([torch.nan]), torch.tensor([1.0]), 1e-6)[1] == "[0]"
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3], dtype=torch.int32), 1e-6) == (1.0, "[1]")
    assert difference(torch.zeros(2), torch.zeros(3), 1e-6)[0] == inf
    assert difference(torch.tensor([1000.1]), torch.tensor([1000.0]), 1e-3)[1] == ""


def test_one_case_alone_and_what_ran_in_it() -> None:
    found = CliRunner().invoke(app, ["parity", str(GOLDEN), "--case", "imagemask noqat"])
    assert found.exit_code == 0 and "prefill" not in found.output
    assert (
        "ran: engram_gate 4 plain; index_select 6 plain; seam 32 plain; sparse_attention 16 plain" in found.output
    )  # both precisions
    with pytest.raises(ParityError, match="can be compared and is a case of 'nothing'"):
        parity(GOLDEN, only="nothing")


@pytest.mark.parametrize(
    ("option", "said"), [("--versions=fast", "allowed are auto, plain"), ("--device=x", "cpu, or")]
)
def test_options_out_of_range(option: str, said: str) -> None:
    found = CliRunner().invoke(app, ["parity", str(GOLDEN), option])
    assert found.exit_code == 2 and said in " ".join(found.output.split())
