"""A walk through a program that follows over which mesh axes each value varies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.primitive import Primitive
from funcgrad.ops.collective_varying import pvary_p

Axes = frozenset[str]
NONE: Axes = frozenset()


class Annotated(NamedTuple):
    """A program with its `pvary`s; over which axes each result varies; for each input over which
    axes the program makes it vary, so that a caller may do it before; and the same of what it
    computes from the input, with the number of elements that it marks."""

    jaxpr: Jaxpr
    varying: list[Axes]
    widened: list[Axes]
    behind: list[tuple[Axes, int]]


Rules = dict[str, Callable[["Pass", Eqn], None]]


def annotated(
    jaxpr: Jaxpr,
    in_varying: Sequence[Axes],
    manual: Axes,
    at_least: Sequence[Axes] | None,
    rules: Rules,
) -> Annotated:
    """The program annotated by rules for each op ("*": for all others), once for equal types."""
    wanted = tuple(at_least) if at_least is not None else (NONE,) * len(jaxpr.outs)
    sizes = tuple((a, context.current().axes[a]) for a in sorted(manual))
    key = ("varying", tuple(in_varying), sizes, wanted)
    return jaxpr.derive(key, lambda: Pass(jaxpr, in_varying, manual, rules).finish(wanted))


def join(sets: Iterable[Axes]) -> Axes:
    """The union."""
    return frozenset().union(*sets)


def listed(axes: Iterable[str]) -> str:
    """Axis names for a message."""
    return " and ".join(repr(a) for a in sorted(axes))


def with_excess(jaxpr: Jaxpr, over: Sequence[Axes], order: Iterable[str], prim: Primitive) -> Jaxpr:
    """The program with `prim` applied to each result over the axes given for it."""
    eqns, outs = list(jaxpr.eqns), list(jaxpr.outs)
    for i, axes in enumerate(over):
        if axes:
            new = Var(outs[i].aval)
            names = tuple(a for a in order if a in axes)
            eqns.append(Eqn(prim, [outs[i]], [new], {"axis_name": names}))
            outs[i] = new
    return Jaxpr(jaxpr.ins, eqns, outs, jaxpr.names)


class Pass:
    """One walk through a program. Variables keep their identity; `env` has those replaced."""

    def __init__(self, jaxpr: Jaxpr, in_varying: Sequence[Axes], manual: Axes, rules: Rules):
        self.rules = rules
        self.jaxpr = jaxpr
        self.manual = manual
        self.eqns: list[Eqn] = []
        self.env: dict[Var, Atom] = {}
        self.varying: dict[Var, Axes] = dict(zip(jaxpr.ins, in_varying, strict=True))
        self.widened: dict[Var, Axes] = dict.fromkeys(jaxpr.ins, NONE)
        self.wide: dict[tuple[Var, Axes], Var] = {}
        # The inputs from which a value that varies over no more than they do is computed.
        self.roots: dict[Var, frozenset[Var]] = {v: frozenset({v}) for v in jaxpr.ins}
        self.behind: dict[Var, tuple[Axes, int]] = {}
        self.place: Eqn | None = None
        for eqn in jaxpr.eqns:
            self.place = eqn
            rules.get(eqn.prim.name, rules["*"])(self, eqn)

    def finish(self, at_least: Sequence[Axes]) -> Annotated:
        """The program, its results varying over these axes at least."""
        outs = [
            self.widen(a, self.of(a) | w) for a, w in zip(self.jaxpr.outs, at_least, strict=True)
        ]
        varying = [self.of(a) | w for a, w in zip(self.jaxpr.outs, at_least, strict=True)]
        program = Jaxpr(self.jaxpr.ins, self.eqns, outs, self.jaxpr.names)
        ins = self.jaxpr.ins
        behind = [self.behind.get(v, (NONE, 0)) for v in ins]
        return Annotated(program, varying, [self.widened[v] for v in ins], behind)

    def annotate(
        self, jaxpr: Jaxpr, in_varying: Sequence[Axes], at_least: Sequence[Axes] | None = None
    ) -> Annotated:
        """A program within this one, annotated."""
        return annotated(jaxpr, in_varying, self.manual, at_least, self.rules)

    # ---- operands

    def read(self, atom: Atom) -> Atom:
        """What stands for an atom of the old program."""
        return self.env.get(atom, atom) if isinstance(atom, Var) else atom

    def of(self, atom: Atom) -> Axes:
        """The axes over which an atom of the old program varies."""
        return self.varying[atom] if isinstance(atom, Var) else NONE

    def widen(self, atom: Atom, axes: Axes) -> Atom:
        """An atom of the old program as one that varies over `axes`.

        Only values that may have cotangents are marked.
        """
        missing, new = axes - self.of(atom), self.read(atom)
        if not missing or not dtypes.is_inexact(atom.aval.dtype):
            return new
        return self.pvary(new, missing)

    def pvary(self, new: Atom, missing: Axes) -> Atom:
        """A value marked as varying over more axes: one equation, however often it is wanted."""
        if isinstance(new, Literal):
            return new
        if new in self.widened:
            self.widened[new] |= missing
        key = (new, missing)
        if key not in self.wide:
            for root in self.roots.get(new, ()):
                axes, size = self.behind.get(root, (NONE, 0))
                self.behind[root] = (axes | missing, size + new.aval.size)
            self.wide[key] = self.emit(pvary_p, [new], axis_name=self.ordered(missing))
        return self.wide[key]

    def ordered(self, axes: Axes) -> tuple[str, ...]:
        """Axes in the order in which the context names them."""
        return tuple(a for a in context.current().axes if a in axes)

    # ---- equations

    def emit(self, prim: Primitive, ins: Sequence[Atom], **params: Any) -> Var:
        """Append an equation whose result has the type of its first operand."""
        out = Var(ins[0].aval)
        at = self.place
        where = (at.source, at.scopes) if at is not None else ()
        self.eqns.append(Eqn(prim, ins, [out], params, *where))
        return out

    def keep(self, eqn: Eqn, varying: Sequence[Axes], ins: Sequence[Atom], **params: Any) -> None:
        """Append an equation of the old program, with other operands and parameters."""
        self.varying.update(zip(eqn.outs, varying, strict=True))
        roots = [self.roots[a] for a in ins if isinstance(a, Var) and a in self.roots]
        self.roots.update(dict.fromkeys(eqn.outs, frozenset().union(*roots)))
        self.eqns.append(eqn.replace(ins=tuple(ins), params={**eqn.params, **params}))

    def alias(self, eqn: Eqn, atom: Atom, varying: Axes) -> None:
        """Let an atom stand for the result of an equation of the old program."""
        self.env[eqn.outs[0]] = atom
        self.varying[eqn.outs[0]] = varying

    def inline(self, eqn: Eqn, found: Annotated) -> None:
        """Put an annotated program in the place of an equation."""
        inner: dict[Var, Atom] = {
            v: self.read(a) for v, a in zip(found.jaxpr.ins, eqn.ins, strict=True)
        }
        for e in found.jaxpr.eqns:
            ins = [inner.get(a, a) if isinstance(a, Var) else a for a in e.ins]
            if e.prim is pvary_p and self.manual.issuperset(e.params["axis_name"]):
                inner[e.outs[0]] = self.pvary(ins[0], frozenset(e.params["axis_name"]))
                continue
            outs = [Var(v.aval) for v in e.outs]
            inner.update(zip(e.outs, outs, strict=True))
            self.eqns.append(
                e.replace(ins=tuple(ins), outs=tuple(outs), scopes=eqn.scopes + e.scopes)
            )
        for var, atom, axes in zip(eqn.outs, found.jaxpr.outs, found.varying, strict=True):
            self.env[var] = inner.get(atom, atom) if isinstance(atom, Var) else atom
            self.varying[var] = axes
