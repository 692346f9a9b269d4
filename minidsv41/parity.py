"""Compare the model, stage by stage, with reference traces (layout: tests/golden/README.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from minidsv41.cache import Cache
from minidsv41.checkpoint import load
from minidsv41.model import Model, SequenceKeys
from minidsv41.ops import Batch
from minidsv41.serve.generate import step

TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-4}
MODES = ("qat", "noqat")
Verdict = Literal["ok", "FAIL", "flip", "not compared"]


@dataclass
class Row:
    """One stage of one case: error is the largest absolute difference over max(1, largest reference)."""

    case: str
    dtype: str
    stage: str
    verdict: Verdict
    error: float | None = None
    first: str = ""


@dataclass(frozen=True)
class Case:
    """Reference tensors by stage, how to compute ours, and margin ratios: of the case, and of draft positions.

    A ratio below 1 says that some rounding or selection decides so narrowly that float32 may decide otherwise.
    """

    name: str
    mode: str
    reference: dict[str, Tensor]
    compute: Callable[[Model, dict[str, Tensor]], dict[str, Tensor]]
    margin: float = 1.0
    positions: dict[str, float] = field(default_factory=dict)

    def may_flip(self, stage: str) -> bool:
        position = stage.partition(".")[0].removeprefix("p")
        return min(self.margin, self.positions.get(position, 1.0)) < 1


class ParityError(ValueError):
    """The folder does not have the expected layout."""


def difference(ours: Tensor, reference: Tensor, tolerance: float) -> tuple[float, str]:
    """Largest scaled error, and where it is first beyond tolerance ("" if nowhere). Integers must be equal."""
    if ours.shape != reference.shape:
        return float("inf"), f"shape {tuple(ours.shape)}, reference {tuple(reference.shape)}"
    if not reference.is_floating_point():
        wrong = ours.to(torch.int64) != reference.to(torch.int64)
        return float(wrong.any()), place(wrong)
    a, b = ours.to(torch.float64), reference.to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())  # covers -inf
    scale = max(1.0, b[b.isfinite()].abs().max().item() if b.isfinite().any() else 1.0)
    error = torch.where(same, 0.0, (a - b).abs() / scale).nan_to_num(nan=float("inf"), posinf=float("inf"))
    return error.max().item() if error.numel() else 0.0, place(error > tolerance)


def place(wrong: Tensor) -> str:
    hit = wrong.nonzero()
    return str(hit[0].tolist()) if len(hit) else ""


def as_sets(name: str, value: Tensor) -> Tensor:
    """Index lists are compared as sets."""
    return value.sort(-1).values if "topk" in name else value


def run_trace(model: Model, reference: dict[str, Tensor]) -> dict[str, Tensor]:
    mask = reference.get("image_mask")
    return model.trace(reference["ids"].long(), image_mask=None if mask is None else mask.bool())


def run_decode(model: Model, reference: dict[str, Tensor]) -> dict[str, Tensor]:
    """One token per step into an empty cache, then the reference's greedy tokens."""
    cache = Cache(model.config, dtype=model.dtype)
    state = cache.new()
    watched = [name for name in reference if name.startswith("owner_topk_L")]
    chosen: dict[str, list[Tensor]] = {name: [] for name in watched}

    def record(name: str, value) -> None:
        layer, _, stage = name.partition(".")
        if stage == "idx.topk" and f"owner_topk_{layer}" in chosen:
            chosen[f"owner_topk_{layer}"].append(value)

    def feed(ids: Tensor, record=None) -> Tensor:
        return torch.cat([model.logits(step(model, cache, state, t, record=record).hidden) for t in ids.split(1)])

    out = {"logits": feed(reference["ids"].long(), record)}
    out |= {name: torch.cat(rows) for name, rows in chosen.items()}
    if "greedy_ids" in reference:
        after = feed(reference["greedy_ids"].long())
        out["greedy_logits"] = torch.cat([out["logits"][-1:], after])
        out["greedy_ids"] = out["greedy_logits"][:-1].argmax(-1)
    return out


def run_dspark(model: Model, reference: dict[str, Tensor]) -> dict[str, Tensor]:
    """Features and rings of the whole prompt, then the draft at every listed position."""
    ids = reference["ids"].long()
    batch = Batch.equal(ids[None])
    keys = SequenceKeys(model.config, batch)
    out: dict[str, Tensor] = {}

    def keep(prefix: str):
        return lambda name, value: out.__setitem__(prefix + name, value() if callable(value) else value)

    run = model(batch, keys)
    logits, out["main_hidden"] = model.logits(run.hidden), run.features
    model.mtp.remember(run.features, batch, keys, keep(""))
    for p in reference["positions"].tolist():
        anchor = reference[f"p{p}.anchor"].long()
        notes = (lambda k, p=p: keep(f"p{p}.trace.D{k}.")) if any(f"p{p}.trace." in n for n in reference) else None
        extra = {"note": notes} if notes else {}
        draft = model.mtp.draft(
            anchor, torch.zeros_like(anchor), torch.full_like(anchor, p), model.embed, model.head, keys, **extra
        )
        parts = {
            "anchor": logits[p].argmax(-1, keepdim=True),
            "tokens": draft.tokens[0],
            "base_logits": draft.base_logits[0],
            "logits": draft.logits[0],
            "confidence_logit": draft.confidence[0],
            "confidence": draft.confidence[0].sigmoid(),
            "hidden": draft.hidden[0],
        }
        out |= {f"p{p}.{name}": value for name, value in parts.items()}
    return out


def cases(folder: Path) -> Iterator[Case]:
    """All comparable traces of a folder."""
    meta_file = folder / "meta.json"
    meta = json.loads(meta_file.read_text(encoding="utf-8")) if meta_file.exists() else {}
    thresholds = meta.get("thresholds", {})

    def ratio(margins: dict) -> float:
        return min((m / thresholds[kind] for kind, m in margins.items() if kind in thresholds), default=1.0)

    prompt = meta.get("prompt_margin_ratio", 1.0)
    for mode in MODES:
        if (file := folder / f"trace_prefill_{mode}.safetensors").exists():
            margin = min(prompt, ratio(meta.get(f"prefill_{mode}_margins", {})))
            yield Case(f"prefill {mode}", mode, load_file(file), run_trace, margin)
        if (file := folder / "trace_decode.safetensors").exists():
            margin = min(prompt, ratio(meta.get(f"greedy_{mode}", {}).get("margins", {})))
            yield Case(f"decode {mode}", mode, part(load_file(file), mode), run_decode, margin)
        if (file := folder / "trace_imagemask.safetensors").exists():
            margin = meta.get("imagemask_margin_ratio", 1.0)
            yield Case(f"imagemask {mode}", mode, part(load_file(file), mode), run_trace, margin)
        if (file := folder / "trace_dspark.safetensors").exists():
            positions = meta.get("dspark_position_margin_ratio", {})
            yield Case(f"dspark {mode}", mode, part(load_file(file), mode), run_dspark, prompt, positions)


def part(tensors: dict[str, Tensor], mode: str) -> dict[str, Tensor]:
    """The tensors of one mode, prefix removed, and those that all modes share."""
    shared = {n: v for n, v in tensors.items() if not n.startswith(MODES)}
    return shared | {n.removeprefix(f"{mode}."): v for n, v in tensors.items() if n.startswith(f"{mode}.")}


INPUTS = {"ids", "image_mask", "positions"}


def compare(case: Case, model: Model, dtype: torch.dtype) -> list[Row]:
    """One row for each reference tensor of a case."""
    with torch.no_grad():
        ours = case.compute(model, case.reference)
    rows = []
    for name, reference in case.reference.items():
        row = Row(case.name, str(dtype).removeprefix("torch."), name, "ok")
        if name in INPUTS:
            continue
        if name.startswith("stale_"):
            row.verdict, row.first = "not compared", "a defect of the official reference, kept for study"
        elif name not in ours:
            row.verdict, row.first = "FAIL", "a stage that the model does not have"
        else:
            row.error, row.first = difference(as_sets(name, ours[name]), as_sets(name, reference), TOLERANCE[dtype])
            row.verdict = "FAIL" if row.first else "ok"
        rows.append(row)
    return rows


def parity(folder: Path | str, *, progress: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Compare every trace of `folder` in float64 and float32.

    A float32 failure in a case whose margin ratio is below 1 is a "flip" as long as float64 agrees
    throughout that case. Raises ParityError where the folder holds no traces.
    """
    folder = Path(folder)
    rows, broken = [], set()
    for dtype in TOLERANCE:
        models: dict[str, Model] = {}
        for case in cases(folder):
            progress(f"{case.name}, {str(dtype).removeprefix('torch.')}")
            if case.mode not in models:
                models[case.mode] = load(folder, dtype=dtype, qat=case.mode == "qat")
            found = compare(case, models[case.mode], dtype)
            if dtype == torch.float64 and any(r.verdict == "FAIL" for r in found):
                broken.add(case.name)
            if dtype == torch.float32 and case.name not in broken:
                for row in found:
                    if row.verdict == "FAIL" and case.may_flip(row.stage):
                        row.verdict = "flip"
            rows += found
    if not rows:
        raise ParityError(f"{folder}: no trace_*.safetensors that can be compared")
    if (folder / "trace_replay.safetensors").exists():
        rows.append(Row("replay", "", "all", "not compared", first="bounded replay is not part of this version"))
    return rows


def by_stage(rows: list[Row]) -> list[Row]:
    """One row for each case, dtype and stage, layers and draft positions taken together."""
    merged: dict[tuple[str, str, str], Row] = {}
    rank = {"FAIL": 0, "flip": 1, "ok": 2, "not compared": 3}
    for row in rows:
        where, stage = split_stage(row.stage)
        key = row.case, row.dtype, stage
        first = f"{where} {row.first}".strip() if row.first else ""
        if key not in merged:
            merged[key] = Row(row.case, row.dtype, stage, row.verdict, row.error, first)
            continue
        kept = merged[key]
        kept.first = kept.first or first
        kept.verdict = min(kept.verdict, row.verdict, key=rank.__getitem__)
        if row.error is not None:
            kept.error = max(kept.error or 0.0, row.error)
    return list(merged.values())


def split_stage(name: str) -> tuple[str, str]:
    """ "L3.attn.q" -> ("L3", "attn.q"); "p23.trace.D0.attn.x" -> ("p23 D0", "attn.x")."""
    where = []
    head, _, rest = name.partition(".")
    while rest and (head[0] in "LpD" and head[1:].isdigit() or head == "trace"):
        if head != "trace":
            where.append(head)
        head, _, rest = rest.partition(".")
    return " ".join(where), f"{head}.{rest}" if rest else head


def to_json(rows: list[Row]) -> str:
    return json.dumps([asdict(r) for r in rows], indent=1)


def show(rows: list[Row], console) -> None:
    """Print one row for each stage, and the verdict."""
    from rich.table import Table

    table = Table("case", "dtype", "stage", "largest error", "verdict", "first beyond tolerance", box=None)
    colour = {"ok": "green", "FAIL": "bold red", "flip": "yellow", "not compared": "dim"}
    for row in by_stage(rows):
        error = "" if row.error is None else f"{row.error:.1e}"
        table.add_row(row.case, row.dtype, row.stage, error, f"[{colour[row.verdict]}]{row.verdict}[/]", row.first)
    console.print(table)
    counts = {v: sum(r.verdict == v for r in rows) for v in colour}
    console.print(", ".join(f"{n} {v}" for v, n in counts.items() if n))
