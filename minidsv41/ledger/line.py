"""One line of the books: an exact number that carries the expression it was computed from."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, prod

Number = int | Fraction
Books = dict[str, "Line"]

SUM, PRODUCT, ATOM = 1, 2, 3
# Operator: function, level that its operands need, level of its result. A floor is bracketed inside products.
OPERATORS = {
    "+": (operator.add, SUM, SUM),
    "-": (operator.sub, SUM, SUM),
    "*": (operator.mul, PRODUCT, PRODUCT),
    "/": (lambda a, b: Fraction(a) / b, PRODUCT, PRODUCT),
    "//": (operator.floordiv, PRODUCT, SUM),
}


@dataclass(frozen=True)
class Line:
    """An exact quantity. `formula` is written over the names of `parts`, which can be opened in turn.

    Arithmetic on lines and plain numbers writes the formula along, so that no text can disagree with its
    value. A line without a name is an expression; `named` gives it a name and a unit.
    """

    name: str
    value: Number
    unit: str = ""
    formula: str = ""
    parts: tuple[Line, ...] = ()
    level: int = ATOM

    def named(self, name: str, unit: str) -> Line:
        return replace(self, name=name, unit=unit)

    def tree(self, depth: int = 0) -> Iterator[tuple[int, Line]]:
        """This line and everything it was computed from, as (depth, line)."""
        yield depth, self
        for part in self.parts:
            yield from part.tree(depth + 1)

    def within(self, level: int) -> str:
        """The text of this line as an operand of an operator of that level."""
        if self.name:
            return self.name
        return self.formula if self.level >= level else f"({self.formula})"

    @property
    def operands(self) -> tuple[Line, ...]:
        return (self,) if self.name else self.parts

    def __str__(self) -> str:
        left = " = ".join(text for text in (self.name, self.formula) if text)
        return f"{left} = {plain(self.value):,} {self.unit}".rstrip()

    def __int__(self) -> int:
        assert self.value == int(self.value), f"{self} is not whole"
        return int(self.value)

    def __add__(self, other: Line | Number) -> Line:
        return join(self, "+", other)

    def __radd__(self, other: Number) -> Line:
        return join(other, "+", self)

    def __sub__(self, other: Line | Number) -> Line:
        return join(self, "-", other)

    def __mul__(self, other: Line | Number) -> Line:
        return join(self, "*", other)

    def __rmul__(self, other: Number) -> Line:
        return join(other, "*", self)

    def __truediv__(self, other: Line | Number) -> Line:
        return join(self, "/", other)

    def __rtruediv__(self, other: Number) -> Line:
        return join(other, "/", self)

    def __floordiv__(self, other: Line | Number) -> Line:
        return join(self, "//", other)


def lift(x: Line | Number) -> Line:
    return x if isinstance(x, Line) else Line("", x, formula=str(x), level=PRODUCT if isinstance(x, Fraction) else ATOM)


def whole(value: Number) -> Number:
    """An int where the value is one, else the fraction."""
    return int(value) if value == int(value) else value


def merged(*lines: Line) -> tuple[Line, ...]:
    """The named operands of several lines, each once."""
    return tuple(dict.fromkeys(part for line in lines for part in line.operands))


def join(left: Line | Number, sign: str, right: Line | Number) -> Line:
    left, right = lift(left), lift(right)
    if sign == "+" and not (left.value and right.value):
        return left if left.value else right
    function, needed, level = OPERATORS[sign]
    # Text reads from left to right, so the right operand of -, / and // keeps its brackets.
    text = f"{left.within(needed)} {sign} {right.within(needed + (sign not in '+*'))}"
    return Line("", whole(function(left.value, right.value)), formula=text, parts=merged(left, right), level=level)


def total(lines: Iterable[Line]) -> Line:
    """The sum; equal terms are written once, with their number."""
    return sum((n * line if n > 1 else line for line, n in Counter(lines).items()), start=lift(0))


def product(lines: Iterable[Line]) -> Line:
    factors = [line for line in lines if line.name or line.value != 1] or [lift(1)]
    return prod(factors[1:], start=factors[0])


def least(a: Line | Number, b: Line | Number) -> Line:
    return call("min", min, lift(a), lift(b))


def ceiling(a: Line) -> Line:
    return call("ceil", ceil, a)


def call(name: str, function, *arguments: Line) -> Line:
    text = ", ".join(a.within(SUM) for a in arguments)
    value = function(*(a.value for a in arguments))
    return Line("", whole(value), formula=f"{name}({text})", parts=merged(*arguments))


def fields(record: object, names: str) -> tuple[Line, ...]:
    """The named integer fields of a config or a model record, as lines."""
    return tuple(Line(name, getattr(record, name)) for name in names.split())


def by_name(*lines: Line) -> Books:
    return {line.name: line for line in lines}


def plain(value: Number) -> int | float:
    return value if isinstance(value, int) else float(value)
