"""Simplification of programs before a backend sees them.

Calls of nested programs are inlined; equal equations are computed once; operations that do nothing
(a conversion to the same dtype, adding 0 to an integer, a transpose of a transpose) disappear; dead
equations are dropped. Floating-point meaning is never changed (`ops.identities`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, sub_jaxprs
from funcgrad.core.primitive import NoRule, Primitive, exact_params
from funcgrad.transforms.passes.dce import dce_eqns, has_effect


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
    inlined = inline_calls(jaxpr)
    builder = _Builder(barriers)
    for eqn in inlined.eqns:
        builder.add(eqn)
    outs = [builder.read(a) for a in inlined.outs]
    if any(is_mark(e.prim) for e in builder.eqns):
        return _without_marks(Jaxpr(inlined.ins, builder.eqns, outs, jaxpr.names), barriers)
    return Jaxpr(inlined.ins, dce_eqns(builder.eqns, outs), outs, jaxpr.names)


def inline_calls(jaxpr: Jaxpr, which: Callable[[Primitive], bool] = is_call) -> Jaxpr:
    """The program with the programs of nested calls in place of the calls."""
    if not any(which(e.prim) for e in jaxpr.eqns):
        return jaxpr
    env: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    outs = _inline(jaxpr, env, eqns, (), which)
    return Jaxpr(jaxpr.ins, eqns, outs, jaxpr.names)


def _inline(
    jaxpr: Jaxpr, env: dict, eqns: list[Eqn], scopes: tuple[str, ...], which: Callable
) -> list[Atom]:
    """Append the equations of a program, its inputs bound in env; gives its outputs."""

    def read(atom: Atom) -> Atom:
        return env.get(atom, atom) if isinstance(atom, Var) else atom

    for eqn in jaxpr.eqns:
        ins = [read(a) for a in eqn.ins]
        if which(eqn.prim):
            inner = eqn.params["jaxpr"]
            if not isinstance(inner, Jaxpr):  # a program that is only made when it is wanted
                inner = inner([a.aval for a in ins])
            # A program may be called twice: each call gets variables of its own.
            fresh = dict(zip(inner.ins, ins, strict=True))
            results = _inline(inner, fresh, eqns, scopes + eqn.scopes, which)
            env.update(zip(eqn.outs, results, strict=True))
        else:
            outs = [Var(v.aval) for v in eqn.outs]
            env.update(zip(eqn.outs, outs, strict=True))
            eqns.append(eqn.replace(ins=tuple(ins), outs=tuple(outs), scopes=scopes + eqn.scopes))
    return [read(a) for a in jaxpr.outs]


def _without_marks(jaxpr: Jaxpr, barriers: bool) -> Jaxpr:
    """The program without marks (names, and `barriers` if they don't stay) that have done their
    work."""
    same: dict[Var, Atom] = {}
    eqns = []
    for eqn in jaxpr.eqns:
        ins = tuple(same.get(a, a) if isinstance(a, Var) else a for a in eqn.ins)
        if is_mark(eqn.prim) and not (barriers and eqn.prim.multiple):
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
        rule = eqn.prim.simplify
        same = rule(eqn, self.made_by) if rule else None
        if isinstance(same, Eqn):
            eqn = same
        elif same is not None:
            self.same[eqn.outs[0]] = same
            return
        key = None if has_effect(eqn) or eqn.prim.repeated else _key(eqn)
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
