"""The policy of mixed precision as a rule for equations.

It acts on what a program computes in float32, and on nothing else: dtypes that a user chose stay.
A value may be narrow between two operations of a program; where one leaves it (for a loop's body, a
derivative rule, the caller), it has the type that it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from funcgrad import dtypes
from funcgrad.core.ir import Eqn, Jaxpr, Literal, sub_jaxprs
from funcgrad.core.trace import aval_of
from funcgrad.core.types import DTypeLike, Rewritten, Value
from funcgrad.errors import ArgumentError, DTypeError
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.elementwise.convert import convert_element_type, convert_element_type_p
from funcgrad.transforms.precision.float8 import E4M3, float8_dot
from funcgrad.transforms.precision.lists import (
    BFLOAT16,
    COMPUTE,
    FLOAT32,
    KEEP,
    PRODUCTS,
    may_be_narrow,
    usual,
)

Rules = Mapping[str, str] | Sequence[tuple[str, str]]
WIDE = np.dtype(np.float32)
_COMPUTE = ("bfloat16", "float16", "float32", E4M3.name)
_ACCUMULATE = ("float32", "float64")
_ACTIONS = (COMPUTE, FLOAT32, KEEP, BFLOAT16)
_NARROW = (COMPUTE, BFLOAT16)


@dataclass(frozen=True)
class Policy:
    """What takes the place of an equation in mixed precision; see `autocast`.

    compute: the narrow dtype, bfloat16 beside products in float8
    eights: whether matrix products are in float8
    """

    compute: np.dtype
    accumulate: np.dtype = WIDE
    rules: tuple[tuple[str, str], ...] = ()
    eights: bool = False

    @staticmethod
    def of(compute: DTypeLike, accumulate: DTypeLike, rules: Rules | None) -> Policy:
        """The policy that a user's arguments say, checked.

        >>> Policy.of("bfloat16", "float32", {"exp": "compute"}).rules
        (('exp', 'compute'),)
        """
        narrow, sums = dtypes.canonical(compute), dtypes.canonical(accumulate)
        for name, dtype, known in (
            ("compute", narrow, _COMPUTE),
            ("accumulate", sums, _ACCUMULATE),
        ):
            if dtype.name not in known:
                raise DTypeError(
                    f"autocast: {name} must be one of {', '.join(known)}, got {dtype.name}"
                )
        eights, listed = narrow == E4M3, _checked(rules)
        if eights and sums != WIDE:
            raise DTypeError(
                f"autocast: products of {E4M3.name} are summed in float32, so accumulate must be "
                f"float32, got {sums.name}"
            )
        for rule in () if eights else listed:
            if rule[1] == BFLOAT16:
                raise ArgumentError(
                    f'autocast: rules may say "bfloat16" beside compute={E4M3.name!r} alone; with '
                    f"compute={narrow.name!r}, got {rule}"
                )
        return Policy(dtypes.canonical(BFLOAT16) if eights else narrow, sums, listed, eights)

    def check(self, jaxpr: Jaxpr) -> None:
        """Raise where a rule matches no operation of a program, or asks for what can't be."""
        if not self.rules:
            return
        found = list(_equations(jaxpr))
        for pattern, action in self.rules:
            matched = [e for e in found if matches(pattern, e)]
            if not matched:
                ops = sorted({names(e)[0] for e in found})
                scopes = sorted({path for e in found for path in names(e)[1:]})
                raise ArgumentError(
                    f"autocast: the rule {pattern!r} matches nothing; the function has the ops "
                    f"{', '.join(ops)} and the scopes {', '.join(scopes) or '(none)'}"
                )
            if action in _NARROW and not any(may_be_narrow(e.prim) for e in matched):
                raise ArgumentError(
                    f"autocast: the rule {pattern!r} asks for {self.compute}, in which none of "
                    f"what it matches can be computed: {', '.join({names(e)[0] for e in matched})}"
                )

    def action(self, eqn: Eqn) -> str:
        """What to do with an operation: what the first rule that matches says, else the lists."""
        for pattern, action in self.rules:
            if matches(pattern, eqn):
                return action if action not in _NARROW or may_be_narrow(eqn.prim) else FLOAT32
        return usual(eqn.prim)

    def __call__(self, eqn: Eqn, values: list) -> Rewritten | None:
        if eqn.prim is convert_element_type_p:
            return self._converted(eqn, values[0])
        # What is of another dtype is so by the user's choice, and may have no product with others.
        inexact = [a.aval.dtype for a in eqn.ins if dtypes.is_inexact(a.aval.dtype)]
        if WIDE not in inexact or not {WIDE, self.compute}.issuperset(inexact):
            return None
        action = self.action(eqn)
        if action == FLOAT32:
            return None
        if action in _NARROW and eqn.prim in PRODUCTS:
            if self.eights and action == COMPUTE and self._has_eights(eqn):
                return self._product_of_eights(eqn, values)
            return self._product(eqn, values)
        if action == KEEP and not self._comes_narrow(eqn, values):
            return None
        wide = [a.aval.dtype == WIDE for a in eqn.ins]
        return eqn.prim.bind(
            *(self._narrow(x) if w else x for x, w in zip(values, wide, strict=True)), **eqn.params
        )

    def _narrow(self, x: Value) -> Value:
        return convert_element_type(x, self.compute)

    def _product(self, eqn: Eqn, values: list) -> Rewritten:
        """A product of narrow factors, whose sums are wide: all ops that are products see to it."""
        factors, dtype = PRODUCTS[eqn.prim]
        low = [
            convert_element_type(x, self.compute if i in factors else WIDE)
            if a.aval.dtype == WIDE
            else x
            for i, (a, x) in enumerate(zip(eqn.ins, values, strict=True))
        ]
        if dtype and eqn.params[dtype] is None and self.accumulate != WIDE:
            params = {**eqn.params, dtype: self.accumulate}
            return self._narrow(eqn.prim.bind(*low, **params))
        return eqn.prim.bind(*low, **eqn.params)

    def _has_eights(self, eqn: Eqn) -> bool:
        """Whether it is a matrix product of floats whose sums float32 holds."""
        if eqn.prim is not dot_general_p:
            return False
        wanted = eqn.params["preferred_element_type"]
        narrow = wanted is None or wanted == WIDE or wanted.itemsize < WIDE.itemsize
        return narrow and all(dtypes.is_inexact(a.aval.dtype) for a in eqn.ins)

    def _product_of_eights(self, eqn: Eqn, values: list) -> Rewritten:
        """A matrix product in float8, whose result is narrow where nothing else is asked for."""
        dtype = eqn.params["preferred_element_type"] or self.compute
        lhs, rhs = values
        return float8_dot(lhs, rhs, eqn.params["dimension_numbers"], dtype)

    def _comes_narrow(self, eqn: Eqn, values: list) -> bool:
        """Whether float32 operands have become narrow, all but numbers, which are of any dtype."""
        decide = [
            x
            for a, x in zip(eqn.ins, values, strict=True)
            if a.aval.dtype == WIDE and not self._is_number(a)
        ]
        return bool(decide) and all(aval_of(x).dtype == self.compute for x in decide)

    def _is_number(self, atom: Rewritten) -> bool:
        """Whether an operand stands for a number of Python, which the narrow dtype can hold."""
        if not isinstance(atom, Literal):
            return atom.aval.weak_type
        value = float(atom.value)
        size, info = abs(value), dtypes.finfo(self.compute)
        return not np.isfinite(value) or size == 0 or float(info.tiny) <= size <= float(info.max)

    def _converted(self, eqn: Eqn, x: Value) -> Rewritten | None:
        """A conversion that the user wrote, of a value that may have become narrow."""
        if aval_of(x).dtype == eqn.ins[0].aval.dtype:
            return None
        if eqn.ins[0].aval.dtype == eqn.params["new_dtype"]:
            return x  # it only made a type strong
        return convert_element_type(x, eqn.params["new_dtype"])


LEAF = "leaf "  # before a leaf's name, as the scope of products with it


def names(eqn: Eqn) -> list[str]:
    """What rules may call an operation: by its op, by each `named_scope` around it, and by the leaf
    of parameters that it multiplies with."""
    leaves = [s.removeprefix(LEAF) for s in eqn.scopes if s.startswith(LEAF)]
    scopes = [s for s in eqn.scopes if not s.startswith(LEAF)]
    paths = ("/".join(scopes[: i + 1]) for i in range(len(scopes)))
    return [eqn.prim.name, *paths, *leaves]


def matches(pattern: str, eqn: Eqn) -> bool:
    """Whether a pattern names an operation.

    >>> import funcgrad as fg
    >>> with fg.named_scope("head"):
    ...     (eqn,) = fg.make_jaxpr(fnp.sin)(1.0).jaxpr.eqns
    >>> [matches(p, eqn) for p in ("sin", "s*", "head", "he")]
    [True, True, True, False]
    """
    return any(fnmatchcase(name, pattern) for name in names(eqn))


def _equations(jaxpr: Jaxpr) -> Iterable[Eqn]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in sub_jaxprs(eqn):
            yield from _equations(inner)


def _checked(rules: Rules | None) -> tuple[tuple[str, str], ...]:
    if rules is None:
        return ()
    listed = rules.items() if isinstance(rules, Mapping) else rules
    for rule in listed:
        pair = rule if isinstance(rule, tuple | list) and len(rule) == 2 else (None, None)
        if not isinstance(pair[0], str) or pair[1] not in _ACTIONS:
            raise ArgumentError(
                "autocast: rules must be pairs of a pattern (the name of an op, or the path of a "
                f'named_scope) and "compute", "float32", "keep" or "bfloat16", got {rule!r}'
            )
    return tuple((pattern, action) for pattern, action in listed)
