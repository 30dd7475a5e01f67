"""Programs of several sizes as one: the numbers that differ, as polynomials of the sizes.

A function with symbolic sizes is traced for some sizes of each symbol, as trace after trace only
knows integers. Where programs differ in integers alone, each such integer is written as the
polynomial, of degree two in all symbols together, that gives it at all sizes; at two more than are
needed to find it, as a check. Where they differ in anything else the function has no one program
for all sizes, which is an error that names the operation.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from funcgrad.errors import FormatError
from funcgrad.export.program.values import (
    Json,
    dtype_named,
    scalar_from_json,
    scalar_to_json,
)
from funcgrad.export.symbolic import Dim, Monomial, Sizes, SymbolicScope, parse_stored

_DEGREE = 2
_CHECKS = 2  # points beyond those that are needed


class Differ(Exception):
    """Programs that are not one; `where` says at which operation."""

    def __init__(self, what: str, where: str = ""):
        super().__init__(what)
        self.what, self.where = what, where


def monomials(symbols: Sequence[str]) -> list[Monomial]:
    """The products of symbols of which polynomials are made.

    >>> monomials(["b"])
    [(), ('b',), ('b', 'b')]
    """
    return [
        m
        for degree in range(_DEGREE + 1)
        for m in itertools.combinations_with_replacement(sorted(symbols), degree)
    ]


def points(symbols: Sequence[str], scope: SymbolicScope, dims: Sequence[Dim]) -> list[Sizes]:
    """Sizes to trace at, that meet the constraints and make all `dims` at least 1: as many as
    polynomials need, and some to check them. Fewer if there are no more."""
    basis, chosen = monomials(symbols), []
    rows: list[list[Fraction]] = []
    extra = 0
    for sizes in _candidates(symbols, scope):
        if scope.broken(sizes) or any(d.at(sizes) < 1 for d in dims):
            continue
        row = [Fraction(Dim({m: 1}).at(sizes)) for m in basis]
        independent = _reduced(rows, row)
        if independent is not None:
            rows.append(independent)
        elif extra == _CHECKS or len(rows) < len(basis):
            continue
        else:
            extra += 1
        chosen.append(sizes)
        if len(rows) == len(basis) and extra == _CHECKS:
            break
    return chosen


def _candidates(symbols: Sequence[str], scope: SymbolicScope) -> list[Sizes]:
    """Sizes to choose from: beyond 1 and 2, which operations may treat in their own ways, unless
    the constraints leave no others."""
    rng = np.random.default_rng(0)
    near = [0, *sorted(n for n in scope.numbers() if 2 < n < 1 << 40)]
    drawn = []
    for spread in (30, 8, 300, 3):
        for base in near:
            for _ in range(60):
                sizes = base + rng.integers(3, 3 + spread, len(symbols))
                drawn.append(dict(zip(symbols, map(int, sizes), strict=True)))
    small = itertools.product((1, 2, 3, 4), repeat=min(len(symbols), 4))
    drawn += [dict(zip(symbols, s, strict=False)) for s in small if len(symbols) <= 4]
    return [dict(s) for s in dict.fromkeys(tuple(s.items()) for s in drawn)]


def _reduced(rows: list[list[Fraction]], row: list[Fraction]) -> list[Fraction] | None:
    """A row without what others have, its first entry 1; None if nothing is left."""
    for other in rows:
        first = next(i for i, x in enumerate(other) if x)
        row = [x - row[first] * y for x, y in zip(row, other, strict=True)]
    lead = next((i for i, x in enumerate(row) if x), None)
    return None if lead is None else [x / row[lead] for x in row]


class Unifier:
    """Joins the JSON of programs that were traced at these sizes."""

    def __init__(self, symbols: Sequence[str], at: Sequence[Sizes]):
        self.at = at
        self.basis = monomials(symbols)
        self.matrix = [[Fraction(Dim({m: 1}).at(s)) for m in self.basis] for s in at]
        self.known: dict[tuple, Dim] = {}

    def join(self, found: Sequence[Json]) -> Json:
        """One JSON of several, with `{"dim": …}` where integers differ."""
        first = found[0]
        if all(x == first and type(x) is type(first) for x in found[1:]):
            return first
        if all(type(x) is int for x in found):
            return {"dim": repr(self.polynomial(found))}
        if all(type(x) is list and len(x) == len(first) for x in found):
            return [self.join(inner) for inner in zip(*found, strict=True)]
        if all(type(x) is dict and x.keys() == first.keys() for x in found):
            return self._dict(found)
        raise Differ("it is another program, or holds another number, for other sizes")

    def _dict(self, found: Sequence[dict]) -> dict:
        first = found[0]
        if first.keys() == {"type", "bits"} and all(x["type"] == first["type"] for x in found):
            dtype = dtype_named(first["type"][0].removeprefix("~"))
            numbers = [scalar_from_json(x["bits"], dtype).item() for x in found]
            if dtype.kind == "c" or not all(x == int(x) for x in numbers):
                raise Differ(f"it holds a number that isn't whole, such as {numbers[0]}")
            return {"type": first["type"], "dim": repr(self.polynomial(list(map(int, numbers))))}
        try:
            return {key: self.join([x[key] for x in found]) for key in first}
        except Differ as e:
            if "op" in first and not e.where:
                e.where = str(first["op"]).partition("@")[0]
                e.where += f" at line {first['at']}" if "at" in first else ""
            raise

    def polynomial(self, values: Sequence[int]) -> Dim:
        """The polynomial that has these values at the sizes."""
        key = tuple(values)
        if key not in self.known:
            self.known[key] = self._solved(values)
        return self.known[key]

    def _solved(self, values: Sequence[int]) -> Dim:
        rows = [[*row, Fraction(v)] for row, v in zip(self.matrix, values, strict=True)]
        n = len(self.basis)
        solution = [Fraction(0)] * n
        done: list[list[Fraction]] = []
        for row in rows:
            left = _reduced(done, row)
            if left is None:
                continue
            if not any(left[:n]):
                raise Differ(f"its sizes, such as {list(values)[:3]}, are no polynomials")
            done.append(left)
        for row in reversed(done):
            lead = next(i for i, x in enumerate(row) if x)
            solution[lead] = row[n] - sum(row[j] * solution[j] for j in range(lead + 1, n))
        if any(x.denominator != 1 for x in solution):
            raise Differ(f"its sizes, such as {list(values)[:3]}, need fractions")
        return Dim({m: int(x) for m, x in zip(self.basis, solution, strict=True)})


def specialized(found: Json, sizes: Mapping[str, int]) -> Json:
    """JSON with the value of each `{"dim": …}` at these sizes."""
    if type(found) is list:
        return [specialized(x, sizes) for x in found]
    if type(found) is not dict:
        return found
    if found.keys() == {"dim"}:
        return value_of(found["dim"], sizes)
    if found.keys() == {"type", "dim"}:
        dtype = dtype_named(str(found["type"][0]).removeprefix("~"))
        value = np.asarray(value_of(found["dim"], sizes)).astype(dtype)
        return {"type": found["type"], "bits": scalar_to_json(value)}
    return {key: specialized(x, sizes) for key, x in found.items()}


def value_of(text: Json, sizes: Mapping[str, int]) -> int:
    """The value of a size as files have it."""
    dim = parse_stored(text)
    if not dim.symbols <= sizes.keys():
        raise FormatError(f"{text!r} has symbols that no argument says")
    return dim.at(sizes)
