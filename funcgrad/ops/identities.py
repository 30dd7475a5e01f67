"""What an equation may be simplified to: the rules `simplify` that ops state.

Floating-point meaning is never changed: x + 0.0 stays, as -0.0 + 0.0 is 0.0. Nor are products and
quotients of complex numbers with 1, which change infinities and signs of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from funcgrad import dtypes
from funcgrad.core.ir import Atom, Eqn, Literal, Var

Made = Mapping[Var, Eqn]


def _of(atom: Atom, made_by: Made) -> Eqn | None:
    return made_by.get(atom) if isinstance(atom, Var) else None


def _same_type(atom: Atom, out: Var) -> bool:
    return atom.aval.shape == out.aval.shape and atom.aval.dtype == out.aval.dtype


def _is_one(atom: Atom, made_by: Made) -> bool:
    """Whether all elements are known to be 1: a literal, or a view of one."""
    eqn = _of(atom, made_by)
    if eqn is not None and eqn.prim.view is not None:
        atom = eqn.ins[0]
    return isinstance(atom, Literal) and atom.value == 1 and atom.aval.dtype.kind != "c"


def _is_zero(atom: Atom) -> bool:
    """Whether it is a literal 0 that changes no sum: of floats, one with its sign bits set."""
    if not isinstance(atom, Literal) or atom.value != 0:
        return False
    value = complex(atom.value)
    parts = (value.real, value.imag) if atom.aval.dtype.kind == "c" else (value.real,)
    return not dtypes.is_inexact(atom.aval.dtype) or bool(np.all(np.signbit(parts)))


def _other(eqn: Eqn, is_neutral: Callable[[Atom], bool]) -> Atom | None:
    x, y = eqn.ins
    found = (a for a, b in ((x, y), (y, x)) if is_neutral(b) and _same_type(a, eqn.outs[0]))
    return next(found, None)


def times_one(eqn: Eqn, made_by: Made) -> Atom | None:
    """Of a product with 1, the other factor."""
    return _other(eqn, lambda b: _is_one(b, made_by))


def plus_zero(eqn: Eqn, made_by: Made) -> Atom | None:
    """Of a sum with 0, the other term."""
    return _other(eqn, _is_zero)


def over_one(eqn: Eqn, made_by: Made) -> Atom | None:
    """Of a quotient by 1, the dividend."""
    x, y = eqn.ins
    return x if _is_one(y, made_by) and _same_type(x, eqn.outs[0]) else None


def undone(eqn: Eqn, made_by: Made) -> Atom | None:
    """Of an op that undoes itself and is done twice, the operand."""
    inner = _of(eqn.ins[0], made_by)
    return inner.ins[0] if inner is not None and inner.prim is eqn.prim else None


def same_type(eqn: Eqn, made_by: Made) -> Atom | None:
    """The operand, where an op that only changes types gives its type."""
    return eqn.ins[0] if _same_type(eqn.ins[0], eqn.outs[0]) else None


def no_axes(eqn: Eqn, made_by: Made) -> Atom | None:
    """Of a reduction over no axes, the operand."""
    return eqn.ins[0] if eqn.params["axes"] == () else None


def same_order(eqn: Eqn, made_by: Made) -> Atom | Eqn | None:
    """Of a permutation of axes, the operand where none moves; of two, one."""
    x, permutation = eqn.ins[0], eqn.params["permutation"]
    inner = _of(x, made_by)
    if inner is not None and inner.prim is eqn.prim:
        first = inner.params["permutation"]
        x, permutation = inner.ins[0], tuple(first[p] for p in permutation)
        eqn = eqn.replace(ins=inner.ins, params={"permutation": permutation})
    elif permutation != tuple(range(len(permutation))):
        return None
    return x if permutation == tuple(range(len(permutation))) else eqn
