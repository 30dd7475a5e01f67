"""A small program as a list of NumPy calls: what it does, without what finding out costs.

Where the same operations are evaluated again and again on operands of the same types, as in a
gradient's every step, they are looked up once and then run on plain arrays. The bits are those of
evaluating one operation after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from funcgrad.core import context
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.large import LARGE

ndarray, asarray = np.ndarray, np.asarray


def numpy_calls(jaxpr: Jaxpr) -> Callable[..., Sequence[np.ndarray]]:
    """The function from the program's inputs, as NumPy arrays of their types, to its results.

    It is to be called where floating-point errors pass silently (`core.quiet`).

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
    n = len(place)
    steps = []
    dead = _last_reads(jaxpr)
    for eqn in jaxpr.eqns:
        steps.append((*_step(eqn, [place[a] for a in eqn.ins]), [place[v] for v in dead[eqn]]))
        for var in eqn.outs:
            place[var] = len(place)
    outs = [place[a] for a in jaxpr.outs]
    if not steps:
        return _chosen(outs, constants)
    if len(steps) == 1 and outs[:1] == [n] and all(i < n for i in outs[1:]):
        call, first, second, rest, dtype, _ = steps[0]
        if type(dtype) is not list:
            at = rest if rest is not None else [first] if second is None else [first, second]
            return _one_call(call, at, dtype, outs[1:], len(jaxpr.ins), constants)

    def run(*values: np.ndarray) -> list:
        env: list[Any] = [*values, *constants]
        for call, first, second, rest, dtype, last in steps:
            if second is not None:
                out = call(env[first], env[second])
            elif rest is None:
                out = call(env[first])
            else:
                out = call(*[env[i] for i in rest])
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
        return [env[i] for i in outs]

    return run


def _chosen(outs: list[int], constants: list) -> Callable[..., Sequence[np.ndarray]]:
    """What gives inputs and constants back."""
    if not constants and outs == [*range(len(outs))]:
        return lambda *values: values[: len(outs)]
    return lambda *values: [(*values, *constants)[i] for i in outs]


def _one_call(
    call: Callable, at: list[int], dtype: np.dtype, outs: list[int], n: int, constants: list
) -> Callable[..., Sequence[np.ndarray]]:
    """A program of one equation, whose result comes first, then inputs and constants."""
    operands: Any = None if at == [*range(n)] and not constants else _getter(at)
    others = _getter(outs)

    def run(*values: np.ndarray) -> list:
        if constants:
            values = (*values, *constants)
        out = call(*values) if operands is None else call(*operands(values))
        if type(out) is not ndarray:
            out = asarray(out)
        if out.dtype is not dtype:
            out = out.astype(dtype, copy=False)
        return [out, *others(values)] if outs else [out]

    return run


def _getter(places: list[int]) -> Callable[[Sequence], tuple]:
    """What takes the values at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple([values[i] for i in places])


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
    """(the function of the operands, first operand, second operand, all operands, dtype of the
    result): the most frequent forms, of one operand or two, don't need the list."""
    if eqn.prim.multiple:
        dtypes: Any = [v.aval.dtype for v in eqn.outs]
        return partial(eqn.prim.impl, np, **eqn.params), 0, None, at, dtypes
    aval, impl = context.current().evaluation(eqn.prim, [a.aval for a in eqn.ins], eqn.params)
    call = partial(impl, np, **eqn.params)
    if len(at) in (1, 2):
        return call, at[0], at[1] if len(at) == 2 else None, None, aval.dtype
    return call, 0, None, at, aval.dtype


def _typed(value: Any, dtype: np.dtype) -> np.ndarray:
    return np.asarray(value).astype(dtype, copy=False)
