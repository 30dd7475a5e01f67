"""Simplification of programs before a backend sees them.

Calls of nested programs are inlined; equal equations are computed once; operations that do nothing
(a conversion to the same dtype, adding 0 to an integer, a transpose of a transpose) disappear; dead
equations are dropped. Floating-point meaning is never changed: x + 0.0 stays, as -0.0 + 0.0 is 0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.dce import has_effect
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.primitive import NoRule, Primitive, exact_params
from funcgrad.core.rewriting import Writer


def is_call(prim: Primitive) -> bool:
    """Whether an op's program may take its place."""
    return prim.call


def is_mark(prim: Primitive) -> bool:
    """Whether an op is the identity, to derivatives too."""
    return prim.identity and not isinstance(prim.transpose, NoRule)


def simplify(jaxpr: Jaxpr, barriers: bool = False) -> Jaxpr:
    """The same program with less to do. Programs in parameters are simplified too.

    barriers: barriers to sharing stay, so that the result may be simplified once more.
    """
    return jaxpr.derive(("simplified", barriers), lambda: _simplify(jaxpr, barriers))


def _simplify(jaxpr: Jaxpr, barriers: bool) -> Jaxpr:
    slim = _Simplifier(barriers).write(jaxpr)
    if any(is_mark(e.prim) for e in slim.eqns):
        return _Unmarked(barriers).write(slim)
    return slim


def inline_calls(jaxpr: Jaxpr, which: Callable[[Primitive], bool] = is_call) -> Jaxpr:
    """The program with the programs of nested calls in place of the calls."""
    return _Inliner(which).write(jaxpr) if any(which(e.prim) for e in jaxpr.eqns) else jaxpr


class _Inliner(Writer):
    def __init__(self, which: Callable[[Primitive], bool]):
        super().__init__()
        self.which = which

    def equation(self, eqn: Eqn, ins: list) -> None:
        (self.inline if self.which(eqn.prim) else self.keep)(eqn, ins)


class _Unmarked(Writer):
    """Without marks (names, and `barriers` if they don't stay) that have done their work."""

    def __init__(self, barriers: bool):
        super().__init__()
        self.barriers = barriers

    def equation(self, eqn: Eqn, ins: list) -> None:
        mark = is_mark(eqn.prim) and not (self.barriers and eqn.prim.multiple)
        (self.define if mark else self.keep)(eqn, ins)


class _Simplifier(Writer):
    """Calls inlined, each equation simplified and looked up among the earlier ones."""

    def __init__(self, barriers: bool) -> None:
        super().__init__()
        self.barriers = barriers
        self.known: dict[Any, tuple[Var, ...]] = {}
        self.made_by: dict[Var, Eqn] = {}

    def within(self, jaxpr: Jaxpr) -> Jaxpr:
        return simplify(jaxpr, self.barriers)

    def equation(self, eqn: Eqn, ins: list) -> None:
        if eqn.prim.call:
            self.inline(eqn, ins)
            return
        new = self.renewed(eqn, ins)
        rule = _RULES.get(new.prim.name)
        same = rule(new, self.made_by) if rule else None
        if isinstance(same, Eqn):
            new = same
        elif same is not None:
            self.define(eqn, [same])
            return
        key = None if new.prim.repeated or has_effect(new) else _key(new)
        if key is not None:
            known = self.known.setdefault(key, new.outs)
            if known is not new.outs:
                self.define(eqn, known)
                return
        self.eqns.append(new)
        for v in new.outs:
            self.made_by[v] = new


def _key(eqn: Eqn) -> Any:
    """What makes two equations equal, or None where they can't be compared."""
    ins = tuple(a if isinstance(a, Var) else (a.value.tobytes(), a.aval) for a in eqn.ins)
    key = (eqn.prim, ins, exact_params(eqn.params))
    try:
        hash(key)
    except TypeError:
        return None
    return key


# ---- rules: an atom that equals the equation's result, a simpler equation, or None


def _literal_is(atom: Atom, value: Any) -> bool:
    return isinstance(atom, Literal) and atom.value == value


def _is_one(atom: Atom, made_by: dict) -> bool:
    """Whether all elements are known to be 1: a literal, or one that is broadcast.

    Not of complex numbers: their products and quotients with 1 change infinities and signs of 0.
    """
    if atom.aval.dtype.kind == "c":
        return False
    eqn = made_by.get(atom) if isinstance(atom, Var) else None
    if eqn is not None and eqn.prim.name == "broadcast_in_dim":
        atom = eqn.ins[0]
    return _literal_is(atom, 1)


def _same_type(atom: Atom, out: Var) -> bool:
    return atom.aval.shape == out.aval.shape and atom.aval.dtype == out.aval.dtype


def _times_one(eqn: Eqn, made_by: dict) -> Atom | None:
    x, y = eqn.ins
    for a, b in ((x, y), (y, x)):
        if _is_one(b, made_by) and _same_type(a, eqn.outs[0]):
            return a
    return None


def _is_negative(atom: Atom) -> bool:
    """Whether the sign bits of a literal are set, that of the imaginary part too."""
    if not isinstance(atom, Literal):
        return False
    value = complex(atom.value)
    parts = (value.real, value.imag) if atom.aval.dtype.kind == "c" else (value.real,)
    return bool(np.all(np.signbit(parts)))


def _plus_zero(eqn: Eqn, made_by: dict) -> Atom | None:
    x, y = eqn.ins
    for a, b in ((x, y), (y, x)):
        exact = not dtypes.is_inexact(b.aval.dtype) or _is_negative(b)
        if _literal_is(b, 0) and exact and _same_type(a, eqn.outs[0]):
            return a
    return None


def _over_one(eqn: Eqn, made_by: dict) -> Atom | None:
    x, y = eqn.ins
    return x if _is_one(y, made_by) and _same_type(x, eqn.outs[0]) else None


def _no_conversion(eqn: Eqn, made_by: dict) -> Atom | None:
    return eqn.ins[0] if _same_type(eqn.ins[0], eqn.outs[0]) else None


def _no_transpose(eqn: Eqn, made_by: dict) -> Atom | Eqn | None:
    x, permutation = eqn.ins[0], eqn.params["permutation"]
    if permutation == tuple(range(len(permutation))):
        return x
    inner = made_by.get(x) if isinstance(x, Var) else None
    if inner is not None and inner.prim is eqn.prim:
        first = inner.params["permutation"]
        both = tuple(first[p] for p in permutation)
        if both == tuple(range(len(both))):
            return inner.ins[0]
        return eqn.replace(ins=inner.ins, params={"permutation": both})
    return None


def _no_axes(eqn: Eqn, made_by: dict) -> Atom | None:
    return eqn.ins[0] if eqn.params["axes"] == () else None


def _double_neg(eqn: Eqn, made_by: dict) -> Atom | None:
    inner = made_by.get(eqn.ins[0]) if isinstance(eqn.ins[0], Var) else None
    return inner.ins[0] if inner is not None and inner.prim is eqn.prim else None


_RULES: dict[str, Callable[[Eqn, dict], Atom | Eqn | None]] = {
    "mul": _times_one,
    "div": _over_one,
    "add": _plus_zero,
    "neg": _double_neg,
    "convert_element_type": _no_conversion,
    "reshape": _no_conversion,
    "broadcast_in_dim": _no_conversion,
    "transpose": _no_transpose,
    "reduce_sum": _no_axes,
    "reduce_max": _no_axes,
    "reduce_min": _no_axes,
}
