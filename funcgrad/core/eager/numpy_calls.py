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
from funcgrad.core.eager.impl_calls import OPERATORS, Call, Constant, impl_calls
from funcgrad.core.eager.large import LARGE
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.types import PlainArray
from funcgrad.core.views import spread

ndarray, asarray = np.ndarray, np.asarray


def numpy_calls(jaxpr: Jaxpr) -> Callable[..., Sequence[np.ndarray]]:
    """The function from the program's inputs, as NumPy arrays of their types, to its results.

    It is to be called where floating-point errors pass silently (`core.process.float_errors`).

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> run = numpy_calls(fg.make_jaxpr(lambda x: fnp.sin(x) * 2)(fnp.ones(2)).jaxpr)
    >>> run(np.zeros(2, np.float32))
    (array([0., 0.], dtype=float32),)
    """
    steps, outs, constants = _Steps(jaxpr).result()
    n = len(jaxpr.ins) + len(constants)
    if not steps:
        return _chosen(outs, constants)
    if len(steps) == 1 and outs[:1] == [n] and all(i < n for i in outs[1:]):
        call, at, dtype, last = steps[0]
        if type(dtype) is not list and not last:
            return _one_call(call, at, dtype, outs[1:], len(jaxpr.ins), constants)
    # The most frequent forms, of one operand or two, don't need the list.
    unrolled = [
        (call, at[0] if at else 0, at[1] if len(at) == 2 else None,
         None if len(at) in (1, 2) else at, dtype, last)
        for call, at, dtype, last in steps
    ]  # fmt: skip

    results = _getter(outs)
    simple = [(call, first, second, dtype) for call, first, second, _, dtype, _ in unrolled]
    if all(len(at) in (1, 2) and type(d) is not list and not last for _, at, d, last in steps):
        return _calls_on_two(simple, results, constants)

    def run(*values: np.ndarray) -> Sequence:
        env: list[Any] = [*values, *constants]
        for call, first, second, rest, dtype, last in unrolled:
            if second is not None:
                out = call(env[first], env[second])
            elif rest is None:
                out = call(env[first])
            else:
                out = call(*[env[i] for i in rest])
            if dtype is None:
                env.append(out)
            elif type(dtype) is list:
                env += map(_typed, out, dtype)
            else:
                if type(out) is not ndarray:
                    out = asarray(out)
                env.append(out if out.dtype is dtype else out.astype(dtype, copy=False))
            if last:
                out = None
                for i in last:
                    env[i] = None
        return results(env)

    return run


class _Steps:
    """The calls of a program: (function, where its operands are, what to make of the result, what
    is read for the last time), the results' places, and constants, whose places follow the
    inputs'.

    To make of a result: None for nothing, a dtype for an array of it, a list of dtypes of several.
    """

    def __init__(self, jaxpr: Jaxpr):
        self._jaxpr = jaxpr
        self._place: dict[Any, int] = {v: i for i, v in enumerate(jaxpr.ins)}
        self._constants: list[Any] = []
        self._steps: list[tuple[Callable, list[Any], Any, list[Any]]] = []
        self._made = 0  # results so far, which are numbered behind the constants in the end

    def result(self) -> tuple[list[tuple], list[int], list[object]]:
        dead = _last_reads(self._jaxpr)
        views = _broadcasts_that_functions_do(self._jaxpr)
        for eqn in self._jaxpr.eqns:
            if eqn.outs[0] in views:
                self._place[eqn.outs[0]] = self._at(eqn.ins[0])
            else:
                self._add(eqn, dead[eqn])
        outs = [self._at(a) for a in self._jaxpr.outs]
        first = len(self._jaxpr.ins) + len(self._constants)

        def whole(places: list[int]) -> list[int]:
            return [first - 1 - i if i < 0 else i for i in places]

        steps = [(call, whole(at), dtype, whole(last)) for call, at, dtype, last in self._steps]
        return steps, whole(outs), self._constants

    def _at(self, atom: Atom) -> int:
        """Where a value is: results have negative numbers."""
        if isinstance(atom, Literal) and atom not in self._place:
            self._place[atom] = self._constant(atom.value)
        return self._place[atom]

    def _constant(self, value: object) -> int:
        self._constants.append(value)
        return len(self._jaxpr.ins) + len(self._constants) - 1

    def _new(self) -> int:
        self._made += 1
        return -self._made

    def _add(self, eqn: Eqn, dead: list[Var]) -> None:
        at = [self._at(a) for a in eqn.ins]
        if eqn.prim.multiple:
            dtypes = [v.aval.dtype for v in eqn.outs]
            self._steps.append((partial(eqn.prim.impl, np, **eqn.params), at, dtypes, []))
        else:
            avals = [a.aval for a in eqn.ins]
            aval, impl = context.current().evaluation(eqn.prim, avals, eqn.params)
            found = impl_calls(impl, avals, eqn.params) if impl is eqn.prim.impl else None
            if found is None:
                self._steps.append((partial(impl, np, **eqn.params), at, aval.dtype, []))
            else:
                self._add_calls(*found, at, aval.dtype)
        for var in eqn.outs:
            self._place[var] = self._new()
        self._steps[-1][3].extend(self._place[v] for v in dead)

    def _add_calls(
        self, calls: list[Call], example: np.ndarray | np.generic, at: list[int], dtype: np.dtype
    ) -> None:
        known = list(at)
        for call in calls:
            operands = [
                self._constant(i.value) if isinstance(i, Constant) else known[i]
                for i in call.operands
            ]
            function = partial(call.function, **call.keywords) if call.keywords else call.function
            self._steps.append((function, operands, None, []))
            if call is not calls[-1]:
                known.append(self._new())
        if type(example) is not ndarray or example.dtype is not dtype:
            self._steps[-1] = (*self._steps[-1][:2], dtype, [])


def _broadcasts_that_functions_do(jaxpr: Jaxpr) -> set[Var]:
    """Results of broadcasts along leading axes that are only read by functions of NumPy's which
    broadcast, beside an operand of the full shape: there the operand of the broadcast does as well.
    """
    found = {
        e.outs[0] for e in jaxpr.eqns
        if e.prim.view is not None and e.outs[0] not in jaxpr.outs and isinstance(e.ins[0], Var)
        and e.outs[0].aval.nbytes < LARGE and _is_leading(e)
    }  # fmt: skip
    for e in jaxpr.eqns:
        for v in found.intersection(a for a in e.ins if isinstance(a, Var)):
            others = [a for a in e.ins if a is not v]
            if not (
                len(others) == 1 and others[0] not in found
                and others[0].aval.shape == v.aval.shape and _is_function(e)
            ):  # fmt: skip
                found.discard(v)
    return found


def _is_leading(e: Eqn) -> bool:
    """Whether a broadcast is one as NumPy's functions do it by themselves."""
    axes, more = spread(e), e.outs[0].aval.ndim - e.ins[0].aval.ndim
    return axes is not None and all(a in (-1, d + more) for d, a in enumerate(axes))


def _is_function(e: Eqn) -> bool:
    """Whether an operation is one function of NumPy's of its two operands."""
    if not e.prim.elementwise or e.prim.multiple:
        return False
    found = impl_calls(e.prim.impl, [a.aval for a in e.ins], e.params)
    if found is None or len(found[0]) != 1:
        return False
    (call,) = found[0]
    return set(call.operands) == {0, 1} and (
        isinstance(call.function, np.ufunc) or call.function in OPERATORS
    )


def _chosen(outs: list[int], constants: list) -> Callable[..., Sequence[np.ndarray]]:
    """What gives inputs and constants back."""
    if not constants and outs == [*range(len(outs))]:
        return lambda *values: values[: len(outs)]
    return lambda *values: [(*values, *constants)[i] for i in outs]


def _one_call(
    call: Callable, at: list[int], dtype: np.dtype | None, outs: list[int], n: int, constants: list
) -> Callable[..., Sequence[np.ndarray]]:
    """A program of one equation, whose result comes first, then inputs and constants."""
    operands: Any = None if at == [*range(n)] and not constants else _getter(at)
    others = _getter(outs)

    def run(*values: np.ndarray) -> list:
        if constants:
            values = (*values, *constants)
        out = call(*values) if operands is None else call(*operands(values))
        if dtype is not None:
            if type(out) is not ndarray:
                out = asarray(out)
            if out.dtype is not dtype:
                out = out.astype(dtype, copy=False)
        return [out, *others(values)] if outs else [out]

    return run


def _calls_on_two(
    steps: list[tuple], results: Callable[[Sequence], tuple], constants: list
) -> Callable[..., Sequence[np.ndarray]]:
    """A program of calls on one operand or two each."""

    def run(*values: np.ndarray) -> Sequence:
        env = [*values, *constants]
        for call, first, second, dtype in steps:
            out = call(env[first]) if second is None else call(env[first], env[second])
            if dtype is not None:
                if type(out) is not ndarray:
                    out = asarray(out)
                if out.dtype is not dtype:
                    out = out.astype(dtype, copy=False)
            env.append(out)
        return results(env)

    return run


def _getter(places: list[int]) -> Callable[[Sequence], tuple]:
    """What takes the values at these places."""
    if len(places) != 1:
        return itemgetter(*places) if places else lambda values: ()
    (place,) = places
    return lambda values: (values[place],)


def _last_reads(jaxpr: Jaxpr) -> dict[Eqn, list[Var]]:
    """By equation, the large values that it is the last one to read: their memory is free then."""
    last = {a: e for e in jaxpr.eqns for a in e.ins if isinstance(a, Var)}
    made = {v for e in jaxpr.eqns for v in e.outs}.difference(jaxpr.outs)
    found: dict[Eqn, list[Var]] = {e: [] for e in jaxpr.eqns}
    for var, eqn in last.items():
        if var in made and var.aval.nbytes >= LARGE:
            found[eqn].append(var)
    return found


def _typed(value: PlainArray, dtype: np.dtype) -> np.ndarray:
    return np.asarray(value).astype(dtype, copy=False)
