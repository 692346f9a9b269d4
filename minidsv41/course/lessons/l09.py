"""Lesson 09: what is kept, what replaces the rest, and a draft of your own shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from minidsv41 import paths
from minidsv41.checkpoint import load
from minidsv41.course.drafting import Drafted, Overlap, distance, drafted
from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.lessons import said09 as said
from minidsv41.serve.speculative import residual
from minidsv41.tokens import load_tokenizer


@cache
def held_out() -> Drafted:
    """The toy's drafts at 90 places of a play that it was not trained on."""
    text = (paths.text_dir() / "plays" / "midsummer_nights_dream.txt").read_text(encoding="utf-8")
    rows = torch.tensor(load_tokenizer().encode(text[40_000:44_000]).ids[: 3 * 160]).view(3, 160)
    return drafted(load(paths.checkpoint_dir("toy"), dtype=torch.float64), rows, first=10, every=5)


def pairs() -> list[dict[str, Tensor]]:
    """Distributions of few words: the lesson's, apart, equal, random."""
    g = torch.Generator().manual_seed(9)
    random = torch.rand(4, 5, generator=g, dtype=torch.float64)
    given = [([0.7, 0.3], [0.5, 0.5]), ([1.0, 0.0], [0.0, 1.0]), ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5])]
    given += [((a / a.sum()).tolist(), (b / b.sum()).tolist()) for a, b in zip(random[::2], random[1::2], strict=True)]
    return [dict(target=torch.tensor(t).double(), draft=torch.tensor(d).double()) for t, d in given]


def overlap(target: Tensor, draft: Tensor) -> float:
    return float(torch.minimum(target, draft).sum())


KEPT = Exercise(
    name="09.kept",
    inputs=pairs,
    reference=lambda target, draft: float(Overlap(target, draft).kept.sum()),
    solution=overlap,
    why=said.KEPT_WHY,
    hints=said.KEPT_HINTS,
    mistakes=(
        Mistake(name="both draw it", answer=lambda target, draft: float((target * draft).sum()), thought=said.BOTH),
        Mistake(
            name="counted twice",
            answer=lambda target, draft: 1 - float((target - draft).abs().sum()),
            thought=said.TWICE,
        ),
        Mistake(
            name="mean ratio",
            answer=lambda target, draft: float((target / draft).clamp(max=1).mean()),
            thought=said.RATIO,
        ),
        Mistake(
            name="favourites agree",
            answer=lambda target, draft: float(target.argmax() == draft.argmax()),
            thought=said.FAVOURITE,
        ),
    ),
)

Verifier = Callable[[Tensor, Tensor, Tensor, int], tuple[float, Tensor]]


def spoken(answer: Verifier, target: Tensor, base: Tensor, correction: Tensor) -> tuple[float, float]:
    """Distance of what goes out from the target, and the share of drafts kept, summed over every draft."""
    drawn, out, share = (base + correction).softmax(-1), torch.zeros_like(target), 0.0
    for token, chance in enumerate(drawn.tolist()):
        keep, left = answer(target.clone(), base.clone(), correction.clone(), token)
        out[token] += chance * keep
        share += chance * float(keep)
        if keep < 1 - 1e-12:
            left = torch.as_tensor(left).to(target)
            out += chance * (1 - keep) * left / left.sum()
    return distance(out, target), share


def honest(target: Tensor, base: Tensor, correction: Tensor) -> tuple[float, float]:
    """What the package does: nothing is off, and the overlap with the corrected draft is kept."""
    drawn = (base + correction).softmax(-1)
    keep = (target / drawn).clamp(max=1)
    return spoken(lambda t, b, c, token: (float(keep[token]), residual(target, drawn)), target, base, correction)


def verified(target: Tensor, base: Tensor, correction: Tensor, token: int) -> tuple[float, Tensor]:
    draft = (base + correction).softmax(-1)
    keep = min(1.0, float(target[token] / draft[token]))
    return keep, (target - draft).clamp(min=0)


def variant(draft: Callable = lambda b, c: (b + c).softmax(-1), keep=None, left=None) -> Verifier:
    """`verified` with another idea of the draft, of what is kept, or of what is left."""

    def answer(target: Tensor, base: Tensor, correction: Tensor, token: int) -> tuple[float, Tensor]:
        q = draft(base, correction)
        kept = keep(target, q, token) if keep else target[token] / q[token]
        return min(1.0, float(kept)), left(target, q) if left else (target - q).clamp(min=0)

    return answer


def verdicts() -> list[dict[str, Tensor]]:
    """Two words, a correction that changes sides, equal distributions, and a place of a real text."""
    given = [
        ([0.7, 0.3], [0.0, 0.0], [0.0, 1.0]),
        ([0.5, 0.3, 0.2], [2.0, 0.0, 0.0], [-2.0, 1.0, 0.5]),
        ([0.2, 0.3, 0.5], torch.tensor([0.2, 0.3, 0.5]).log().tolist(), [0.0, 0.0, 0.0]),
    ]
    g = torch.Generator().manual_seed(10)
    given += [(torch.rand(6, generator=g).softmax(-1).tolist(), *torch.randn(2, 6, generator=g).tolist())]
    found = [dict(zip(("target", "base", "correction"), map(torch.tensor, one), strict=True)) for one in given]
    found = [{k: v.double() for k, v in one.items()} for one in found]
    real = held_out()
    words = real.target[7, 1].topk(24).indices
    base, corrected = real.base[7, 1, words], real.corrected[7, 1, words]
    real_one = dict(target=real.target[7, 1, words].softmax(-1), base=base, correction=corrected - base)
    return [*({**one, "target": one["target"] / one["target"].sum()} for one in found), real_one]


VERIFIED = Exercise(
    name="09.verified",
    inputs=verdicts,
    reference=honest,
    use=spoken,
    accept=lambda value, right: value[0] < 1e-9 and abs(value[1] - right[1]) < 1e-9,
    versus=said.VERIFIED_VERSUS,
    solution=verified,
    why=said.VERIFIED_WHY,
    hints=said.VERIFIED_HINTS,
    mistakes=(
        Mistake(name="uncorrected draft", answer=variant(lambda b, c: b.softmax(-1)), thought=said.UNCORRECTED),
        Mistake(name="from the whole target", answer=variant(left=lambda t, q: t), thought=said.WHOLE),
        Mistake(name="from the draft", answer=variant(left=lambda t, q: q), thought=said.AGAIN),
        Mistake(name="upside down", answer=variant(keep=lambda t, q, i: q[i] / t[i]), thought=said.UPSIDE),
        Mistake(name="absolute difference", answer=variant(left=lambda t, q: (t - q).abs()), thought=said.ABSOLUTE),
        Mistake(
            name="the favourite only",
            answer=variant(keep=lambda t, q, i: float(i == t.argmax())),
            thought=said.GREEDY,
        ),
        Mistake(
            name="by the target's chance",
            answer=variant(keep=lambda t, q, i: t[i], left=lambda t, q: t * (1 - q)),
            thought=said.CHANCE,
        ),
        Mistake(name="keep nothing", answer=variant(keep=lambda t, q, i: 0.0, left=lambda t, q: t), thought=said.NONE),
        Mistake(name="keep all", answer=variant(keep=lambda t, q, i: 1.0), thought=said.ALL),
    ),
)


def gained(shape: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Tokens a step at temperature 1, behind the true words of a play, if drafts come from these logits."""
    found = held_out()
    logits = 1.0 * shape(found.base.clone(), found.corrected - found.base)
    return float(1 + found.shares(logits.expand_as(found.base)).cumprod(1).sum(1).mean())


def plain(base: Tensor, correction: Tensor) -> Tensor:
    return base + correction


def louder(base: Tensor, correction: Tensor) -> Tensor:
    return base + 3 * correction


SHAPE = Exercise(
    name="09.shape",
    inputs=lambda: [{}],
    reference=lambda: gained(plain),
    use=gained,
    accept=lambda value, own: value > 1.01 * own,
    versus=said.SHAPE_VERSUS,
    solution=louder,
    why=said.SHAPE_WHY,
    hints=said.SHAPE_HINTS,
    mistakes=(
        Mistake(name="the package's own", answer=plain, thought=said.OWN),
        Mistake(name="no correction", answer=lambda base, correction: base, thought=said.ALONE),
        Mistake(name="sharper", answer=lambda base, correction: 2 * (base + correction), thought=said.SHARPER),
        Mistake(name="flatter", answer=lambda base, correction: (base + correction) / 2, thought=said.FLATTER),
    ),
)

EXERCISES = (KEPT, VERIFIED, SHAPE)
