"""A small program as a list of NumPy calls: what it does, without what finding out costs.

Where the same operations are evaluated again and again on operands of the same types, as in a
gradient's every step, they are looked up once and then run on plain arrays. The bits are those of
evaluating one operation after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.core import context
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.large import LARGE
from funcgrad.core.quiet import loud, quiet

ndarray, asarray = np.ndarray, np.asarray


def numpy_calls(jaxpr: Jaxpr) -> Callable[..., list]:
    """The function from the program's inputs, as NumPy arrays of their types, to its results.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> run = numpy_calls(fg.make_jaxpr(lambda x: fnp.sin(x) * 2)(fnp.ones(2)).jaxpr)
    >>> run(np.zeros(2, np.float32))
    [array([0., 0.], dtype=float32)]
    """
    place: dict[Atom, int] = {v: i for i, v in enumerate(jaxpr.ins)}
    constants: list[np.ndarray] = []
    for atoms in (*(e.ins for e in jaxpr.eqns), jaxpr.outs):
        for atom in atoms:
            if isinstance(atom, Literal) and atom not in place:
                place[atom] = len(place)
                constants.append(atom.value)
    steps = []
    dead = _last_reads(jaxpr)
    for eqn in jaxpr.eqns:
        steps.append((*_step(eqn, [place[a] for a in eqn.ins]), [place[v] for v in dead[eqn]]))
        for var in eqn.outs:
            place[var] = len(place)
    outs = [place[a] for a in jaxpr.outs]
    if len(steps) == 1 and jaxpr.eqns[0].ins == jaxpr.ins and jaxpr.eqns[0].outs == jaxpr.outs:
        return _one_call(jaxpr.eqns[0])

    def run(*values: np.ndarray) -> list:
        env: list[Any] = [*values, *constants]
        token = quiet()
        try:
            for impl, first, second, rest, params, dtype, last in steps:
                if second is not None:
                    out = impl(np, env[first], env[second])
                elif rest is not None:
                    out = impl(np, *[env[i] for i in rest], **params)
                elif params:
                    out = impl(np, env[first], **params)
                else:
                    out = impl(np, env[first])
                if type(dtype) is list:
                    env += map(_typed, out, dtype)
                else:
                    if type(out) is not ndarray:
                        out = asarray(out)
                    env.append(out if out.dtype is dtype else out.astype(dtype, copy=False))
                if last:
                    out = None
                    for i in last:
                        env[i] = None
        finally:
            loud(token)
        return [env[i] for i in outs]

    return run


def _one_call(eqn: Eqn) -> Callable[..., list]:
    """An equation of all inputs and results."""
    impl, _, _, _, params, dtype = _step(eqn, [])
    multiple = eqn.prim.multiple

    def run(*values: np.ndarray) -> list:
        token = quiet()
        try:
            out = impl(np, *values, **params)
        finally:
            loud(token)
        if multiple:
            return list(map(_typed, out, dtype))
        if type(out) is not ndarray:
            out = asarray(out)
        return [out if out.dtype is dtype else out.astype(dtype, copy=False)]

    return run


def _last_reads(jaxpr: Jaxpr) -> dict[Eqn, list[Var]]:
    """By equation, the large values that it is the last one to read: their memory is free then."""
    last = {a: e for e in jaxpr.eqns for a in e.ins if isinstance(a, Var)}
    made = {v for e in jaxpr.eqns for v in e.outs}.difference(jaxpr.outs)
    found: dict[Eqn, list[Var]] = {e: [] for e in jaxpr.eqns}
    for var, eqn in last.items():
        if var in made and var.aval.nbytes >= LARGE:
            found[eqn].append(var)
    return found


def _step(eqn: Eqn, at: list[int]) -> tuple:
    """(impl, first operand, second operand, all operands, parameters, dtype of the result): the
    most frequent forms, an operand with parameters or up to two without, don't need the list."""
    if eqn.prim.multiple:
        dtypes: Any = [v.aval.dtype for v in eqn.outs]
        return eqn.prim.impl, 0, None, at, eqn.params, dtypes
    avals = [a.aval for a in eqn.ins]
    aval, impl = context.current().evaluation(eqn.prim, avals, eqn.params)
    if len(at) == 1 or (len(at) == 2 and not eqn.params):
        return impl, at[0], at[1] if len(at) == 2 else None, None, eqn.params, aval.dtype
    return impl, 0, None, at, eqn.params, aval.dtype


def _typed(value: Any, dtype: np.dtype) -> np.ndarray:
    return np.asarray(value).astype(dtype, copy=False)
