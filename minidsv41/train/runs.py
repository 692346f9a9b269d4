"""The folder of one training run: what it was asked to do, and its latest state, written all or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor


class RunError(RuntimeError):
    """A run that cannot start or go on: what, where, and what to do."""


@dataclass(frozen=True)
class State:
    """Tensors by name, and what else the next step depends on (JSON)."""

    tensors: dict[str, Tensor]
    facts: dict


@dataclass(frozen=True)
class Run:
    """`settings.json` says what the run is; `state.safetensors` is its latest checkpoint."""

    folder: Path

    @property
    def state_file(self) -> Path:
        return self.folder / "state.safetensors"

    @property
    def settings_file(self) -> Path:
        return self.folder / "settings.json"

    def begin(self, settings: dict, *, resume: bool) -> State | None:
        """Claim the folder for these settings; the state to go on from, None at the start.

        Raises RunError if the folder holds a run and `resume` is False, if its settings differ, or if its files
        cannot be read.
        """
        if not self.settings_file.exists():
            if self.state_file.exists():
                raise RunError(f"{self.folder}: holds {self.state_file.name} but no {self.settings_file.name}")
            if resume:
                raise RunError(f"{self.folder}: holds no run to resume; start one without --resume")
            self.folder.mkdir(parents=True, exist_ok=True)
            self.write(self.settings_file, (json.dumps(settings, indent=2) + "\n").encode())
            return None
        if not resume:
            raise RunError(f"{self.folder}: holds a run already; resume it, or choose another folder")
        self.compare(settings)
        return self.load() if self.state_file.exists() else None

    def compare(self, settings: dict) -> None:
        try:
            stored = json.loads(self.settings_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{self.settings_file}: not the settings of a run ({error})") from None
        wanted = json.loads(json.dumps(settings))
        for name in sorted(stored.keys() | wanted.keys()):
            if stored.get(name) != wanted.get(name):
                raise RunError(
                    f"{self.folder}: this run was started with {name} = {stored.get(name)!r}, not "
                    f"{wanted.get(name)!r}; a run goes on only with the settings it began with"
                )

    def load(self) -> State:
        try:
            with safe_open(self.state_file, "pt") as file:
                facts = json.loads((file.metadata() or {})["facts"])
                names = list(file.keys())
                return State({name: file.get_tensor(name) for name in names}, facts)
        except (SafetensorError, KeyError, ValueError) as error:
            raise RunError(f"{self.state_file}: not a checkpoint of a training run ({error})") from None

    def save(self, state: State, name: str | None = None) -> None:
        """Replace the checkpoint, or the file `name`. Whatever happens on the way, the old or the new one is there."""
        tensors = {key: t.cpu().contiguous() for key, t in state.tensors.items()}
        path = self.folder / name if name else self.state_file
        self.write(path, save(tensors, metadata={"facts": json.dumps(state.facts)}))

    def write(self, path: Path, content: bytes) -> None:
        """Write `path` in one step: a new file beside it, brought to disk, then renamed."""
        new = path.with_name(path.name + ".new")
        try:
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            kept = f"the checkpoint in {path.name} is the one before" if path.exists() else "nothing was kept"
            size = f"{len(content) / 1e6:.1f} MB"
            raise RunError(
                f"{path}: cannot write {size} ({error.strerror}); {kept}. Free some space, then resume"
            ) from error
