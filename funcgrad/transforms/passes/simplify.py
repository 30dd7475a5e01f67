"""Simplification of programs before a backend sees them.

Calls of nested programs are inlined; equal equations are computed once; operations that do nothing
(a conversion to the same dtype, adding 0 to an integer, a transpose of a transpose) disappear, and
so do transposes around convolutions (`turned`); dead equations are dropped. Floating-point meaning
is never changed (`ops.identities`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.core.dce import has_effect
from funcgrad.core.ir import Eqn, Jaxpr, Var
from funcgrad.core.primitive import NoRule, Primitive, exact_params
from funcgrad.core.rewriting import Writer
from funcgrad.transforms.passes.turned import without_transposes


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
    slim = without_transposes(_Simplifier(barriers).write(jaxpr))
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
        rule = new.prim.simplify
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


def _key(eqn: Eqn) -> tuple | None:
    """What makes two equations equal, or None where they can't be compared."""
    ins = tuple(a if isinstance(a, Var) else (a.value.tobytes(), a.aval) for a in eqn.ins)
    key = (eqn.prim, ins, exact_params(eqn.params))
    try:
        hash(key)
    except TypeError:
        return None
    return key
