"""DSpark on a trained backbone: what its drafts gain, and whether its confidence is honest."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import torch
from torch import Tensor

from minidsv41.serve.schedule import Calibration, calibrate, calibration_error
from minidsv41.serve.speculative import Gain, steps
from minidsv41.study.exam import Exam
from minidsv41.study.facts import taught
from minidsv41.train.bench_speculative import SpeculativeConfig, prompts
from minidsv41.train.loop import Trainer
from minidsv41.train.runs import Run


def drafts(exam: Exam) -> dict[str, float]:
    """Train the draft on the frozen backbone, then let it draft behind held-out text, greedily and at temperature 1."""
    z = exam.sizes
    config = replace(z.settings(exam.seed), steps=0, draft_steps=z.draft_steps, save_every=z.draft_steps)
    run = Run(exam.folder)
    with taught():
        Trainer(config, exam.model, exam.corpus, run).train(resume=run.settings_file.exists())
    greedy, sampled = (gains(exam, temperature) for temperature in (0.0, 1.0))
    confidence = torch.stack([g.confidence for g in sampled]).cpu()
    accepted = torch.tensor([len(g.tokens) - 1 for g in sampled])
    fitted = calibrate(confidence[::2], accepted[::2])
    raw = Calibration((1.0,) * confidence.shape[1])
    confidence, accepted = confidence[1::2], accepted[1::2]
    return {
        "tokens_per_step": mean(len(g.tokens) for g in greedy),
        "tokens_per_step_sampled": mean(len(g.tokens) for g in sampled),
        "calibration_error": error(raw(confidence), accepted),
        "calibration_error_fitted": error(fitted(confidence), accepted),
    }


def gains(exam: Exam, temperature: float) -> list[Gain]:
    """The steps that verified a whole block, behind prompts of every kind of text."""
    z, model = exam.sizes, exam.model
    c = SpeculativeConfig(prompts=-(-z.prompts // 3), length=z.length // 2, new=z.length // 2)
    found = []
    for held_out in exam.corpus.validation.values():
        for i, ids in enumerate(prompts(torch.as_tensor(held_out.tokens).long().to(model.device), c)):
            generator = torch.Generator(model.device).manual_seed(i)
            found += steps(model, ids, max_new=c.new, temperature=temperature, generator=generator)
    return [g for g in found if g.verified == model.config.dspark_block_size]


def error(p: Tensor, accepted: Tensor) -> float:
    """Calibration error of the chance [N, block] that a draft and all before it are kept; mean over the block."""
    return mean(calibration_error(a, accepted > k) for k, a in enumerate(p.cumprod(1).unbind(1)))
