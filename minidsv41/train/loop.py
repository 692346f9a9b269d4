"""Training from text to a stored model: the backbone, then DSpark on the frozen backbone."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256

import torch
from tqdm import tqdm

from minidsv41.config import ModelConfig
from minidsv41.model import Model
from minidsv41.tokens import load_tokenizer, token_map
from minidsv41.train.data import Batches, Corpus
from minidsv41.train.evaluate import validate
from minidsv41.train.objective import Backbone, Draft
from minidsv41.train.recall import Lookups, Mixed
from minidsv41.train.runs import Run, RunError, State
from minidsv41.train.stage import Stage

POSITIVE = {"threads", "length", "batch", "steps", "lr", "draft_lr", "save_every", "validate_every"}  # settings
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ON_GPU = ("device=cuda", "dtype=bfloat16", "threads=1")  # settings of a run there, unless others are given
SNAPSHOTS = (0, 10, 50)  # per cent of the backbone's steps at which the indexer is kept


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. Every random choice follows from `seed` and the step. Defaults are those of `toy`."""

    seed: int = 0
    threads: int = 2
    device: str = "cpu"
    dtype: str = "float32"  # in which the model computes; masters, optimiser states, statistics and losses stay float32
    length: int = 256  # tokens of a sequence
    batch: int = 16  # sequences of a step
    steps: int = 220
    lr: float = 4.5e-3
    warmup: float = 0.05  # share of the steps
    round_from: float = 0.8  # share of the steps after which the model holds its weights as they will be stored
    replay: int = 4  # sequences of a batch under decoder replay
    align: int = 2  # sequences of a batch on which the indexer is aligned
    recall: int = 0  # sequences of a batch with things to look up earlier in them, see recall.py
    recall_weight: float = 1.0  # of a target there that can be looked up; their others weigh 0, those of text 1
    dense: float = 0.0  # share of the steps in which every entry is selected
    draft_steps: int = 100
    draft_lr: float = 6e-3
    draft_anchors: int = 256
    save_every: int = 40
    validate_every: int = 55
    validate_batches: int = 1  # batches of each kind of text that a validation on the way looks at

    def changed(self, assignments: list[str]) -> TrainConfig:
        """With fields set by texts such as "lr=0.01". Raises RunError with the text and what is allowed."""
        kinds = {f.name: {"int": int, "float": float, "str": str}[f.type] for f in fields(self)}
        values = {}
        for text in assignments:
            name, equals, value = text.partition("=")
            if name not in kinds:
                raise RunError(f"{text}: no setting of that name; allowed are {', '.join(kinds)}")
            if not equals:
                raise RunError(f"{text}: give it as {name}=VALUE")
            try:
                values[name] = kinds[name](value)
            except ValueError:
                raise RunError(f"{text}: {name} is of type {kinds[name].__name__}") from None
            if name == "dtype" and value not in DTYPES:
                raise RunError(f"{text}: allowed are {', '.join(DTYPES)}")
            if kinds[name] is not str and not (
                0 < values[name] < math.inf or values[name] == 0 and name not in POSITIVE
            ):
                raise RunError(f"{text}: {'more than 0' if name in POSITIVE else '0 or more'}")
        return replace(self, **values)


def fresh(preset: str, seed: int) -> Model:
    """A freshly initialised model for the shipped tokenizer."""
    shape = ModelConfig.preset(preset)
    return Model(shape, token_map(load_tokenizer())).initialise(torch.Generator().manual_seed(seed))


def all_selected(shape: ModelConfig, length: int) -> ModelConfig:
    """The same shape with a selection, and a pool, of every entry of `length` tokens."""
    return replace(shape, index_topk=length, candidate_topk_blocks=length // shape.candidate_block_size + 1)


@dataclass
class Trainer:
    """Trains `model`, freshly initialised, in the folder of `run`."""

    config: TrainConfig
    model: Model
    corpus: Corpus
    run: Run
    curve: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    saved: str = "there is no checkpoint yet"

    def settings(self) -> dict:
        """What must be the same when a run is resumed."""
        shape = {f"model.{name}": value for name, value in asdict(self.model.config).items()}
        tokens = sha256(self.corpus.train.tokens.tobytes()).hexdigest()
        return asdict(self.config) | shape | {"tokens": tokens, "torch": torch.__version__}

    def stage(self, name: str) -> Stage:
        c = self.config
        if name == "backbone":
            shares = {"replay": -(-c.replay // c.threads), "align": -(-c.align // c.threads)}
            objective = Backbone(self.model, **shares, seed=c.seed)
            return Stage(name, objective, lr=c.lr, warmup=c.warmup, threads=c.threads)
        objective = Draft(self.model, anchors=-(-c.draft_anchors // c.threads), seed=c.seed + 1)
        return Stage(name, objective, lr=c.draft_lr, warmup=c.warmup, threads=c.threads)

    def train(self, *, resume: bool = False) -> None:
        """Run what is left of both stages; the model then holds what will be stored. Raises RunError."""
        torch.set_num_threads(self.config.threads)
        self.model.to(self.config.device).cast(DTYPES[self.config.dtype])
        state = self.run.begin(self.settings(), resume=resume)
        plan = {"backbone": self.config.steps, "draft": self.config.draft_steps}
        for name, steps in plan.items():
            if state and state.facts["stage"] != name:
                continue
            stage = self.stage(name)
            first = self.restore(state, stage) if state else 0
            state = None
            try:
                self.run_stage(stage, first, steps)
            except RunError as error:
                raise RunError(f"{error}; {self.saved}") from error.__cause__

    def run_stage(self, stage: Stage, first: int, steps: int) -> None:
        c, backbone = self.config, stage.name == "backbone"
        seed = c.seed if backbone else c.seed + 1
        tokens = self.corpus.train.tokens
        text = Batches(tokens=tokens, batch_size=c.batch, length=c.length, seed=seed)
        batches = Mixed(
            text,
            Lookups(tokens, length=c.length, seed=seed),
            share=c.recall,
            weight=c.recall_weight,
            steps=c.steps if backbone else 0,
        )
        started, shape = time.perf_counter() - self.seconds, self.model.config
        bar = tqdm(range(first, steps), initial=first, total=steps, desc=stage.name, disable=None)
        for step in bar:
            if backbone:
                self.snapshot(step, steps)
            rounding = step >= min(c.round_from * steps, steps - 1)
            tokens, weight = batches(step, c.device)
            everything = backbone and step < c.dense * steps
            self.model.config = all_selected(shape, tokens.shape[1]) if everything else shape
            terms = stage.update(tokens, step=step, progress=step / steps, rounding=rounding, weight=weight)
            done, self.seconds = step + 1, time.perf_counter() - started
            self.note(stage, done, terms)
            bar.set_postfix(terms)
            if backbone and (done % c.validate_every == 0 or done == steps):
                self.look(stage, done)
            if done % c.save_every == 0 or done == steps:
                self.save(stage, done)
        self.model.config = shape

    def note(self, stage: Stage, done: int, values: dict[str, float]) -> None:
        self.curve.append({"stage": stage.name, "step": done, "seconds": round(self.seconds, 1), **values})

    def look(self, stage: Stage, done: int) -> None:
        """An estimate of the validation loss on the way."""
        c, logits = self.config, stage.objective.logits
        bits = validate(
            logits, self.corpus, length=c.length, batch=c.batch, batches=c.validate_batches, device=c.device
        )
        self.note(stage, done, {f"bits_per_byte.{kind}": round(value, 4) for kind, value in bits.items()})
        tqdm.write(f"{stage.name} {done}: about {bits['total']:.3f} bits per byte of validation text")

    def snapshot(self, step: int, steps: int) -> None:
        for percent in SNAPSHOTS:
            if step == steps * percent // 100:
                tensors = {n: p.detach().bfloat16() for n, p in self.model.named_parameters() if ".indexer." in n}
                self.run.save(State(tensors, {"step": step}), f"indexer-{percent:03}.safetensors")

    def save(self, stage: Stage, done: int) -> None:
        tensors = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        tensors |= stage.optimizer.state()
        if bad := [name for name, t in tensors.items() if not t.isfinite().all()]:
            raise RunError(f"{stage.name}, step {done}: {bad[0]} is not finite")
        self.run.save(State(tensors, {"stage": stage.name, "step": done, "seconds": self.seconds, "curve": self.curve}))
        self.saved = f"the last good checkpoint is {self.run.state_file} ({stage.name}, {done} steps done)"

    def restore(self, state: State, stage: Stage) -> int:
        """Take over a saved state; returns the number of steps done."""
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(state.tensors[f"model.{name}"])
        stage.optimizer.load(state.tensors)
        self.seconds, self.curve, done = (state.facts[key] for key in ("seconds", "curve", "step"))
        self.saved = f"the last good checkpoint is {self.run.state_file} ({stage.name}, {done} steps done)"
        return done
