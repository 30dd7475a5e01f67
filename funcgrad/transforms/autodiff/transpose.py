"""Reverse mode: run a linear program backwards, each op by its transpose rule.

With `partial_eval.linearize_flat` this is all of reverse-mode differentiation (Radul et al., "You
only linearize once", 2023): the derivative is a linear program, and the gradient is its transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.core import context, source
from funcgrad.core.aval import Linear, Zero, with_zeros
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, literal_value
from funcgrad.core.staging import stage_closed
from funcgrad.core.types import Cotangent, Cotangents, Operands, Value
from funcgrad.ops.base import instantiate
from funcgrad.ops.families import add

# The scope of operations of a backward pass, where a mesh has Explicit axes: how cotangents are cut
# is nothing that a user could say.
TRANSPOSED = "transpose()"


def backward_pass(jaxpr: Jaxpr, args: Operands, cts_out: Cotangents) -> list:
    """Cotangents (or `Zero`) of the inputs given as `Linear`, None for the others.

    Equations that depend on no linear input are evaluated first.
    """
    env: dict[Atom, Value] = {}
    linear: set[Var] = set()
    for var, arg in zip(jaxpr.ins, args, strict=True):
        if type(arg) is Linear:
            linear.add(var)
        else:
            env[var] = arg

    def read(atom: Atom) -> Value:
        return env[atom] if type(atom) is Var else literal_value(atom)  # type: ignore[arg-type]

    linear_eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if not linear.isdisjoint(eqn.ins):
            linear_eqns.append(eqn)
            linear.update(eqn.outs)
        else:
            out = eqn.prim.bind(*(read(a) for a in eqn.ins), **eqn.params)
            env.update(zip(eqn.outs, out if eqn.prim.multiple else [out], strict=True))

    cts: dict[Atom, Cotangent] = {}

    def accumulate(atom: Atom, ct: Cotangent) -> None:
        if atom in linear and type(ct) is not Zero:
            held = cts.get(atom)
            cts[atom] = ct if held is None else add.bind(held, ct)

    for atom, ct in zip(jaxpr.outs, cts_out, strict=True):
        if ct is not None:
            accumulate(atom, ct)
    outer_place = source.placed()
    try:
        for eqn in reversed(linear_eqns):
            given: Any
            if not eqn.prim.multiple:
                given = cts.pop(eqn.outs[0], None)
                if given is None:
                    continue
            else:
                found = [cts.pop(v, None) for v in eqn.outs]
                if all(c is None for c in found):
                    continue
                given = [Zero(v.aval.tangent()) if c is None else c
                         for c, v in zip(found, eqn.outs, strict=True)]  # fmt: skip
            source.set_place(eqn.source or outer_place)
            operands = [Linear(a.aval) if a in linear else read(a) for a in eqn.ins]
            for atom, c in zip(eqn.ins, _transposed(eqn, given, operands), strict=True):
                if c is not None:
                    accumulate(atom, c)
    finally:
        source.set_place(outer_place)
    return [
        (cts.get(v, Zero(v.aval)) if type(a) is Linear else None)
        for v, a in zip(jaxpr.ins, args, strict=True)
    ]


def _transposed(eqn: Eqn, ct: Cotangent, operands: Operands) -> Cotangents:
    """Cotangents of an equation's operands, from that of its result (a list of them)."""
    ctx = context.current()
    explicit = ctx.mesh is not None and bool(ctx.mesh.explicit_axes)
    if not eqn.scopes and not explicit:
        return eqn.prim.transposed(ct, operands, eqn.params)
    more = (TRANSPOSED,) if explicit and TRANSPOSED not in ctx.scopes else ()
    with context.scoped(scopes=(*ctx.scopes, *more, *eqn.scopes)):
        return eqn.prim.transposed(ct, operands, eqn.params)


def transpose_jaxpr(
    jaxpr: Jaxpr, linear: Sequence[bool], ct_nonzero: Sequence[bool], force: bool = False
) -> tuple[Jaxpr, list[bool]]:
    """The program of the non-linear inputs, then the cotangents that aren't zero, to the
    cotangents of linear inputs; a mask tells which of these aren't zero and so come out (with
    `force`, all do)."""
    key = ("transpose", tuple(linear), tuple(ct_nonzero), force)
    return jaxpr.derive(key, lambda: _transpose_jaxpr(jaxpr, linear, ct_nonzero, force))


def _transpose_jaxpr(
    jaxpr: Jaxpr, linear: Sequence[bool], ct_nonzero: Sequence[bool], force: bool
) -> tuple:
    mask: list[bool] = []
    known = [a for a, is_linear in zip(jaxpr.in_avals, linear, strict=True) if not is_linear]

    def fun(*flat: Any) -> list:
        values = iter(flat[: len(known)])
        args = [
            Linear(a) if is_linear else next(values)
            for a, is_linear in zip(jaxpr.in_avals, linear, strict=True)
        ]
        given = with_zeros(flat[len(known) :], ct_nonzero, jaxpr.out_avals)
        result = backward_pass(jaxpr, args, given)
        outs = [c for c, is_linear in zip(result, linear, strict=True) if is_linear]
        if force:
            outs = [instantiate(c) for c in outs]
        mask.extend(type(c) is not Zero for c in outs)
        return [c for c in outs if type(c) is not Zero]

    ct_avals = [a for a, nz in zip(jaxpr.out_avals, ct_nonzero, strict=True) if nz]
    return stage_closed(fun, [*known, *ct_avals], "a transposed program"), mask
