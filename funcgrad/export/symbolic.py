"""Sizes with names: polynomials of symbols in shapes, constraints on them, and their values.

`symbolic_shape("b, 2*n")` gives sizes for `ShapeDtypeStruct`s. A call's shapes say what the symbols
are: each has to follow from a size in which it alone is unknown, and is of degree one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core.shapes import ShapeDtypeStruct, SymbolicSize
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tree
from funcgrad.errors import ArgumentError, FormatError

# A product of symbols, each as often as its power says, in order: () is 1.
Monomial = tuple[str, ...]
Sizes = Mapping[str, int]

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|([-+*()]))")
_COMPARISON = re.compile(r"^(.*?)(>=|<=|==)(.*)$")
_HOLDS: dict[str, Callable[[int, int], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
}
_MOST_POWERS = 16


class Dim(SymbolicSize):
    """A size: a polynomial of symbols with integer coefficients.

    >>> b, n = symbolic_shape("b, 2*n + 1")
    >>> b * n, n.at({"n": 3})
    (2*b*n + b, 7)
    """

    __slots__ = ("scope", "terms")

    def __init__(self, terms: Mapping[Monomial, int], scope: SymbolicScope | None = None):
        self.terms = {m: c for m, c in sorted(terms.items(), key=_order) if c}
        self.scope = scope

    @property
    def symbols(self) -> set[str]:
        """The symbols in it."""
        return {name for monomial in self.terms for name in monomial}

    def at(self, sizes: Sizes) -> int:
        """Its value where the symbols have values."""
        total = 0
        for monomial, coefficient in self.terms.items():
            for name in monomial:
                coefficient *= sizes[name]
            total += coefficient
        return total

    def __add__(self, other: Dim | int) -> Dim:
        terms = dict(self.terms)
        for monomial, c in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + c
        return Dim(terms, self.scope)

    def __mul__(self, other: Dim | int) -> Dim:
        terms: dict[Monomial, int] = {}
        for x, a in self.terms.items():
            for y, b in _terms(other).items():
                monomial = tuple(sorted(x + y))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Dim(terms, self.scope)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim | int) -> Dim:
        return self + (-other)

    def __rsub__(self, other: int) -> Dim:
        return -self + other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim | int) and self.terms == _terms(other)

    def __hash__(self) -> int:
        return hash(tuple(self.terms.items()))

    def __repr__(self) -> str:
        text = ""
        for monomial, c in self.terms.items():
            factors = [*([str(abs(c))] if abs(c) != 1 or not monomial else []), *monomial]
            sign = (" - " if c < 0 else " + ") if text else ("-" if c < 0 else "")
            text += sign + "*".join(factors)
        return text or "0"


def _order(term: tuple[Monomial, int]) -> tuple:
    monomial, _ = term
    return -len(monomial), monomial


def _terms(x: Dim | int) -> Mapping[Monomial, int]:
    return x.terms if isinstance(x, Dim) else ({(): x} if x else {})


class SymbolicScope:
    """What symbols mean together: the constraints that hold for them.

    constraints: texts such as "b >= 2", "n <= 4*b", "k == 2*b"; every size is at least 1

    >>> SymbolicScope(["b >= 2"])
    SymbolicScope(b >= 2)
    """

    def __init__(self, constraints: Sequence[str] = ()):
        is_sequence = isinstance(constraints, Sequence) and not isinstance(constraints, str)
        if not is_sequence or not all(isinstance(text, str) for text in constraints):
            raise ArgumentError(
                f"SymbolicScope: constraints are a sequence of texts, got {constraints!r}"
            )
        self.constraints = tuple(map(str.strip, constraints))
        self.parsed = [self._parse(text) for text in self.constraints]

    @staticmethod
    def _parse(text: str) -> tuple[Dim, str, Dim]:
        found = _COMPARISON.match(text)
        if found is None:
            raise ArgumentError(
                f"a constraint compares two sizes by >=, <= or ==, such as 'b >= 2'; got {text!r}"
            )
        left, sign, right = found.groups()
        return parse(left), sign, parse(right)

    def broken(self, sizes: Sizes) -> str | None:
        """The first constraint that doesn't hold; None if all do."""
        for text, (left, sign, right) in zip(self.constraints, self.parsed, strict=True):
            if left.symbols | right.symbols <= sizes.keys() and not _HOLDS[sign](
                left.at(sizes), right.at(sizes)
            ):
                return text
        return None

    def numbers(self) -> set[int]:
        """The constants in it: sizes that are tried are looked for near them."""
        return {abs(c) for a, _, b in self.parsed for d in (a, b) for c in d.terms.values()}

    def __repr__(self) -> str:
        return f"SymbolicScope({', '.join(self.constraints)})"


def is_symbolic_dim(x: Any) -> bool:
    """Whether a size is a symbol, or made of symbols.

    >>> from funcgrad import export
    >>> [export.is_symbolic_dim(n) for n in export.symbolic_shape("b, 3")]
    [True, False]
    """
    return isinstance(x, Dim)


def parse(text: str, scope: SymbolicScope | None = None) -> Dim:
    """The size that a text says; ArgumentError where it says none.

    >>> parse("2*(b + 1) - b")
    b + 2
    """
    tokens: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            break
        tokens.append(found[0].strip())
        at = found.end()
    if at < len(text) or not tokens:
        raise _unread(text)
    reader = _Reader(text, tokens, scope)
    found_dim = reader.sum()
    if reader.at < len(tokens):
        raise _unread(text)
    return found_dim


def _unread(text: str) -> ArgumentError:
    return ArgumentError(
        f"{text!r} is no size: sizes are made of names and integers by +, - and *, such as '2*b'"
    )


class _Reader:
    """Reads sums of products, from the left."""

    def __init__(self, text: str, tokens: list[str], scope: SymbolicScope | None):
        self.text, self.tokens, self.scope, self.at = text, tokens, scope, 0

    def next(self, wanted: str = "") -> str:
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if wanted and token not in wanted:
            return ""
        self.at += bool(token)
        return token

    def sum(self) -> Dim:
        total = self.product()
        while sign := self.next("+-"):
            term = self.product()
            total = total + term if sign == "+" else total - term
        return total

    def product(self) -> Dim:
        value = self.factor()
        while self.next("*"):
            value = value * self.factor()
            if any(len(m) > _MOST_POWERS for m in value.terms):
                raise _unread(self.text)
        return value

    def factor(self) -> Dim:
        token = self.next()
        if token == "-":
            return -self.factor()
        if token == "(" and len(self.tokens) < 200:
            inner = self.sum()
            if not self.next(")"):
                raise _unread(self.text)
            return inner
        if token.isdecimal() and len(token) < 19:
            return Dim({(): int(token)}, self.scope)
        if token.isidentifier():
            return Dim({(token,): 1}, self.scope)
        raise _unread(self.text)


def symbolic_shape(
    shape_spec: str | None,
    *,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
    like: Sequence[int | None] | None = None,
) -> tuple:
    """A shape with symbols: integers, and `Dim`s for sizes that a call's arguments will say.

    shape_spec: sizes, such as "b, 2*n, 3"; with `like`, "_" stands for the size that it has there
        and "..." for all that remain
    constraints: what holds for the symbols, such as "b >= 2"; or a scope that says so. Symbols of
        one exported function are of one scope, so that shapes made apart need a common one.

    >>> from funcgrad import export
    >>> export.symbolic_shape("b, 2*n, 3")
    (b, 2*n, 3)
    >>> export.symbolic_shape("b, ...", like=(10, 4, 5))
    (b, 4, 5)
    """
    if scope is not None and constraints:
        raise ArgumentError("symbolic_shape: give constraints or a scope, not both")
    if not isinstance(scope, SymbolicScope | None) or not isinstance(shape_spec, str | None):
        raise ArgumentError(
            "symbolic_shape takes sizes as one text, such as 'b, 2*n', and a SymbolicScope as "
            f"scope, got {shape_spec!r} and {scope!r}"
        )
    scope = scope or SymbolicScope(constraints)
    spec = "..." if shape_spec is None else shape_spec.strip().removeprefix("(").removesuffix(")")
    parts = [part.strip() for part in spec.split(",")] if spec else []
    if parts and not parts[-1]:
        parts.pop()
    known = list(like) if like is not None else None
    if "..." in parts:
        i = parts.index("...")
        if known is None or "..." in parts[i + 1 :]:
            raise ArgumentError(f"symbolic_shape: {shape_spec!r}: '...' stands once, with like=")
        parts[i : i + 1] = ["_"] * (len(known) - len(parts) + 1)
    if known is not None and len(known) != len(parts):
        raise ArgumentError(f"symbolic_shape: {shape_spec!r} has not as many sizes as like={like}")
    return tuple(
        _size(part, scope, known[i] if known is not None else None) for i, part in enumerate(parts)
    )


def _size(text: str, scope: SymbolicScope, known: int | None) -> Dim | int:
    if text == "_":
        if known is None:
            raise ArgumentError("symbolic_shape: '_' needs a size in like=")
        return known
    dim = parse(text, scope)
    return dim if dim.symbols else dim.at({})


def symbolic_args_specs(
    args: Tree,
    shapes_specs: Tree,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
) -> Tree:
    """`ShapeDtypeStruct`s like the arrays in `args`, with shapes from texts as of `symbolic_shape`.

    shapes_specs: a text or None ("...") for each array, or a tree that is a prefix of args

    >>> from funcgrad import export
    >>> export.symbolic_args_specs((fnp.ones((8, 3)), fnp.ones(8)), ("b, _", "b"))
    (ShapeDtypeStruct(shape=(b, 3), dtype=float32), ShapeDtypeStruct(shape=(b,), dtype=float32))
    """
    scope = scope or SymbolicScope(constraints)
    leaves, treedef = tree.flatten(args)
    if isinstance(shapes_specs, str | None):
        specs = [shapes_specs] * len(leaves)
    else:
        specs = tree.flatten_axes("export.symbolic_args_specs: shapes_specs", treedef, shapes_specs)
    avals = [x.aval if isinstance(x, ShapeDtypeStruct) else aval_of(x) for x in leaves]
    return treedef.unflatten(
        [
            ShapeDtypeStruct(symbolic_shape(spec, scope=scope, like=a.shape), a.dtype)
            for spec, a in zip(specs, avals, strict=True)
        ]
    )


def solve(equations: Sequence[tuple[Dim, int]]) -> dict[str, int]:
    """The symbols that follow from sizes that are known, one after the other.

    >>> solve([(parse("2*b + n"), 10), (parse("n"), 4)])
    {'n': 4, 'b': 3}
    """
    sizes: dict[str, int] = {}
    left = list(equations)
    while True:
        rest = []
        for dim, value in left:
            unknown = dim.symbols - sizes.keys()
            found = _root(dim, value, sizes, *unknown) if len(unknown) == 1 else None
            if found is not None:
                sizes[next(iter(unknown))] = found
            elif unknown:
                rest.append((dim, value))
        if len(rest) == len(left) or not rest:
            return sizes
        left = rest


def _root(dim: Dim, value: int, sizes: Sizes, name: str) -> int | None:
    """The value of a symbol that alone is unknown, if it is of degree one and an integer."""
    if any(monomial.count(name) > 1 for monomial in dim.terms):
        return None
    at = [dim.at({**sizes, name: x}) for x in (0, 1)]
    slope = at[1] - at[0]
    return (value - at[0]) // slope if slope and (value - at[0]) % slope == 0 else None


def parse_stored(text: Any) -> Dim:
    """A size as files have it; FormatError where it is none."""
    try:
        return parse(text)
    except (ArgumentError, TypeError, AttributeError):
        raise FormatError(f"{str(text)[:80]!r} is no size") from None
