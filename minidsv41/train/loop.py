"""Training from text to a stored model: the backbone, then DSpark on the frozen backbone."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from hashlib import sha256

import torch
from torch import Tensor
from tqdm import tqdm

from minidsv41.checkpoint.layout import DTYPES, storage
from minidsv41.config import ModelConfig
from minidsv41.model import Model
from minidsv41.train.data import Batches, Corpus
from minidsv41.train.evaluate import validate
from minidsv41.train.objective import Backbone, Draft, Objective
from minidsv41.train.optim import Optimizer, lr_factor
from minidsv41.train.runs import Run, RunError, State

SNAPSHOTS = (0, 10, 50)  # per cent of the backbone's steps at which the indexer is kept


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. Every random choice follows from `seed` and the step."""

    preset: str = "toy"
    seed: int = 0
    threads: int = 2
    length: int = 256  # tokens of a sequence
    batch: int = 16  # sequences of a step
    steps: int = 200
    lr: float = 6e-3
    warmup: float = 0.05  # share of the steps
    round_from: float = 0.8  # share of the steps after which the model holds its weights as they will be stored
    replay: int = 4  # sequences of a batch under decoder replay
    align: int = 2  # sequences of a batch on which the indexer is aligned
    draft_steps: int = 60
    draft_lr: float = 6e-3
    draft_anchors: int = 256
    save_every: int = 20
    validate_every: int = 50
    validate_batches: int = 1  # batches of each kind of text that a validation on the way looks at


def as_stored(name: str, w: Tensor) -> Tensor:
    """The weight `w` of parameter `name` as a checkpoint would give it back."""
    kind = storage(name)
    return w.to(DTYPES[kind]).to(w.dtype) if isinstance(kind, str) else kind.decode(*kind.encode(w), w.dtype)


@dataclass
class Stage:
    """One of the two stages: who is trained, how long, how fast."""

    name: str
    objective: Objective
    steps: int
    lr: float
    seed: int

    def __post_init__(self) -> None:
        self.optimizer = Optimizer(self.objective.parameters(), stacks=self.objective.stacks)


@dataclass
class Trainer:
    """A training run in its folder. `train` returns the model as it will be stored."""

    config: TrainConfig
    corpus: Corpus
    token_map: list[int]
    run: Run
    curve: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    saved: str = "no checkpoint was written yet"

    def __post_init__(self) -> None:
        torch.set_num_threads(self.config.threads)
        shape = ModelConfig.preset(self.config.preset)
        self.model = Model(shape, self.token_map).initialise(torch.Generator().manual_seed(self.config.seed))

    def settings(self) -> dict:
        """What must be the same when a run is resumed."""
        shape = {f"model.{name}": value for name, value in asdict(self.model.config).items()}
        tokens = sha256(self.corpus.train.tokens.tobytes()).hexdigest()
        return asdict(self.config) | shape | {"tokens": tokens, "torch": torch.__version__}

    def stage(self, name: str) -> Stage:
        c = self.config
        if name == "backbone":
            objective = Backbone(self.model, replay=c.replay, align=c.align, seed=c.seed)
            return Stage(name, objective, c.steps, c.lr, c.seed)
        objective = Draft(self.model, anchors=c.draft_anchors, seed=c.seed + 1)
        return Stage(name, objective, c.draft_steps, c.draft_lr, c.seed + 1)

    def train(self, *, resume: bool = False) -> Model:
        """Run what is left of both stages. Raises RunError."""
        state = self.run.begin(self.settings(), resume=resume)
        names = ["backbone", "draft"]
        for name in names[names.index(state.facts["stage"]) if state else 0 :]:
            stage = self.stage(name)
            first = self.restore(state, stage) if state else 0
            state = None
            self.run_stage(stage, first)
        return self.model

    def run_stage(self, stage: Stage, first: int) -> None:
        c = self.config
        batches = Batches(tokens=self.corpus.train.tokens, batch_size=c.batch, length=c.length, seed=stage.seed)
        started = time.perf_counter() - self.seconds
        bar = tqdm(range(first, stage.steps), initial=first, total=stage.steps, desc=stage.name, disable=None)
        for step in bar:
            self.snapshot(stage, step)
            terms = self.update(stage, batches(step), step)
            self.seconds = time.perf_counter() - started
            self.curve.append({"stage": stage.name, "step": step, "seconds": round(self.seconds, 1), **terms})
            bar.set_postfix(terms)
            done = step + 1
            if stage.name == "backbone" and (done % c.validate_every == 0 or done == stage.steps):
                self.validate(stage, done)
            if done % c.save_every == 0 or done == stage.steps:
                self.save(stage, done)

    def update(self, stage: Stage, tokens: Tensor, step: int) -> dict[str, float]:
        """One step. Raises RunError, before any weight changes, if the loss is not a number."""
        terms = stage.objective.loss(tokens, step=step)
        values = {name: round(term.item(), 4) for name, term in terms.items()}
        if not math.isfinite(values["total"]):
            raise RunError(f"{stage.name}, step {step}: the loss is not a number ({values}); {self.saved}")
        terms["total"].backward()
        progress = step / stage.steps
        rounded = as_stored if progress >= self.config.round_from else None
        stage.optimizer.step(stage.lr * lr_factor(progress, warmup=self.config.warmup), rounded=rounded)
        stage.objective.settle()
        return values

    def validate(self, stage: Stage, done: int) -> None:
        c, logits = self.config, stage.objective.logits
        found = validate(logits, self.corpus, length=c.length, batch=c.batch, batches=c.validate_batches)
        bits = {kind: round(value, 4) for kind, value in found.items()}
        self.curve.append({"stage": stage.name, "step": done, "seconds": round(self.seconds, 1), "bits_per_byte": bits})
        tqdm.write(f"{stage.name} {done}/{stage.steps}: validation {found['total']:.3f} bits per byte")

    def snapshot(self, stage: Stage, step: int) -> None:
        for percent in SNAPSHOTS:
            if stage.name == "backbone" and step == stage.steps * percent // 100:
                tensors = {n: p.detach() for n, p in self.model.named_parameters() if ".indexer." in n}
                self.run.save(State(tensors, {"step": step, "percent": percent}), f"indexer-{percent:03}.safetensors")

    def save(self, stage: Stage, done: int) -> None:
        tensors = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        tensors |= stage.optimizer.state()
        if bad := [name for name, t in tensors.items() if not t.isfinite().all()]:
            raise RunError(f"{stage.name}, step {done}: {bad[0]} is not finite; {self.saved}")
        self.run.save(State(tensors, {"stage": stage.name, "step": done, "seconds": self.seconds, "curve": self.curve}))
        self.saved = f"the last good checkpoint is {self.run.state_file} ({stage.name}, step {done})"

    def restore(self, state: State, stage: Stage) -> int:
        """Take over a saved state; returns the step to go on with."""
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(state.tensors[f"model.{name}"])
        stage.optimizer.load(state.tensors)
        self.seconds, self.curve = state.facts["seconds"], state.facts["curve"]
        return state.facts["step"]
