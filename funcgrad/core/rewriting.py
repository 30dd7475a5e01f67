"""Rewriting programs: what each transform from program to program needs beside its rules.

`rewrite(jaxpr, rule)` is a transform of one rule. It sees equation by equation, with the values of
the operands, and gives the values of the results, computed by ordinary functions; None keeps the
equation. Programs within equations (bodies, branches, calls, derivative rules) are rewritten by the
same rule. Where values go from one program to another, or into what is kept, they have the types
that they had (`Boundary`), so that types may change anywhere else.

Beneath it is `Writer`, for passes that look at more than one equation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from funcgrad.core import context, source
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import with_constants
from funcgrad.core.dce import dce_eqns
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var, literal_value, sub_jaxprs
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import JaxprTrace, JaxprTracer
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.core.types import Param, Params, Rewritten, Value
from funcgrad.errors import CustomRuleError

Each = Callable[[Jaxpr], Jaxpr]
Rule = Callable[[Eqn, list], Any]


class Boundary:
    """What values are where programs begin and end: arrays of the types that they had.

    A transform may have other types there, and values in between that are no arrays: complex
    numbers as pairs, say. What a type becomes depends on the type alone, so that the start of a
    loop's carry, what its body takes and what it gives agree.
    """

    def type(self, aval: ShapedArray) -> ShapedArray:
        """The type at a boundary of what had a type."""
        return aval

    def enter(self, array: Value, aval: ShapedArray) -> Rewritten:
        """The value that rules see of an array that comes in."""
        return array

    def leave(self, value: Rewritten, aval: ShapedArray) -> Value:
        """The array that goes out, of a value that had a type."""
        dtype = self.type(aval).dtype
        if isinstance(value, bool | int | float | complex):
            return Array(np.asarray(value, dtype), aval.weak_type)
        return value if aval_of(value).dtype == dtype else value.astype(dtype)


SAME_TYPES = Boundary()


def rewrite(jaxpr: Jaxpr, rule: Rule, boundary: Boundary = SAME_TYPES) -> Jaxpr:
    """The program with what a rule gives in place of its equations, here and in programs within.

    rule(eqn, values) → what the op gives (a value, a list of them for ops of several results), or
    None to keep the equation. Each program is rewritten once for a rule (and those equal to it, as
    instances of a frozen dataclass may be); one that stays as it is is given back itself.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> def rule(eqn, values):
    ...     return fnp.tanh(values[0] * 2) if eqn.prim.name == "sin" else None
    >>> rewrite(fg.make_jaxpr(lambda x: fnp.sin(x) + x)(1.0).jaxpr, rule)
    { lambda ; a:f32[] . let
        b:f32[] = mul a 2.0:f32[]
        c:f32[] = tanh b
        d:f32[] = add c a
      in (d,) }
    """
    key = ("rewritten", rule, boundary, context.current().static_key())
    try:
        hash(rule)
    except TypeError:
        raise CustomRuleError(
            f"rewrite: programs are kept by the rule, so it must have a hash, but {rule} has none: "
            "write a function, or an instance of a frozen dataclass"
        ) from None
    return jaxpr.derive(key, lambda: _Ruled(rule, boundary).write(jaxpr))


def everywhere(jaxpr: Jaxpr, each: Each) -> Jaxpr:
    """The program, and the programs in its equations at any depth, each rewritten; once each."""
    done: dict[Jaxpr, Jaxpr] = {}

    def within(j: Jaxpr) -> Jaxpr:
        if j not in done:
            eqns = [with_programs(e, within) for e in j.eqns]
            done[j] = each(Jaxpr(j.ins, eqns, j.outs, j.names))
        return done[j]

    return within(jaxpr)


def with_programs(eqn: Eqn, each: Each) -> Eqn:
    """The equation with the programs in its parameters rewritten; itself if that changes none."""
    changed: Params = {}
    for name, p in eqn.params.items():
        if type(p) is Jaxpr:
            found = each(p)
            if found is not p:
                changed[name] = found
        elif type(p) is tuple and Jaxpr in map(type, p):
            several = tuple([each(q) if type(q) is Jaxpr else q for q in p])
            if several != p:
                changed[name] = several
    return eqn.replace(params={**eqn.params, **changed}) if changed else eqn


def called_program(eqn: Eqn) -> Jaxpr:
    """The program that a call calls."""
    jaxpr = eqn.params["jaxpr"]
    # Some are only made when they are wanted.
    return jaxpr if isinstance(jaxpr, Jaxpr) else jaxpr([a.aval for a in eqn.ins])


def runs(jaxpr: Jaxpr, cost: Callable[[Eqn], float]) -> list[tuple[Eqn, int]]:
    """Each equation of a program, and of the programs within, with how many times it runs: those of
    a scan once a turn, of branches those of the dearest, of other loops once.

    >>> import funcgrad as fg
    >>> f = lambda x: fg.lax.fori_loop(0, 10, lambda i, x: fg.numpy.sin(x), x)
    >>> sum(n for e, n in runs(fg.make_jaxpr(f)(1.0).jaxpr, lambda e: 1) if e.prim.name == "sin")
    10
    """
    found: list[tuple[Eqn, int]] = []
    for eqn in jaxpr.eqns:
        programs = [called_program(eqn)] if eqn.prim.call else sub_jaxprs(eqn)
        inner = [runs(j, cost) for j in programs]
        if "branches" in eqn.params:
            inner = [max(inner, key=lambda run: sum(n * cost(e) for e, n in run))]
        turns = eqn.params.get("length", 1)
        found += [(eqn, 1), *((e, n * turns) for run in inner for e, n in run)]
    return found


def makers(jaxpr: Jaxpr) -> dict[Var, int]:
    """For each variable but the inputs, which equation makes it."""
    return {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outs}


def uses(jaxpr: Jaxpr) -> dict[Var, list[int]]:
    """For each variable the equations that use it, ascending; the program's results count as used
    after the last equation."""
    found: dict[Var, list[int]] = {}
    for i, atoms in enumerate((*(e.ins for e in jaxpr.eqns), jaxpr.outs)):
        for a in atoms:
            if isinstance(a, Var):
                found.setdefault(a, []).append(i)
    return found


class Writer:
    """A program being written, equation by equation, as another one is gone through.

    A pass overrides `equation`, in which it may `keep` the equation, `define` what stands for its
    results, `inline` the program that it calls, or perform operations, which are written down at
    its place. Operands are those of the new program: atoms, or what the pass has defined.
    """

    def __init__(self, what: str = "a rewritten program"):
        self.trace = JaxprTrace(what)
        self.eqns: list[Eqn] = self.trace.eqns
        # What stands for variables of the program that is gone through; others stay.
        self.same: dict[Atom, Rewritten] = {}
        self.inlining = False  # a program in place of an equation

    def equation(self, eqn: Eqn, ins: list) -> None:
        """Write what takes an equation's place."""
        self.keep(eqn, ins)

    def within(self, jaxpr: Jaxpr) -> Jaxpr:
        """What takes the place of a program in an equation that is kept."""
        return jaxpr

    # ---- for passes

    def keep(self, eqn: Eqn, ins: Iterable[Rewritten], **changes: Any) -> None:
        """Write the equation, on these operands, with some fields changed."""
        new = self.renewed(eqn, [self.atom(x) for x in ins])
        self.append(new.replace(**changes) if changes else new)

    def define(self, eqn: Eqn, values: Iterable[Rewritten]) -> None:
        """Say what stands for an equation's results."""
        self.same.update(zip(eqn.outs, values, strict=True))

    def inline(self, eqn: Eqn, ins: Sequence[Rewritten], jaxpr: Jaxpr | None = None) -> None:
        """Go through a program in place of an equation: the one that it calls, if none is given."""
        self.define(eqn, self.called(jaxpr or called_program(eqn), ins))

    def called(self, jaxpr: Jaxpr, ins: Sequence[Rewritten]) -> list:
        """Go through a program on these operands; gives what stands for its results."""
        outer = self.same, self.inlining
        # Programs may share variables, and be called twice.
        self.same, self.inlining = dict(zip(jaxpr.ins, ins, strict=True)), True
        outs = self.walk(jaxpr)
        self.same, self.inlining = outer
        return outs

    def renewed(self, eqn: Eqn, ins: Sequence[Atom]) -> Eqn:
        """The equation on these operands, with what takes the place of its programs."""
        params = self.programs(eqn) if eqn.params else eqn.params
        outs = eqn.outs
        if self.inlining:
            outs = tuple([Var(v.aval) for v in outs])
            self.define(eqn, outs)
        elif params is eqn.params and tuple(ins) == eqn.ins:
            return eqn
        place, scopes = eqn.source or source.placed(), context.current().scopes
        return Eqn(eqn.prim, ins, outs, params, place, scopes)

    def programs(self, eqn: Eqn) -> Params:
        """The equation's parameters, with what takes the place of its programs."""
        return with_programs(eqn, self.within).params

    def add(
        self, prim: Primitive, ins: Sequence[Atom], aval: ShapedArray | None = None, **params: Param
    ) -> Var:
        """Write a new equation of one result, at the place of the equation in hand."""
        var = Var(aval or prim.abstract(*(a.aval for a in ins), **params))
        self.append(Eqn(prim, ins, [var], params, source.placed(), context.current().scopes))
        return var

    def again(self, eqn: Eqn, ins: Sequence[Atom], **params: Param) -> Var:
        """Write an equation of one result on other operands, with some parameters changed."""
        params = {**eqn.params, **params}
        var = Var(eqn.prim.abstract(*(a.aval for a in ins), **params))
        self.append(eqn.replace(ins=ins, outs=[var], params=params))
        return var

    def append(self, eqn: Eqn) -> None:
        """Write an equation as it is."""
        self.eqns.append(eqn)

    def read(self, atom: Atom) -> Rewritten:
        """What stands for an atom of the program that is gone through."""
        return self.same.get(atom, atom)

    def value(self, x: Rewritten) -> Rewritten:
        """What operations can be performed on, of an atom."""
        if type(x) is Var:
            return JaxprTracer(self.trace, x)
        return literal_value(x) if type(x) is Literal else x

    def atom(self, value: Rewritten) -> Atom:
        """The atom of the new program that a value is."""
        return value if type(value) is Var or type(value) is Literal else self.trace.atom(value)

    # ---- going through a program

    def write(self, jaxpr: Jaxpr) -> Jaxpr:
        """The program that takes another one's place, without dead code."""
        before = context.current()
        try:
            context.switch(before.replace(trace=self.trace, scopes=()))
            ins = self.begin(jaxpr)
            outs = self.walk(jaxpr)
            return self.finish(jaxpr, ins, outs)
        finally:
            context.switch(before)
            self.trace.end()

    def begin(self, jaxpr: Jaxpr) -> Sequence[Var]:
        """The new program's inputs."""
        return jaxpr.ins

    def walk(self, jaxpr: Jaxpr) -> list:
        """Go through a program's equations; gives what stands for its results."""
        same, outer, place = self.same, context.current(), source.placed()
        try:
            for eqn in jaxpr.eqns:
                source.set_place(eqn.source or place)
                if eqn.scopes:
                    context.switch(outer.replace(scopes=outer.scopes + eqn.scopes))
                self.equation(eqn, [same.get(a, a) for a in eqn.ins])
                if eqn.scopes:
                    context.switch(outer)
        finally:
            context.switch(outer)
            source.set_place(place)
        return [self.read(a) for a in jaxpr.outs]

    def finish(self, jaxpr: Jaxpr, ins: Sequence[Var], outs: Sequence[Rewritten]) -> Jaxpr:
        """The new program of these inputs, what stands for the results of the old one given."""
        atoms = [self.atom(x) for x in outs]
        captured = self.trace.consts.values()
        for _, held, _ in captured:
            if isinstance(held, Tracer):
                raise CustomRuleError(
                    f"a rule for programs uses {held}, which is traced outside of the program; use "
                    "values of the program, arrays and numbers"
                )
        every = [*(var for _, _, var in captured), *ins]
        names = jaxpr.names and [*("captured" for _ in captured), *jaxpr.names]
        found = Jaxpr(every, dce_eqns(self.eqns, atoms), atoms, names)
        return with_constants(found, [held for _, held, _ in captured])


class _Ruled(Writer):
    """Equations rewritten by a rule."""

    def __init__(self, rule: Rule, boundary: Boundary):
        super().__init__(f"rewrite by {getattr(rule, '__name__', rule)}")
        self.rule = rule
        self.boundary = boundary
        self.changed = False

    def within(self, jaxpr: Jaxpr) -> Jaxpr:
        return rewrite(jaxpr, self.rule, self.boundary)

    def begin(self, jaxpr: Jaxpr) -> Sequence[Var]:
        self.trace.args, self.trace.names = list(jaxpr.ins), jaxpr.names
        ins = [self.typed(v) for v in jaxpr.ins]
        for old, new in zip(jaxpr.ins, ins, strict=True):
            if new is not old:
                self.changed = True
                self.same[old] = self.boundary.enter(self.value(new), old.aval)
        return ins

    def typed(self, var: Var) -> Var:
        """The variable, or another one where its type is another at a boundary."""
        aval = self.boundary.type(var.aval)
        return var if aval == var.aval else Var(aval)

    def equation(self, eqn: Eqn, ins: list) -> None:
        found = self.rule(eqn, [self.value(x) for x in ins])
        if found is not None:
            self.changed = True
            self.define(eqn, self.results(eqn, found))
            return
        atoms = [self.left(x, a.aval) for x, a in zip(ins, eqn.ins, strict=True)]
        new = self.renewed(eqn, atoms)
        if new.params is not eqn.params:
            self.changed = True
            if new.prim.dce is not None:  # what no program reads any longer
                new = new.prim.dce([True] * len(new.outs), new)
                atoms = list(new.ins)
        if all(self.typed(v) is v for v in eqn.outs):
            self.append(new)
            return
        self.changed = True
        out = new.prim.bind(*map(self.value, atoms), **new.params)
        pairs = zip(out if new.prim.multiple else [out], eqn.outs, strict=True)
        self.define(eqn, [self.boundary.enter(x, v.aval) for x, v in pairs])

    def programs(self, eqn: Eqn) -> Params:
        if eqn.prim.programs is None:
            return super().programs(eqn)
        params = eqn.prim.programs(self.within, **eqn.params)
        return eqn.params if all(params[k] is p for k, p in eqn.params.items()) else params

    def results(self, eqn: Eqn, found: Rewritten) -> Sequence[Rewritten]:
        """What a rule gives for an equation, checked."""
        multiple = isinstance(found, list | tuple)
        results: Sequence[Any] = found if multiple else [found]
        fits = multiple == eqn.prim.multiple and len(results) == len(eqn.outs)
        if fits and self.boundary is SAME_TYPES:
            fits = all(
                aval_of(x).shape == v.aval.shape for x, v in zip(results, eqn.outs, strict=True)
            )
        if not fits:
            raise CustomRuleError(
                f"{self.trace.what}: {eqn.prim} gives {[v.aval for v in eqn.outs]}, the rule "
                f"gives {found} in its place; only dtypes may change"
            )
        return results

    def left(self, x: Rewritten, aval: ShapedArray) -> Atom:
        """The atom of a value that leaves for a program, or for an equation that is kept."""
        if type(x) is Var or (type(x) is Literal and self.boundary.type(aval) == aval):
            return x
        return self.atom(self.boundary.leave(self.value(x), aval))

    def finish(self, jaxpr: Jaxpr, ins: Sequence[Var], outs: Sequence[Rewritten]) -> Jaxpr:
        if not self.changed:
            return jaxpr
        atoms = [self.left(x, a.aval) for x, a in zip(outs, jaxpr.outs, strict=True)]
        return super().finish(jaxpr, ins, atoms)
