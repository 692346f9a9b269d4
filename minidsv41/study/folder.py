"""The folder of a study's runs: trained networks, results one file each, and the record made of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from minidsv41.study.base import Sizes
from minidsv41.study.facts import ASKED, KEYS, TOLD, VALUES
from minidsv41.study.variant import Study
from minidsv41.train import machine


@dataclass(frozen=True)
class Folder:
    """Runs of one size: those of another lie beside them."""

    root: Path
    sizes: Sizes

    @property
    def path(self) -> Path:
        return self.root / sha256(json.dumps(asdict(self.sizes)).encode()).hexdigest()[:8]

    def backbone(self, key: str, seed: int) -> Path:
        return self.path / "backbones" / f"{key}-{seed}"

    def draft(self, variant: str, seed: int) -> Path:
        return self.path / "drafts" / f"{variant}-{seed}"

    def result(self, study: str, variant: str, seed: int) -> Path:
        return self.path / "results" / f"{study}.{variant}.{seed}.json"

    def write(self, study: str, result: dict) -> None:
        path = self.result(study, result["variant"], result["seed"])
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(result) + "\n", encoding="utf-8")
        new.replace(path)

    def results(self, study: Study, seeds: range) -> list[dict]:
        """Of every seed that all variants have finished, variant by variant."""
        paths = {(v.name, seed): self.result(study.name, v.name, seed) for v in study.variants for seed in seeds}
        whole = [seed for seed in seeds if all(paths[v.name, seed].exists() for v in study.variants)]
        wanted = (paths[v.name, seed] for v in study.variants for seed in whole)
        return [json.loads(path.read_text(encoding="utf-8")) for path in wanted]


def record(study: Study, sizes: Sizes, results: list[dict], into: Path) -> Path:
    """Write study_NAME.json."""
    where = machine.describe(threads=1, device=sizes.device)
    task = {"keys": KEYS, "values": VALUES, "told": TOLD, "asked": ASKED}
    says = {"question": study.question, "variants": {v.name: v.says for v in study.variants}}
    settings = asdict(sizes) | {"facts": task} | says
    content = {"kind": f"study_{study.name}", "settings": settings, "machine": where, "results": results}
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"study_{study.name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path
