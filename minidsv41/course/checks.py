"""What a learner calls: predict, check, hint, solution. None of them raises on a learner's mistake."""

from __future__ import annotations

import copy
import inspect
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from minidsv41.course.exercise import TODO, Exercise, Todo, Untouched, call, same, size
from minidsv41.course.language import say
from minidsv41.course.lessons import exercise

__all__ = ["TODO", "check", "grade", "hint", "predict", "solution"]

State = Literal["untouched", "wrong", "right"]
SHOWN = {"untouched": "○ not attempted · 未作答", "wrong": "✗ not yet · 还不对", "right": "✓ right · 正确"}


@dataclass(frozen=True)
class Verdict:
    """State of an answer, and for a wrong one the explanation in the reader's language."""

    name: str
    state: State
    text: str = ""

    def __str__(self) -> str:
        head = f"{self.name} {SHOWN[self.state]}"
        return f"{head}\n{self.text}" if self.text else head


@dataclass(frozen=True)
class Failure:
    """What the learner's code did instead of answering; equal when the same kind was raised."""

    kind: str
    message: str
    line: str

    def __repr__(self) -> str:
        return f"{self.kind}: {self.message}" + (f"\n    {self.line}" if self.line else "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failure) and other.kind == self.kind

    def __hash__(self) -> int:
        return hash(self.kind)


def check(name: str, answer: Any = TODO) -> None:
    """Print whether `answer` (a function, or a value) is untouched, wrong or right, and why."""
    try:
        print(grade(exercise(name), answer))
    except KeyError as error:
        print(error.args[0])


def grade(task: Exercise, answer: Any) -> Verdict:
    """Try the exercise's inputs, smallest first, on `answer` and on the package."""
    if isinstance(answer, Todo):
        return Verdict(task.name, "untouched")
    tried = sorted(task.inputs(), key=size)
    got = []
    for inputs in tried:
        value = run(task.use, answer, inputs)
        if holds_todo(value):
            return Verdict(task.name, "untouched")
        got.append(value)
    text = ""
    for inputs, value in zip(tried, got, strict=True):
        right = task.reference(**copy.deepcopy(inputs))
        if not fits(task, value, right):
            return Verdict(task.name, "wrong", explain(task, tried, got, inputs, value, right))
        if task.use is not call:
            text = say(task.versus).format(value=shown(value), right=shown(right))
    return Verdict(task.name, "right", text)


def run(use: Callable[..., Any], answer: Any, inputs: dict[str, Any]) -> Any:
    """The answer's value on a copy of the inputs; TODO or a Failure where it gives none."""
    try:
        return use(answer, **copy.deepcopy(inputs))
    except Untouched:
        return TODO
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        said = said if len(said) <= 300 else f"{said[:300]} …"
        return Failure(type(error).__name__, said, line_of(answer, error))


def line_of(answer: Any, error: Exception) -> str:
    """The last line of the learner's own code that was running, "" if none was."""
    code = getattr(answer, "__code__", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
    return frames[-1].line or "" if frames else ""


def fits(task: Exercise, value: Any, right: Any) -> bool:
    """Whether the exercise accepts `value`; one that cannot even be compared is not accepted."""
    if isinstance(value, Failure):
        return False
    try:
        return bool(task.accept(value, right))
    except Exception:
        return False


def holds_todo(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(holds_todo, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_todo, value))
    return isinstance(value, Todo)


def explain(task: Exercise, tried: list, got: list, inputs: dict, value: Any, right: Any) -> str:
    """The smallest failing input, both values, and the mistake where it is a known one."""
    place = ", ".join(f"{k}={shown(v)}" for k, v in inputs.items())
    if isinstance(value, Failure):
        raises = {"en": f"your code raises {value!r}", "zh": f"你的代码抛出 {value!r}"}
        unfit = {"en": f"your answer cannot be used: {value!r}", "zh": f"你的答案无法使用：{value!r}"}
        text = say(raises if value.line else unfit)
    else:
        text = say(task.versus).format(value=shown(value), right=shown(right))
    if place:
        text = say({"en": f"for {place} ", "zh": f"当 {place} 时，"}) + text
    for mistake in task.mistakes:
        if all(same(v, run(task.use, mistake.answer, i)) for i, v in zip(tried, got, strict=True)):
            return f"{text}\n{say(mistake.thought)}"
    return text


def listed(value: Any) -> Any:
    """A tensor, or several, as nested lists of numbers in six digits; None for anything else."""
    if isinstance(value, (list, tuple)) and value and all(hasattr(x, "tolist") for x in value):
        return [listed(x) for x in value]
    if not hasattr(value, "tolist"):
        return None

    def digits(x: Any) -> Any:
        return list(map(digits, x)) if isinstance(x, list) else float(f"{x:.6g}") if isinstance(x, float) else x

    return digits(value.tolist())


def shown(value: Any) -> str:
    """A value on one short line; a whole number with separators, containers as Python writes them."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if (numbers := listed(value)) is not None and len(text := str(numbers)) <= 200:
        return text
    return textwrap.shorten(" ".join(repr(value).split()), 100, placeholder=" …")


_given: dict[str, int] = {}


def hint(name: str) -> None:
    """Print one more hint each time: the idea, the first step, the formula."""
    try:
        hints = exercise(name).hints
    except KeyError as error:
        print(error.args[0])
        return
    at = min(_given.get(name, 0), len(hints) - 1)
    _given[name] = at + 1
    print(f"{name} ({at + 1}/{len(hints)}) {say(hints[at])}")


def solution(name: str) -> None:
    """Print the code of a solution and one paragraph why."""
    try:
        task = exercise(name)
    except KeyError as error:
        print(error.args[0])
        return
    print(textwrap.dedent(inspect.getsource(task.solution)))
    print(say(task.why))


@dataclass(frozen=True)
class Prediction:
    """A guess written down before the lesson computes the answer."""

    lesson: str
    guess: float | None
    unit: str

    def reveal(self, exact: float) -> None:
        """Print guess and exact value and the factor between them."""
        unit = f" {self.unit}" if self.unit else ""
        if self.guess is None:
            print(f"{self.lesson} ○ no guess recorded · 未填写猜测 · {shown(exact)}{unit}")
            return
        low, high = sorted((abs(self.guess), abs(exact)))
        factor = f"{high / low:,.3g}" if low else "∞"
        print(
            say(
                {
                    "en": f"you {shown(self.guess)}, exact {shown(exact)}{unit}: a factor {factor}",
                    "zh": f"你猜 {shown(self.guess)}，准确值 {shown(exact)}{unit}：相差 {factor} 倍",
                }
            )
        )


def predict(lesson: str, guess: Any = TODO, *, unit: str = "") -> Prediction:
    """Write a guess down: `guess = predict("03", 128, unit="tokens")`, later `guess.reveal(exact)`."""
    number = isinstance(guess, (int, float)) and not isinstance(guess, bool) and 0 <= guess < inf
    if number:
        print(f"{lesson} ● guess recorded · 已记下猜测: {shown(guess)} {unit}".rstrip())
    elif guess is not TODO:
        print(f"{lesson} ✗ guess = {guess!r}: a number, 0 or more · 请填写不小于 0 的数")
    else:
        print(f"{lesson} ○ no guess recorded · 未填写猜测")
    return Prediction(lesson, guess if number else None, unit)
