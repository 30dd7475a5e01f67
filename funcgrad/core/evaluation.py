"""The root: the trace that evaluates operations at once, and what becomes of their results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context, source
from funcgrad.core.array import Array, is_distributed, raw, wrap
from funcgrad.core.aval import ShapedArray
from funcgrad.core.backend import spmd
from funcgrad.core.eager.evaluated import evaluated, evaluated1, evaluated2
from funcgrad.core.primitive import Primitive
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.trace import Trace
from funcgrad.core.types import PlainArray, Result, Value, Values
from funcgrad.errors import NonFiniteError

# Operands of which it is known without a look that they aren't cut over devices.
_HERE = frozenset({Array, np.ndarray, bool, int, float, complex})


class EvalTrace(Trace):
    """The root: runs each operation's `impl` at once."""

    what = "evaluation"

    def process(self, prim: Primitive, args: tuple, params: dict) -> Result:
        n = len(args)
        if n == 2:
            out = evaluated2(prim, args[0], args[1], params)
        elif n == 1:
            out = evaluated1(prim, args[0], params, True)
        else:
            out = evaluated(prim, args, params)
        return self._evaluate(prim, args, params) if out is None else out

    def _evaluate(self, prim: Primitive, args: tuple, params: dict) -> Result:
        """Evaluate on operands of any kind, and remember the result's type for next time."""
        if not _HERE.issuperset(map(type, args)) and any(map(is_distributed, args)):
            return spmd().evaluate(prim, args, params)
        values = [raw(a) for a in args]
        avals = [
            a.aval if type(a) is Array else ShapedArray(v.shape, v.dtype, _is_weak(a))
            for a, v in zip(args, values, strict=True)
        ]
        ctx = context.current()
        if prim.multiple:
            out_aval = prim.abstract(*avals, **params)
        else:
            out_aval = ctx.type_of(prim, avals, params)
        before = errors()
        try:
            quiet()
            out = prim.impl(np, *values, **params)
        finally:
            loud(before)
        if np.ndarray in map(type, args):
            out = own(args, out) if prim.multiple else own(args, [out])[0]
        if prim.multiple:
            outs = [wrap(v, a) for v, a in zip(out, out_aval, strict=True)]
            if ctx.debug_nans:
                check_finite(prim, values, outs)
            return outs
        result = wrap(out, out_aval)
        if ctx.debug_nans:
            check_finite(prim, values, [result])
        return result


def _is_weak(operand: Value) -> bool:
    if isinstance(operand, Array):
        return operand.weak_type
    return not isinstance(operand, np.ndarray | np.generic | bool)


def own(args: Values, outs: Sequence[PlainArray]) -> list:
    """Results, copied where they share memory with a numpy array among the operands, which its
    owner may write to."""
    given = [a for a in args if type(a) is np.ndarray and a.flags.writeable]

    def owned(out: PlainArray) -> PlainArray:
        if is_distributed(out):
            return out
        value = np.asarray(out)
        return value.copy() if any(np.may_share_memory(value, a) for a in given) else value

    return [owned(o) for o in outs]


def has_nan(x: Value) -> bool:
    """Whether an array (of a sharded one the part in this process) has an element that isn't a
    number."""
    value = x.kept if is_distributed(x) else raw(x)
    with np.errstate(all="ignore"):
        return dtypes.is_inexact(value.dtype) and bool(np.any(value != value))


def check_finite(
    prim: Primitive, values: list, outs: list, place: source.Source | None = None
) -> None:
    """Raise where an op made a NaN out of operands that had none."""

    if any(map(has_nan, outs)) and not any(map(has_nan, values)):
        place = place or source.current()
        where = f" at {place}: {place.text}" if place else ""
        avals = ", ".join(str(ShapedArray(v.shape, v.dtype)) for v in values)
        raise NonFiniteError(f"{prim.name} produced NaN from operands ({avals}) without NaN{where}")


context.ROOT.trace = EvalTrace(None)
