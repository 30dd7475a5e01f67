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
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var, sub_jaxprs
from funcgrad.core.primitive import exact_params
from funcgrad.transforms.dce import dce_eqns, has_effect

INLINED = frozenset(
    {"jit", "custom_jvp_call", "custom_vjp_call", "custom_vjp_tangent", "checkpoint"}
)
TRANSPARENT = frozenset({"optimization_barrier", "name"})
# An array that is gathered twice need not be kept whole in between.
REPEATED = frozenset({"all_gather"})


def simplify(jaxpr: Jaxpr, barriers: bool = False) -> Jaxpr:
    """The same program with less to do. Programs in parameters are simplified too.

    barriers: barriers to sharing stay, so that the result may be simplified once more.
    """
    return jaxpr.derive(("simplified", barriers), lambda: _simplify(jaxpr, barriers))


def _simplify(jaxpr: Jaxpr, barriers: bool) -> Jaxpr:
    inlined = inline_calls(jaxpr)
    builder = _Builder(barriers)
    for eqn in inlined.eqns:
        builder.add(eqn)
    outs = [builder.read(a) for a in inlined.outs]
    marks = TRANSPARENT - {"optimization_barrier"} if barriers else TRANSPARENT
    if any(e.prim.name in marks for e in builder.eqns):
        return _without_markers(Jaxpr(inlined.ins, builder.eqns, outs, jaxpr.names), marks)
    return Jaxpr(inlined.ins, dce_eqns(builder.eqns, outs), outs, jaxpr.names)


def inline_calls(jaxpr: Jaxpr, names: frozenset[str] = INLINED) -> Jaxpr:
    """The program with the programs of nested calls in place of the calls."""
    if not any(e.prim.name in names for e in jaxpr.eqns):
        return jaxpr
    env: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    outs = _inline(jaxpr, env, eqns, (), names)
    return Jaxpr(jaxpr.ins, eqns, outs, jaxpr.names)


def _inline(
    jaxpr: Jaxpr, env: dict, eqns: list[Eqn], scopes: tuple[str, ...], names: frozenset[str]
) -> list[Atom]:
    """Append the equations of a program, its inputs bound in env; gives its outputs."""

    def read(atom: Atom) -> Atom:
        return env.get(atom, atom) if isinstance(atom, Var) else atom

    for eqn in jaxpr.eqns:
        ins = [read(a) for a in eqn.ins]
        if eqn.prim.name in names:
            inner = eqn.params["jaxpr"]
            if not isinstance(inner, Jaxpr):  # a program that is only made when it is wanted
                inner = inner([a.aval for a in ins])
            # A program may be called twice: each call gets variables of its own.
            fresh = dict(zip(inner.ins, ins, strict=True))
            results = _inline(inner, fresh, eqns, scopes + eqn.scopes, names)
            env.update(zip(eqn.outs, results, strict=True))
        else:
            outs = [Var(v.aval) for v in eqn.outs]
            env.update(zip(eqn.outs, outs, strict=True))
            eqns.append(eqn.replace(ins=tuple(ins), outs=tuple(outs), scopes=scopes + eqn.scopes))
    return [read(a) for a in jaxpr.outs]


def _without_markers(jaxpr: Jaxpr, marks: frozenset[str]) -> Jaxpr:
    """The program without markers (barriers, names) that have done their work."""
    same: dict[Var, Atom] = {}
    eqns = []
    for eqn in jaxpr.eqns:
        ins = tuple(same.get(a, a) if isinstance(a, Var) else a for a in eqn.ins)
        if eqn.prim.name in marks:
            same.update(zip(eqn.outs, ins, strict=True))
        else:
            eqns.append(eqn.replace(ins=ins))
    outs = [same.get(a, a) if isinstance(a, Var) else a for a in jaxpr.outs]
    return Jaxpr(jaxpr.ins, dce_eqns(eqns, outs), outs, jaxpr.names)


class _Builder:
    """Equations added one by one, each simplified and looked up among the earlier ones."""

    def __init__(self, barriers: bool) -> None:
        self.barriers = barriers
        self.eqns: list[Eqn] = []
        self.same: dict[Var, Atom] = {}
        self.known: dict[Any, tuple[Var, ...]] = {}
        self.made_by: dict[Var, Eqn] = {}

    def read(self, atom: Atom) -> Atom:
        return self.same.get(atom, atom) if isinstance(atom, Var) else atom

    def add(self, eqn: Eqn) -> None:
        eqn = eqn.replace(ins=tuple(self.read(a) for a in eqn.ins))
        if any(True for _ in sub_jaxprs(eqn)):
            eqn = eqn.replace(params={k: self._param(p) for k, p in eqn.params.items()})
        rule = _RULES.get(eqn.prim.name)
        same = rule(eqn, self.made_by) if rule else None
        if isinstance(same, Eqn):
            eqn = same
        elif same is not None:
            self.same[eqn.outs[0]] = same
            return
        key = None if has_effect(eqn) or eqn.prim.name in REPEATED else _key(eqn)
        if key is not None and key in self.known:
            self.same.update(zip(eqn.outs, self.known[key], strict=True))
            return
        if key is not None:
            self.known[key] = eqn.outs
        self.eqns.append(eqn)
        self.made_by.update(dict.fromkeys(eqn.outs, eqn))

    def _param(self, param: Any) -> Any:
        if isinstance(param, Jaxpr):
            return simplify(param, self.barriers)
        if isinstance(param, tuple) and any(isinstance(p, Jaxpr) for p in param):
            return tuple(map(self._param, param))
        return param


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


def _one_case(eqn: Eqn, made_by: dict) -> Atom | None:
    """What is selected where all cases are the same, as those that only derivatives tell apart."""
    case, *others = eqn.ins[1:]
    same = _same_type(case, eqn.outs[0]) and all(other is case for other in others)
    return case if same else None


_RULES: dict[str, Callable[[Eqn, dict], Atom | Eqn | None]] = {
    "mul": _times_one,
    "div": _over_one,
    "add": _plus_zero,
    "neg": _double_neg,
    "convert_element_type": _no_conversion,
    "reshape": _no_conversion,
    "select_n": _one_case,
    "stop_gradient": _no_conversion,
    "broadcast_in_dim": _no_conversion,
    "transpose": _no_transpose,
    "reduce_sum": _no_axes,
    "reduce_max": _no_axes,
    "reduce_min": _no_axes,
}
