"""Lesson 02's open exercise: even the load of a router's experts by the bias alone."""

from __future__ import annotations

import torch

from minidsv41.course.balance import Router, package_rule
from minidsv41.course.exercise import Exercise, Mistake


def steady(bias: torch.Tensor, load: torch.Tensor) -> torch.Tensor:
    return bias + 0.05 * (1 - load / load.mean())


ROUTER = Router()
BALANCE = Exercise(
    name="02.balance",
    inputs=lambda: [{}],
    reference=lambda: ROUTER.overload(package_rule),
    use=lambda answer: ROUTER.overload(answer),
    accept=lambda found, best: found - 1 < 0.25 * (best - 1),
    versus={
        "en": "your busiest expert carries {value} times the mean, the package's rule leaves {right} after 200 steps "
        "(leave a quarter of its excess over 1)",
        "zh": "最忙专家的负载是平均值的 {value} 倍，代码库的规则在 200 步后为 {right} 倍"
        "（请把超出 1 的部分降到它的四分之一）",
    },
    solution=steady,
    why={
        "en": "A step in proportion to what an expert lacks is long at the start and short at the end. The rule of the "
        "release knows only the sign and moves by 0.001: too slow for 200 steps, right for several hundred thousand "
        "of them, in which the scores move as well and a large step would never come to rest.",
        "zh": "步长与缺少的负载成正比：开始时大，结束时小。发布的规则只看符号，每步 0.001："
        "200 步太慢，但对几十万步正合适，因为得分本身也在变，步子太大就永远停不下来。",
    },
    hints=(
        {
            "en": "An expert with too little load must become easier to choose.",
            "zh": "负载不足的专家应当更容易被选中。",
        },
        {
            "en": "Start from bias + speed · sign(mean − load) and try speeds.",
            "zh": "从 bias + speed · sign(mean − load) 开始，试不同的 speed。",
        },
        {"en": "bias + speed · (1 − load / mean)", "zh": "bias + speed · (1 − load / mean)"},
    ),
    mistakes=(
        Mistake(
            name="nothing moves",
            answer=lambda bias, load: bias,
            thought={"en": "Your bias never moves.", "zh": "你的偏置从不变化。"},
        ),
        Mistake(
            name="to those that have",
            answer=lambda bias, load: bias + 0.05 * (load / load.mean() - 1),
            thought={
                "en": "You raise the bias of the busy experts. They get busier with every step.",
                "zh": "你提高了繁忙专家的偏置，它们每一步都更忙。",
            },
        ),
        Mistake(
            name="too fast",
            answer=lambda bias, load: bias + 0.5 * torch.sign(load.mean() - load),
            thought={
                "en": "Steps of 0.5 are as large as the scores' own differences: the load jumps to and fro.",
                "zh": "0.5 的步长与得分之间的差异一样大：负载来回跳动。",
            },
        ),
        Mistake(
            name="no memory",
            answer=lambda bias, load: 0.05 * (1 - load / load.mean()),
            thought={
                "en": "You forget the bias of the step before. Once the load is even yours is zero, and the favourites "
                "are back.",
                "zh": "你忘掉了上一步的偏置。负载一旦均匀，偏置就归零，受偏爱的专家又回来了。",
            },
        ),
    ),
)
