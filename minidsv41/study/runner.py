"""Train and measure: every run that a study lacks, each written as it ends, and the records made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from minidsv41.model import Model
from minidsv41.study.base import SHAPE
from minidsv41.study.catalogue import STUDIES
from minidsv41.study.exam import Exam, loaded
from minidsv41.study.facts import taught
from minidsv41.study.folder import Folder, record
from minidsv41.study.processes import Piece, side_by_side
from minidsv41.study.variant import Study, StudyError, Training, reshaped
from minidsv41.tokens import load_tokenizer, token_map
from minidsv41.train.data import corpus
from minidsv41.train.loop import Trainer
from minidsv41.train.runs import Run


def run_of(training: Training, seed: int, folder: Folder) -> Run:
    return Run(folder.backbone(training.key(SHAPE, folder.sizes.settings(0)), seed))


def train(training: Training, seed: int, folder: Folder) -> None:
    """Train one backbone, unless its folder holds it already."""
    settings = replace(folder.sizes.settings(seed), **training.settings)
    model = Model(training.config(SHAPE), token_map(load_tokenizer()))
    model.initialise(torch.Generator().manual_seed(seed))
    run = run_of(training, seed, folder)
    with taught(), training.network(), training.objective(settings):
        Trainer(settings, model, corpus(), run).train(resume=run.settings_file.exists())


def measure(study: str, name: str, seed: int, folder: Folder) -> None:
    """Ask the network of one variant, and write what it answers."""
    variant = STUDIES[study].variant(name)
    trained = variant.trained
    state = run_of(trained, seed, folder).load()
    weights = {n.removeprefix("model."): w for n, w in state.tensors.items() if n.startswith("model.")}
    with trained.network(), variant.around():
        model = loaded(reshaped(trained.config(SHAPE), variant.read), weights, folder.sizes.device)
        exam = Exam(model, folder.sizes, seed, folder.draft(name, seed))
        measures = exam.quality() | STUDIES[study].measure(exam)
    result = {"variant": name, "seed": seed, "measures": {n: round(v, 6) for n, v in measures.items()}}
    result["parameters"] = sum(w.numel() for n, w in weights.items() if not n.startswith("mtp."))
    folder.write(study, result | {"minutes": round(state.facts["seconds"] / 60, 2)})


@dataclass
class Runner:
    """`studies` from `seeds`; what several studies share is trained once. into: the folder of the records."""

    studies: list[Study]
    seeds: range
    folder: Folder
    into: Path

    def pieces(self) -> list[Piece]:
        """What is to be trained, study by study, each with what is to be measured then."""
        found: dict[Path, Piece] = {}
        for study in self.studies:
            for seed in self.seeds:
                for v in study.variants:
                    if self.folder.result(study.name, v.name, seed).exists():
                        continue
                    what = f"{study.name} {v.name}, seed {seed}"
                    run = run_of(v.trained, seed, self.folder).folder
                    training = found.setdefault(run, Piece(what, train, (v.trained, seed, self.folder)))
                    training.then.append(Piece(what, measure, (study.name, v.name, seed, self.folder)))
        return list(found.values())

    def run(self, processes: int) -> Iterator[str]:
        """A line for each thing done. Raises StudyError, when all else is done, if something failed."""
        pieces, failed = self.pieces(), []
        total = sum(1 + len(p.then) for p in pieces)
        yield from self.records()
        for count, piece in enumerate(side_by_side(pieces, processes), start=1):
            done = "trained" if piece.run is train else "measured"
            if piece.error:
                failed.append(f"{piece.what}: {piece.error!r}")
            yield f"{count}/{total} {'failed' if piece.error else done}: {piece.what}"
            yield from self.records(piece.arguments[0] if piece.run is measure else "")
        if failed:
            raise StudyError(f"{len(failed)} of {total} failed; the first: {failed[0]}")

    def records(self, changed: str | None = None) -> Iterator[str]:
        """Write the records whose results may have changed: of `changed`, or of all."""
        for study in self.studies:
            if changed in (None, study.name) and (results := self.folder.results(study, self.seeds)):
                yield str(record(study, self.folder.sizes, results, self.into))
