"""Casts of what a loop closes over, made once for all turns.

A weight that each turn of a `scan` casts is cast before the loop instead. But the loop would then
sum the weight's cotangents in the narrow dtype, turn by turn. So its body reads the copy through
`narrowed`, which has the weight's derivatives: cotangents go to the wide weight, and are summed
there. The copy itself (`cast_ahead`) has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.rewriting import with_programs
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Cotangent, Operand, Tangent, Tangents, Value, Values
from funcgrad.errors import DTypeError
from funcgrad.ops.base import is_linear
from funcgrad.ops.elementwise.convert import convert_element_type, convert_element_type_p
from funcgrad.ops.families import FLAT, elementwise, unary
from funcgrad.transforms.control.calls import call_eqn
from funcgrad.transforms.control.jit_primitive import jit_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p
from funcgrad.transforms.derivatives.checkpoint import checkpoint_p

# ---- a copy with the derivatives of what it is a copy of


def _abstract(x: ShapedArray, copy: ShapedArray) -> ShapedArray:
    if x.shape != copy.shape:
        raise DTypeError(f"narrowed: need a value and its copy in another dtype, got {x}, {copy}")
    return copy


def _jvp(primals: Values, tangents: Tangents) -> tuple[Value, Tangent]:
    # The copy as it is: a loop's backward pass then reads the one copy, and keeps none a turn.
    copy, t = primals[1], tangents[0]
    if type(t) is Zero:
        return copy, Zero(aval_of(copy).tangent())
    return copy, convert_element_type(t, aval_of(copy).dtype)


def _transpose(ct: Cotangent, x: Operand, copy: Operand) -> list:
    return [convert_element_type(ct, x.aval.dtype) if is_linear(x) else None, None]


cast_ahead_p: Primitive = unary(
    "cast_ahead",
    impl=lambda xp, x, *, new_dtype: x.astype(new_dtype),
    jvp=FLAT,
    transpose=lambda ct, x, *, new_dtype: Zero(x.aval),
    abstract=lambda x, *, new_dtype: ShapedArray(x.shape, new_dtype),
    simplify=lambda eqn, made_by: eqn.replace(prim=convert_element_type_p),
    doc="",
)
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
    """A cast that a program makes of one of its inputs: which, the views of it that lead there, and
    the `cast_ahead` at their end."""

    position: int
    eqns: tuple[Eqn, ...]

    def of(self, atom: Atom, start: Atom) -> list[Eqn]:
        """The same equations, of another operand in place of the input `start`."""
        same: dict[Atom, Atom] = {start: atom}
        eqns = []
        for eqn in self.eqns:
            out = Var(eqn.outs[0].aval)
            eqns.append(eqn.replace(ins=tuple(same.get(a, a) for a in eqn.ins), outs=(out,)))
            same[eqn.outs[0]] = out
        return eqns


class _Lifted(NamedTuple):
    """A program that takes casts as further inputs, behind the others, and these casts."""

    jaxpr: Jaxpr
    casts: list[_Cast]


def cast_once(jaxpr: Jaxpr, dtype: np.dtype) -> Jaxpr:
    """The program whose loops are given what their turns would cast to `dtype`, cast once.

    >>> import funcgrad as fg
    >>> f = lambda w, x: lax.fori_loop(0, 9, lambda i, x: x + w.astype("bfloat16"), x)
    >>> jaxpr = fg.make_jaxpr(f)(fnp.ones(3), fnp.ones(3, "bfloat16")).jaxpr
    >>> [eqn.prim.name for eqn in cast_once(jaxpr, np.dtype("bfloat16")).eqns]
    ['cast_ahead', 'scan']
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
        # Inputs that are fixed, and views of them: the input's position, and the views' equations.
        self.views: dict[Atom, tuple[int, tuple[Eqn, ...]]] = {
            v: (i, ()) for i, (v, f) in enumerate(zip(jaxpr.ins, fixed, strict=True)) if f
        }
        self.casts: dict[Var, _Cast] = {}  # by what stands for their results
        self.copies: dict[Atom, Var] = {}  # by what is cast
        self.eqns: list[Eqn] = []

    def run(self) -> _Lifted:
        for eqn in self.jaxpr.eqns:
            self.equation(eqn)
        same = len(self.eqns) == len(self.jaxpr.eqns) and not self.casts
        if same and all(a is b for a, b in zip(self.eqns, self.jaxpr.eqns, strict=True)):
            return _Lifted(self.jaxpr, [])
        names = None if self.casts else self.jaxpr.names
        found = Jaxpr([*self.jaxpr.ins, *self.casts], self.eqns, self.jaxpr.outs, names)
        return _Lifted(found, list(self.casts.values()))

    def equation(self, eqn: Eqn) -> None:
        prim, source = eqn.prim, eqn.ins[0] if eqn.ins else None
        if prim is convert_element_type_p and eqn.params["new_dtype"] == self.dtype:
            if source in self.views:
                copy = self.lift(eqn)
                eqn = Eqn(narrowed_p, [source, copy], eqn.outs, {}, eqn.source, eqn.scopes)
        elif prim.view is not None and source in self.views:
            position, eqns = self.views[source]
            self.views[eqn.outs[0]] = position, (*eqns, eqn)
        elif prim is scan_p or prim is while_p:
            eqn = self.loop(eqn)
        elif prim is jit_p or prim is checkpoint_p:
            eqn = self.call(eqn)
        elif prim.programs is None:
            eqn = with_programs(eqn, lambda j: cast_once(j, self.dtype))
        self.eqns.append(eqn)

    def lift(self, eqn: Eqn) -> Var:
        """The further input that stands for a cast."""
        source = eqn.ins[0]
        if source not in self.copies:
            position, eqns = self.views[source]
            ahead = eqn.replace(prim=cast_ahead_p, params={"new_dtype": self.dtype})
            copy = self.copies[source] = Var(eqn.outs[0].aval)
            self.casts[copy] = _Cast(position, (*eqns, ahead))
        return self.copies[source]

    def cast(self, casts: Sequence[_Cast], starts: Sequence[Var], ins: Sequence[Atom]) -> list:
        """Make the casts that a program lifted of its operands; lifted further, if these are."""
        copies = []
        for c in casts:
            *views, ahead = c.of(ins[c.position], starts[c.position])
            for eqn in views:
                self.equation(eqn)
            if ahead.ins[0] in self.views:
                copies.append(self.lift(ahead))
            else:
                self.eqns.append(ahead)
                copies.append(ahead.outs[0])
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
        copies = self.cast(casts, body.ins, eqn.ins[first:])
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
        lifted, casts = _lifted(jaxpr, tuple(a in self.views for a in eqn.ins), self.dtype)
        if lifted is jaxpr:
            return eqn
        copies = self.cast(casts, jaxpr.ins, eqn.ins)
        return call_eqn(eqn, lifted, [*eqn.ins, *copies], eqn.outs)
