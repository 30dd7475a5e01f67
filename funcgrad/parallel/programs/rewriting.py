"""What passes over per-device programs share: who makes and uses what, and programs in programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, sub_jaxprs
from funcgrad.core.staging import JaxprTrace, JaxprTracer


def everywhere(jaxpr: Jaxpr, each: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
    """The program, and the programs in its equations at any depth, each rewritten."""

    def param(p: Any) -> Any:
        if isinstance(p, Jaxpr):
            return everywhere(p, each)
        if isinstance(p, tuple) and any(isinstance(q, Jaxpr) for q in p):
            return tuple(map(param, p))
        return p

    def inside(eqn: Eqn) -> Eqn:
        if any(True for _ in sub_jaxprs(eqn)):
            return eqn.replace(params={k: param(p) for k, p in eqn.params.items()})
        return eqn

    return each(Jaxpr(jaxpr.ins, [inside(e) for e in jaxpr.eqns], jaxpr.outs, jaxpr.names))


def makers(jaxpr: Jaxpr) -> dict[Var, int]:
    """For each variable but the inputs, which equation makes it."""
    return {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outs}


def uses(jaxpr: Jaxpr) -> dict[Var, list[int]]:
    """For each variable the equations that use it, ascending; the program's results count as used
    after the last equation."""
    found: dict[Var, list[int]] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        for a in eqn.ins:
            if isinstance(a, Var):
                found.setdefault(a, []).append(i)
    for a in jaxpr.outs:
        if isinstance(a, Var):
            found.setdefault(a, []).append(len(jaxpr.eqns))
    return found


class Writer:
    """A copy of a program being written: equations as they are, or operations traced anew."""

    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr = jaxpr
        self.trace = JaxprTrace("a per-device program", jaxpr.names)
        self.trace.args = list(jaxpr.ins)
        self.same: dict[Var, Atom] = {}

    def copy(self, eqn: Eqn) -> None:
        """Write an equation of the program."""
        self.trace.eqns.append(eqn.replace(ins=tuple(map(self._read, eqn.ins))))

    def _read(self, atom: Atom) -> Atom:
        return self.same.get(atom, atom) if isinstance(atom, Var) else atom

    def value(self, atom: Atom) -> Any:
        """A value of the program, to be traced with."""
        found = self._read(atom)
        return JaxprTracer(self.trace, found) if isinstance(found, Var) else found.value

    def define(self, var: Var, value: Any) -> None:
        """Say which traced value takes the place of a variable."""
        self.same[var] = self.trace.atom(value)

    def finish(self) -> Jaxpr:
        """The program that was written."""
        outs = [self._read(a) for a in self.jaxpr.outs]
        return Jaxpr(self.jaxpr.ins, self.trace.eqns, outs, self.jaxpr.names)
