"""Sizes that are known only when a model runs: integers that remember how they are computed.

A `Dim` is the size that an axis had while the program was traced, and the formula of it in the
model's named sizes. Arithmetic on it is arithmetic on both, so rules that are written for known
shapes write shapes that are computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Formula = Any  # an int, a name, or (operator, formula, formula)


class Dim(int):
    """An integer with its formula in named sizes.

    >>> from funcgrad.export.onnx.dims import Dim
    >>> n = Dim(7, "n")
    >>> n + 1, str(2 * n + 1), str(n // n)
    (8, '2*n+1', '1')
    """

    formula: Formula

    def __new__(cls, value: int, formula: Formula) -> Dim:
        made = super().__new__(cls, value)
        made.formula = formula
        return made

    def __str__(self) -> str:
        return shown(self.formula)

    def _with(self, sign: str, other: Any, value: int, turned: bool = False) -> Any:
        a, b = self.formula, other.formula if isinstance(other, Dim) else int(other)
        formula = _simple(sign, b, a) if turned else _simple(sign, a, b)
        return value if isinstance(formula, int) else Dim(value, formula)

    def __add__(self, other: Any) -> Any:
        return self._with("+", other, int(self) + int(other))

    def __radd__(self, other: Any) -> Any:
        return self._with("+", other, int(self) + int(other), True)

    def __sub__(self, other: Any) -> Any:
        return self._with("-", other, int(self) - int(other))

    def __rsub__(self, other: Any) -> Any:
        return self._with("-", other, int(other) - int(self), True)

    def __mul__(self, other: Any) -> Any:
        return self._with("*", other, int(self) * int(other))

    def __rmul__(self, other: Any) -> Any:
        return self._with("*", other, int(self) * int(other), True)

    def __floordiv__(self, other: Any) -> Any:
        return self._with("/", other, int(self) // int(other))

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with("/", other, int(other) // int(self), True)

    def __neg__(self) -> Any:
        return 0 - self


def _simple(sign: str, a: Formula, b: Formula) -> Formula:
    if isinstance(a, int) and isinstance(b, int):
        return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[sign]
    if sign in "+-" and b == 0:
        return a
    if sign == "+" and a == 0:
        return b
    if sign == "-" and a == b:
        return 0
    if sign == "*" and 1 in (a, b):
        return b if a == 1 else a
    if sign == "*" and 0 in (a, b):
        return 0
    if sign == "/" and (b == 1 or a == b):
        return a if b == 1 else 1
    return (sign, a, b)


def shown(formula: Formula) -> str:
    """A formula as text.

    >>> shown(("*", 2, ("+", "n", 1)))
    '2*(n+1)'
    """
    if not isinstance(formula, tuple):
        return str(formula)
    sign, a, b = formula
    left, right = shown(a), shown(b)
    if sign in "*/" and isinstance(a, tuple) and a[0] in "+-":
        left = f"({left})"
    if (sign in "*/" and isinstance(b, tuple)) or (sign == "-" and isinstance(b, tuple)):
        right = f"({right})"
    return f"{left}{'//' if sign == '/' else sign}{right}"


def evaluated(formula: Formula, sizes: Mapping[str, int]) -> int:
    """The value of a formula where names have these sizes.

    >>> evaluated(("/", "n", 2), {"n": 9})
    4
    """
    if isinstance(formula, tuple):
        a, b = (evaluated(part, sizes) for part in formula[1:])
        return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[formula[0]]
    return sizes[formula] if isinstance(formula, str) else formula


def is_static(shape: Sequence[int]) -> bool:
    """Whether all sizes are known."""
    return not any(isinstance(n, Dim) for n in shape)


def product(sizes: Sequence[int]) -> int:
    """The product of sizes, with its formula.

    >>> str(product((2, Dim(7, "n"))))
    '2*n'
    """
    return math.prod(sizes, start=1)


def fitted(points: Sequence[Mapping[str, int]], values: Sequence[int]) -> int | Dim | None:
    """The size that has these values where names have these sizes: a constant, a name's size times
    a number plus a number, or a number times names' sizes; None where none of these is it.

    The first point is the one that a `Dim` has as its value; each next one changes names.

    >>> str(fitted([{"n": 5}, {"n": 7}], [11, 15]))
    '2*n+1'
    """
    first = values[0]
    if all(v == first for v in values):
        return first
    names = list(points[0])
    for tried in (_affine, _monomial):
        formula = tried(names, points, values)
        if formula is not None and all(
            evaluated(formula, p) == v for p, v in zip(points, values, strict=True)
        ):
            return Dim(first, formula)
    return None


def _changes(name: str, points: Sequence[Mapping[str, int]]) -> int:
    """The point in which only this name differs from the first."""
    return next(i for i, p in enumerate(points) if [n for n in p if p[n] != points[0][n]] == [name])


def _affine(names: Sequence[str], points: Any, values: Sequence[int]) -> Formula | None:
    total: Formula = 0
    rest = values[0]
    for name in names:
        i = _changes(name, points)
        step = points[i][name] - points[0][name]
        slope, odd = divmod(values[i] - values[0], step)
        if odd:
            return None
        rest -= slope * points[0][name]
        total = _simple("+", total, _simple("*", slope, name)) if slope else total
    return _simple("-", total, -rest) if rest < 0 else _simple("+", total, rest)


def _monomial(names: Sequence[str], points: Any, values: Sequence[int]) -> Formula | None:
    total: Formula = 1
    rest = values[0]
    for name in names:
        i = _changes(name, points)
        size, other = points[0][name], points[i][name]
        while values[i] * size == values[0] * other and rest % size == 0:
            rest //= size
            total = _simple("*", total, name)
            break
    return _simple("*", rest, total)
