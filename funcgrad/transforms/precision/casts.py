"""Casts made where they cost least: of what a loop closes over before it, once for all turns; of
what devices gather before that, so that they send narrow values.

But then the loop would sum the value's cotangents in the narrow dtype, turn by turn, and so would
the devices. So what reads the copy reads it through `narrowed`, which has the derivatives of the
wide value: cotangents go there, and are summed there.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.rewriting import with_programs
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Cotangent, Operand, Tangent, Tangents, Value, Values
from funcgrad.errors import ShapeError
from funcgrad.ops.base import is_linear
from funcgrad.ops.collective.reductions import all_gather_p
from funcgrad.ops.elementwise.convert import convert_element_type, convert_element_type_p
from funcgrad.ops.families import elementwise
from funcgrad.transforms.control.calls import call_eqn
from funcgrad.transforms.control.jit_primitive import jit_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p
from funcgrad.transforms.derivatives.checkpoint import checkpoint_p

# ---- a copy with the derivatives of what it is a copy of


def _abstract(x: ShapedArray, copy: ShapedArray) -> ShapedArray:
    if x.shape != copy.shape:
        raise ShapeError(f"narrowed: need a value and a copy of its shape, got {x}, {copy}")
    return copy


def _jvp(primals: Values, tangents: Tangents) -> tuple[Value, Tangent]:
    # The copy as it is: a loop's backward pass then reads the one copy, and keeps none a turn.
    # (Derivatives of a higher order go through it: they are right, and summed in its dtype.)
    copy, t = primals[1], tangents[0]
    if type(t) is Zero:
        return copy, Zero(aval_of(copy).tangent())
    return copy, convert_element_type(t, aval_of(copy).dtype)


def _transpose(ct: Cotangent, x: Operand, copy: Operand) -> list:
    return [convert_element_type(ct, x.aval.dtype) if is_linear(x) else None, None]


narrowed_p: Primitive = elementwise(
    "narrowed",
    impl=lambda xp, x, copy: copy,
    jvp=_jvp,
    transpose=_transpose,
    abstract=_abstract,
    simplify=lambda eqn, made_by: eqn.ins[1],
    doc="",
)

# ---- the pass


class _Cast(NamedTuple):
    """A cast that a program makes of one of its inputs: which, and the views of it in between."""

    position: int
    views: tuple[Eqn, ...]


class _Lifted(NamedTuple):
    """A program that takes casts as further inputs, behind the others, and these casts."""

    jaxpr: Jaxpr
    casts: list[_Cast]


def cast_once(jaxpr: Jaxpr, dtype: np.dtype) -> Jaxpr:
    """The program whose loops are given what their turns would cast to `dtype`, cast once, and
    whose devices gather what is cast already.

    >>> import funcgrad as fg
    >>> f = lambda w, x: lax.fori_loop(0, 9, lambda i, x: x + w.astype("bfloat16"), x)
    >>> jaxpr = fg.make_jaxpr(f)(fnp.ones(3), fnp.ones(3, "bfloat16")).jaxpr
    >>> [eqn.prim for eqn in cast_once(jaxpr, np.dtype("bfloat16")).eqns]
    [convert_element_type, scan]
    """
    return _lifted(jaxpr, (False,) * len(jaxpr.ins), dtype).jaxpr


def _lifted(jaxpr: Jaxpr, fixed: tuple[bool, ...], dtype: np.dtype) -> _Lifted:
    """The program without the casts of inputs that are `fixed`: whoever calls it makes them."""
    key = ("cast once", fixed, dtype)
    return jaxpr.derive(key, lambda: _Pass(jaxpr, fixed, dtype).run())


class _Pass:
    def __init__(self, jaxpr: Jaxpr, fixed: Sequence[bool], dtype: np.dtype):
        self.jaxpr = jaxpr
        self.dtype = dtype
        # Fixed inputs and views of them: the input's position, and the views' equations.
        self.fixed: dict[Atom, _Cast] = {
            v: _Cast(i, ()) for i, (v, f) in enumerate(zip(jaxpr.ins, fixed, strict=True)) if f
        }
        # What is gathered and views of it: of what, and the equations.
        self.gathered: dict[Atom, tuple[Atom, tuple[Eqn, ...]]] = {}
        self.lifted: dict[Var, _Cast] = {}  # further inputs, and the casts that they are
        self.copies: dict[Atom, Var] = {}
        self.eqns: list[Eqn] = []

    def run(self) -> _Lifted:
        for eqn in self.jaxpr.eqns:
            self.equation(eqn)
        old = self.jaxpr
        if len(self.eqns) == len(old.eqns) and all(map(operator.is_, self.eqns, old.eqns)):
            return _Lifted(old, [])
        names = None if self.lifted else old.names
        found = Jaxpr([*old.ins, *self.lifted], self.eqns, old.outs, names)
        return _Lifted(found, list(self.lifted.values()))

    def equation(self, eqn: Eqn) -> None:
        """Write an equation, or what takes its place."""
        self.eqns.append(self.rewritten(eqn) if eqn.ins else eqn)

    def rewritten(self, eqn: Eqn) -> Eqn:
        prim, source = eqn.prim, eqn.ins[0]
        if prim is convert_element_type_p and eqn.params["new_dtype"] == self.dtype:
            if source not in self.fixed and source not in self.gathered:
                return eqn
            ins = [source, self.copy(source)]
            return Eqn(narrowed_p, ins, eqn.outs, {}, eqn.source, eqn.scopes)
        if prim is scan_p or prim is while_p:
            return self.loop(eqn)
        if prim is jit_p or prim is checkpoint_p:
            return self.call(eqn)
        if prim is all_gather_p:
            self.gathered[eqn.outs[0]] = source, (eqn,)
        elif prim.view is not None and source in self.fixed:
            position, views = self.fixed[source]
            self.fixed[eqn.outs[0]] = _Cast(position, (*views, eqn))
        elif prim.view is not None and source in self.gathered:
            start, eqns = self.gathered[source]
            self.gathered[eqn.outs[0]] = start, (*eqns, eqn)
        return eqn if prim.call else self.within(eqn)

    def within(self, eqn: Eqn) -> Eqn:
        """An equation with this done in the programs that it holds."""

        def each(jaxpr: Jaxpr) -> Jaxpr:
            return cast_once(jaxpr, self.dtype)

        if eqn.prim.programs is None:
            return with_programs(eqn, each)
        return eqn.replace(params=eqn.prim.programs(each, **eqn.params))

    def copy(self, atom: Atom) -> Var:
        """The narrow copy of a value: a further input, or made here."""
        if atom in self.copies:
            return self.copies[atom]
        if atom in self.gathered:
            start, eqns = self.gathered[atom]
            self.eqns += _replayed(eqns, self.copy(start))
            copy = self.eqns[-1].outs[0]
        else:
            copy = Var(ShapedArray(atom.aval.shape, self.dtype))
            if atom in self.fixed:
                self.lifted[copy] = self.fixed[atom]
            else:
                params = {"new_dtype": self.dtype}
                self.eqns.append(Eqn(convert_element_type_p, [atom], [copy], params))
        self.copies[atom] = copy
        return copy

    def made(self, casts: Sequence[_Cast], ins: Sequence[Atom]) -> list[Var]:
        """Copies for a program that is called on these operands."""
        copies = []
        for position, views in casts:
            atom = ins[position]
            for eqn in _replayed(views, atom):
                self.equation(eqn)
                atom = eqn.outs[0]
            copies.append(self.copy(atom))
        return copies

    def loop(self, eqn: Eqn) -> Eqn:
        """A loop whose body is given casts of what it closes over."""
        name, count, first = (
            ("jaxpr", "n_consts", 0)
            if eqn.prim is scan_p
            else ("body_jaxpr", "n_body", eqn.params["n_cond"])
        )
        body, n = eqn.params[name], eqn.params[count]
        lifted, casts = _lifted(body, tuple(i < n for i in range(len(body.ins))), self.dtype)
        if lifted is body:
            return eqn
        copies = self.made(casts, eqn.ins[first:])
        own, more = lifted.ins[: len(body.ins)], lifted.ins[len(body.ins) :]
        # Captured values come first.
        inner = Jaxpr([*own[:n], *more, *own[n:]], lifted.eqns, lifted.outs)
        at = first + n
        return eqn.replace(
            ins=(*eqn.ins[:at], *copies, *eqn.ins[at:]),
            params={**eqn.params, name: inner, count: n + len(more)},
        )

    def call(self, eqn: Eqn) -> Eqn:
        """A call whose program is given casts, which a loop around it makes once."""
        jaxpr = eqn.params["jaxpr"]
        lifted, casts = _lifted(jaxpr, tuple(a in self.fixed for a in eqn.ins), self.dtype)
        if lifted is jaxpr:
            return eqn
        return call_eqn(eqn, lifted, [*eqn.ins, *self.made(casts, eqn.ins)], eqn.outs)


def _replayed(eqns: Sequence[Eqn], atom: Atom) -> list[Eqn]:
    """A chain of equations, each of the one before, on another operand."""
    found = []
    for eqn in eqns:
        out = Var(eqn.outs[0].aval.update(dtype=atom.aval.dtype))
        found.append(eqn.replace(ins=(atom,), outs=(out,)))
        atom = out
    return found
