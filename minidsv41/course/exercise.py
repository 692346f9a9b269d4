"""What an exercise is: inputs to try, the package's answer, and the wrong answers that people give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

from minidsv41.course.language import Text


class Untouched(Exception):
    """Raised by arithmetic with TODO, so that a half-written answer counts as not attempted."""


class Todo(Untouched):
    """`return TODO`, `raise TODO` and `1 + TODO` all mean: not attempted."""

    def __repr__(self) -> str:
        return "TODO"


def _untouched(self: Todo, *_: Any) -> Any:
    raise Untouched("TODO")


OPERATORS = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift".split()
for _name in [
    *(f"__{side}{name}__" for name in OPERATORS for side in ("", "r")),
    *"__neg__ __pos__ __abs__ __invert__ __lt__ __le__ __gt__ __ge__".split(),
    *"__bool__ __int__ __float__ __index__ __iter__ __len__ __getitem__ __call__".split(),
]:
    setattr(Todo, _name, _untouched)

TODO = Todo()


def call(answer: Any, **inputs: Any) -> Any:
    """The answer's value: a function is called, anything else is its own value."""
    return answer(**inputs) if callable(answer) else answer


def same(a: Any, b: Any) -> bool:
    """Equal numbers, tensors and containers; floats to 1e-6, an integer also as a float."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "shape") or hasattr(b, "shape"):
        return _same_tensor(a, b)
    if isinstance(a, Number) and isinstance(b, Number):
        return bool(abs(a - b) <= 1e-6 * max(1.0, abs(b)))
    return type(a) is type(b) and bool(a == b)


def _same_tensor(a: Any, b: Any) -> bool:
    import torch

    try:
        a, b = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    except (TypeError, ValueError, RuntimeError):
        return False
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def size(inputs: dict[str, Any]) -> float:
    """How large an input is, so that the smallest failing one is shown."""

    def one(value: Any) -> float:
        if isinstance(value, (bool, int, float)):
            return abs(value)
        if isinstance(value, dict):
            return sum(map(one, value.values()))
        if isinstance(value, (list, tuple)):
            return len(value) + sum(map(one, value))
        return float(value.numel()) if hasattr(value, "numel") else 0.0

    return sum(map(one, inputs.values()))


VERSUS = {
    "en": "you say {value}, the package says {right}",
    "zh": "你的答案是 {value}，代码库给出 {right}",
}


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong answer that people give, as a function, and the thought behind it."""

    name: str
    answer: Callable[..., Any]
    thought: Text


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One graded question.

    `inputs()` yields keyword arguments for the learner's function: small random ones and the edges,
    the same each time. `reference` asks the package, not a stored answer. `solution` is a function
    whose source is shown. An exercise whose answer is a value has one input, `{}`.
    Where the answer is a part to be plugged in, `use(answer, **inputs)` runs it and gives its score,
    `accept(score, reference)` says whether it is good enough, and `versus` says the two side by side.
    """

    name: str
    inputs: Callable[[], Iterable[dict[str, Any]]]
    reference: Callable[..., Any]
    solution: Callable[..., Any]
    why: Text
    hints: tuple[Text, ...]
    mistakes: tuple[Mistake, ...] = ()
    use: Callable[..., Any] = call
    accept: Callable[[Any, Any], bool] = same
    versus: Text = field(default_factory=VERSUS.copy)
