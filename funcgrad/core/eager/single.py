"""Functions of the library that mostly do one operation: native code then does their calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from funcgrad.core import context
from funcgrad.core.array import Array, raw
from funcgrad.core.eager.functions import EagerFunction, Recipe
from funcgrad.core.eager.large import implementation
from funcgrad.core.evaluation import EvalTrace
from funcgrad.core.primitive import Primitive
from funcgrad.core.types import Result, Value


class _Noting(EvalTrace):
    """Evaluates, and notes the operations."""

    def __init__(self) -> None:
        super().__init__(None)
        self.done: list[tuple] = []

    def process(self, prim: Primitive, args: tuple, params: dict) -> Result:
        out = super().process(prim, args, params)
        self.done.append((prim, args, params, out))
        return out


def single(fun: Callable) -> Callable:
    """Decorates a function of the library that mostly does one operation, the same whatever the
    values of its operands are, so that it is quick on small arrays: then by native code (see
    `core.eager.functions`). Where it does several, it stays as it is.

    >>> import funcgrad.numpy as fnp
    >>> negative = single(lambda x: fnp.negative(x))
    >>> negative(fnp.ones(2))
    Array([-1., -1.], dtype=float32)
    """
    swift = EagerFunction(fun, partial(_observed, fun))

    @wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Value:
        return swift.call(*args, **kwargs)

    vars(call)["swift"] = swift
    return call


def _observed(fun: Callable, ctx: context.Context, args: tuple, kwargs: dict) -> Recipe | None:
    """The one operation that a call does, as a recipe; None where it isn't one."""
    # One array given twice is two operands: they are told apart as arrays of their own.
    args = tuple([_alike(x) for x in args])
    kwargs = {name: _alike(x) for name, x in kwargs.items()}
    given = (*args, *kwargs.values())
    try:
        hash(tuple(x for x in given if type(x) is not Array))
    except TypeError:  # what can change: a list, a numpy array
        return None
    noting = _Noting()
    before = context.current()
    try:
        context.switch(ctx.with_trace(noting))
        result = fun(*args, **kwargs)
    finally:
        context.switch(before)
    if len(noting.done) != 1 or noting.done[0][-1] is not result:
        return None
    prim, operands, params, out = noting.done[0]
    places: list[Any] = []
    for x in operands:
        at = [i for i, g in enumerate(given) if type(x) is Array and g is x]
        places.append(at[0] if at else raw(x))
    arrays = {i for i, g in enumerate(given) if type(g) is Array}
    # An array that is no operand was looked at: what a shape or an axis is given as.
    if not arrays or not arrays.issubset(p for p in places if type(p) is int):
        return None
    return Recipe(out.aval, places, implementation(prim, out.aval), params)


def _alike(x: Value) -> Value:
    """Another Array of the same value; what isn't an Array as it is."""
    return Array(x._value, x.weak_type, x.aval) if type(x) is Array else x
