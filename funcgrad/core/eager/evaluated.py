"""Operations evaluated before on operands of the same types: what finding out took is left out.

Each function gives None where anything is otherwise, which is for `core.evaluation` to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.eager import functions
from funcgrad.core.places.device_array import wrap
from funcgrad.core.primitive import Primitive
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.types import Value, Values

current = context.current
counter, MOMENTS = functions.counter, functions.MOMENTS
ROOT = context.ROOT
ndarray = np.ndarray

_ARRAYS = frozenset({Array})
_GIVEN = "as given"  # the types that `combined` knows, beside those of operations themselves


def evaluated2(prim: Primitive, x: Value, y: Value, params: dict) -> Array | None:
    """The op's result on two Arrays whose types it was evaluated on before, in this context; None
    where anything is otherwise."""
    if type(x) is not Array or type(y) is not Array:
        return None
    ctx = current()
    a, b = x._value, y._value
    key: tuple = (prim, a.shape, a.dtype, x.weak_type, b.shape, b.dtype, y.weak_type)
    if params:
        key += tuple(params.items())
    try:
        known = ctx.types.get(key)
    except TypeError:  # a parameter that has no hash
        return None
    if known is None or x._gone is not None or y._gone is not None or ctx.checks:
        return None
    aval, impl = known
    before = errors()
    try:
        quiet()
        out = impl(np, a, b, **params) if params else impl(np, a, b)
    finally:
        loud(before)
    if type(out) is not ndarray or out.dtype is not aval.dtype:
        return wrap(out, aval)
    return Array(out, aval.weak_type, aval)


def evaluated1(
    prim: Primitive, x: Value, params: dict | None = None, at_root: bool = False
) -> Array | None:
    """As `evaluated2`, of one Array and parameters; None under a transformation, too, unless the op
    came through it (`at_root`)."""
    ctx = current()
    if type(x) is not Array or (not at_root and ctx.trace is not ROOT.trace):
        return None
    a = x._value
    try:
        if params:
            known = ctx.types.get((prim, a.shape, a.dtype, x.weak_type, *params.items()))
        else:
            known = ctx.types.get((prim, a.shape, a.dtype, x.weak_type))
    except TypeError:  # a parameter that has no hash
        return None
    if known is None or x._gone is not None or ctx.checks:
        return None
    if next(counter) in MOMENTS:
        functions.consider()
    aval, impl = known
    before = errors()
    try:
        quiet()
        out = impl(np, a, **params) if params else impl(np, a)
    finally:
        loud(before)
    if type(out) is not ndarray or out.dtype is not aval.dtype:
        return wrap(out, aval)
    return Array(out, aval.weak_type, aval)


def evaluated(prim: Primitive, args: tuple, params: dict) -> Array | None:
    """As `evaluated2` at the root, of any number of Arrays."""
    if not _ARRAYS.issuperset(map(type, args)):
        return None
    ctx = current()
    key: list[Any] = [prim]
    for x in args:
        key += x._value.shape, x._value.dtype, x.weak_type
    if params:
        key += params.items()
    try:
        known = ctx.types.get(tuple(key))
    except TypeError:  # a parameter that has no hash
        return None
    if known is None or ctx.checks or any(x._gone is not None for x in args):
        return None
    aval, impl = known
    before = errors()
    try:
        quiet()
        out = impl(np, *[x._value for x in args], **params)
    finally:
        loud(before)
    return wrap(out, aval)


def recipe1(prim: Primitive, ctx: context.Context, x: Array) -> functions.Recipe | None:
    """What `evaluated1` would do."""
    a = x._value
    known = ctx.types.get((prim, a.shape, a.dtype, x.weak_type))
    return None if known is None else functions.Recipe(known[0], (0,), known[1])


def combined(prim: Primitive, x: Value, y: Value) -> Array | None:
    """The result of an elementwise op on operands as users give them, Arrays that broadcast or an
    Array and a number: None, unless `remember_combined` met operands of these types before. Under a
    transformation it is always None, since its trace is to apply the op."""
    ctx = current()
    if ctx.trace is not ROOT.trace or ctx.checks:
        return None
    a: Any = None
    b: Any = None
    if type(x) is Array:
        a = x._value
        if type(y) is Array:
            b = y._value
            if x._gone is not None or y._gone is not None:
                return None
            known = ctx.types.get(
                (_GIVEN, prim, a.shape, a.dtype, x.weak_type, b.shape, b.dtype, y.weak_type)
            )
        elif x._gone is not None:
            return None
        else:
            known = ctx.types.get((_GIVEN, prim, a.shape, a.dtype, x.weak_type, type(y)))
    elif type(y) is Array and y._gone is None:
        b = y._value
        known = ctx.types.get((_GIVEN, prim, type(x), b.shape, b.dtype, y.weak_type))
    else:
        return None
    if known is None:
        return None
    if next(counter) in MOMENTS:
        functions.consider()
    aval, impl = known
    before = errors()
    try:
        quiet()
        if a is None:
            a = np.asarray(x, b.dtype)
        elif b is None:
            b = np.asarray(y, a.dtype)
        out = impl(np, a, b)
    except OverflowError:  # a number that the dtype can't hold, of which others tell
        return None
    finally:
        loud(before)
    if type(out) is not ndarray or out.dtype is not aval.dtype:
        return wrap(out, aval)
    return Array(out, aval.weak_type, aval)


def remember_combined(prim: Primitive, given: Values, taken: Values, out: Value) -> None:
    """Let `combined` know a result's type, where the op took the dtypes that a user gave: NumPy
    then does in one go what a broadcast would do first."""
    ctx = current()
    if ctx.trace is not ROOT.trace or type(out) is not Array:
        return
    for x, operand in zip(given, taken, strict=True):
        if type(x) is Array and (
            operand.dtype is not x._value.dtype or operand.weak_type is not x.weak_type
        ):
            return
    key = _given_key(prim, given)
    if key is not None:
        ctx.remember(key, prim, out.aval)


def recipe2(prim: Primitive, ctx: context.Context, x: Value, y: Value) -> functions.Recipe | None:
    """What `combined` would do."""
    key = _given_key(prim, (x, y))
    known = None if key is None else ctx.types.get(key)
    return None if known is None else functions.Recipe(known[0], (0, 1), known[1])


def _given_key(prim: Primitive, given: Values) -> tuple | None:
    key: list[Any] = [_GIVEN, prim]
    for x in given:
        if type(x) is Array:
            key += x._value.shape, x._value.dtype, x.weak_type
        elif type(x) is float or type(x) is int:
            key.append(type(x))
        else:
            return None
    return tuple(key)
