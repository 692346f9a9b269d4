"""Every tensor of every trace against ours, in two precisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from minidsv41 import ops
from minidsv41.checkpoint import load
from minidsv41.model import Model
from minidsv41.ops.twins import Choice
from minidsv41.parity.names import INPUTS, ParityError
from minidsv41.parity.traces import Case, cases

TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-4}
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


def as_sets(ours: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Index lists [..., k] in one order and width: a list may be as wide as k or as the entries there are."""
    width = max(ours.shape[-1], reference.shape[-1])
    lists = (F.pad(t.long(), (0, width - t.shape[-1]), value=-1).sort(-1).values for t in (ours, reference))
    return tuple(lists)


def compare(case: Case, model: Model, dtype: torch.dtype) -> list[Row]:
    """One row for each reference tensor of a case."""
    case.check(model.config.vocab_size)
    with torch.no_grad():
        ours = case.compute(model, {name: value.to(model.device) for name, value in case.reference.items()})
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
            pair = ours[name].cpu(), reference
            row.error, row.first = difference(*(as_sets(*pair) if "topk" in name else pair), TOLERANCE[dtype])
            row.verdict = "FAIL" if row.first else "ok"
        rows.append(row)
    return rows


def parity(
    folder: Path | str,
    *,
    device: str = "cpu",
    versions: Choice = "auto",
    only: str = "",
    progress: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Compare every trace of `folder` whose name contains `only`, in float64 and float32.

    versions: of the operations, as in `ops.versions`; float64 is plain in any case.
    A float32 failure in a case whose margin ratio is below 1 is a "flip" as long as float64 agrees
    throughout that case. Raises ParityError where the folder holds no traces, or one of another form.
    """
    if not (folder := Path(folder)).is_dir():
        raise ParityError(f"{folder}: no such folder")
    rows, broken = [], set()
    for dtype in TOLERANCE:
        models: dict[str, Model] = {}
        for case in filter(lambda case: only in case.name, cases(folder)):
            progress(f"{case.name}, {str(dtype).removeprefix('torch.')}")
            if case.mode not in models:
                models[case.mode] = load(folder, dtype=dtype, device=device, qat=case.mode == "qat")
            with ops.versions("plain" if dtype == torch.float64 else versions):
                found = compare(case, models[case.mode], dtype)
            if dtype == torch.float64 and any(r.verdict == "FAIL" for r in found):
                broken.add(case.name)
            if dtype == torch.float32 and case.name not in broken:
                for row in found:
                    if row.verdict == "FAIL" and case.may_flip(row.stage):
                        row.verdict = "flip"
            rows += found
    if not rows:
        wanted = f" and is a case of {only!r}" if only else ""
        raise ParityError(f"{folder}: no trace_*.safetensors that can be compared{wanted}")
    return rows
