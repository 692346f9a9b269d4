"""Run the model with one deliberate fault, and find the first place where it shows."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from minidsv41.cache import Cache
from minidsv41.course import faults
from minidsv41.course.language import Text, say
from minidsv41.model import Model
from minidsv41.ops import Batch
from minidsv41.replaced import replaced

__all__ = ["Difference", "Fault", "Sabotage", "first_difference", "replaced", "sabotage", "trace_by_token"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what kind of slip it is, what it changes, what a user would notice, where it was reported.

    probe: what shows it where a trace of the model does not; its value differs while the fault is in place.
    """

    name: str
    kind: Text
    change: Text
    symptom: Text
    report: str = ""
    apply: Callable[[], AbstractContextManager]
    probe: Callable[[], Any] | None = None

    def __str__(self) -> str:
        return f"{self.name}: {say(self.symptom)}"


class Sabotage:
    """`with sabotage("00.wide_window") as fault: …` and the menu `sabotage.list("00")`."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[Fault]:
        """Put the fault in place while the block runs. Raises KeyError that lists the names."""
        found = {f.name: f for f in self.of(name.partition(".")[0])}
        if name not in found:
            raise KeyError(f"no fault {name!r}; there are {', '.join(found)}")
        with found[name].apply():
            yield found[name]

    def of(self, lesson: str) -> tuple[Fault, ...]:
        """Faults of one lesson. Raises KeyError with the lessons that have some."""
        if lesson not in self.lessons():
            raise KeyError(f"lesson {lesson!r} has no faults; there are {', '.join(self.lessons())}")
        return importlib.import_module(f"{faults.__name__}.f{lesson}").FAULTS

    def lessons(self) -> list[str]:
        return sorted(m.name[1:] for m in pkgutil.iter_modules(faults.__path__) if m.name[0] == "f")

    def list(self, lesson: str) -> None:
        """Print the lesson's faults: name, kind, change, and the public report where there is one."""
        for fault in self.of(lesson):
            source = f" [{fault.report}]" if fault.report else ""
            print(f"{fault.name:<24} {say(fault.kind)}: {say(fault.change)}{source}")


sabotage = Sabotage()


@dataclass(frozen=True)
class Difference:
    """First stage of a trace that differs: its name, the first row (token or entry), how much of that row.

    error: the largest deviation, infinite where only one side has a value; for indices, how many differ.
    """

    stage: str
    row: int
    error: float

    def __str__(self) -> str:
        what = f"off by up to {self.error:.3f}"
        if isinstance(self.error, int):
            what = f"{self.error} of the indices differ"
        elif self.error == float("inf"):
            what = "only one side has a value"
        return f"first difference: {self.stage}, row {self.row}, {what}"


def first_difference(
    reference: Mapping[str, torch.Tensor], trace: Mapping[str, torch.Tensor], *, tolerance: float = 1e-4
) -> Difference | None:
    """The first stage in forward order that differs by more than `tolerance` x its scale; None if none does.

    Stages that `trace` lacks are not compared; one of another shape is different from row 0 on.
    """
    for stage, right in reference.items():
        found = trace.get(stage, right)
        if found.shape != right.shape:
            return Difference(stage, 0, float("inf"))
        if not right.is_floating_point():
            count = (found != right).reshape(len(right), -1).sum(-1)
            if len(wrong := count.nonzero()):
                return Difference(stage, int(wrong[0]), int(count[wrong[0]]))
            continue
        a, b = found.double(), right.double()
        finite = b[b.isfinite()].abs()
        scale = max(1.0, float(finite.max())) if len(finite) else 1.0
        error = torch.where(a == b, 0.0, (a - b).abs().nan_to_num(nan=float("inf"), posinf=float("inf")))
        error = error.reshape(len(b), -1).amax(-1) if b.numel() else error.flatten()
        wrong = (error > tolerance * scale).nonzero()
        if len(wrong):
            return Difference(stage, int(wrong[0]), float(error[wrong[0]]))
    return None


@torch.no_grad()
def trace_by_token(model: Model, ids: torch.Tensor, *, after: int = 0) -> dict[str, torch.Tensor]:
    """`model.trace(ids)` as a server sees it: the first `after` tokens as a prompt, the others one at a time.

    Holds the stages that have one row a token and whose rows do not grow with the context.
    """
    cache = Cache(model.config, dtype=model.dtype)
    state, calls = cache.new(), []
    for part in ([ids[:after]] if after else []) + list(ids[after:].split(1)):
        batch = Batch.ragged([part], [state.length])
        keys, call = cache.keys([state], batch), {}
        model(
            batch,
            keys,
            record=lambda name, value, into=call: into.update({name: value() if callable(value) else value}),
        )
        keys.commit()
        calls.append((len(part), call))
    whole = {}
    for name in calls[0][1]:
        rows = [(n, call.get(name)) for n, call in calls]
        if all(r is not None and len(r) == n and r.shape[1:] == rows[-1][1].shape[1:] for n, r in rows):
            whole[name] = torch.cat([r for _, r in rows])
    return whole
