"""The root: the trace that evaluates operations at once, and what becomes of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context, source
from funcgrad.core.array import Array, raw
from funcgrad.core.aval import ShapedArray
from funcgrad.core.backend import spmd
from funcgrad.core.buffers import beside, buffer_of, memory_of, memory_on, on_host
from funcgrad.core.checks import Checks
from funcgrad.core.eager.evaluated import evaluated, evaluated1, evaluated2
from funcgrad.core.places.device_array import (
    DeviceArray,
    device_among,
    is_distributed,
    on_device,
    wrap,
)
from funcgrad.core.places.transfers import taken_in
from funcgrad.core.primitive import Primitive
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.sharding import Device
from funcgrad.core.trace import Trace
from funcgrad.core.types import Params, PlainArray, Result, Value, Values
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
        device = None
        if not _HERE.issuperset(map(type, args)):
            if any(map(is_distributed, args)):
                return spmd().evaluate(prim, args, params)
            device = device_among(prim.name, args)
        ctx = context.current()
        if ctx.device is not None and not any(isinstance(a, Array) for a in args):
            device = ctx.device
        if ctx.checks is not None:
            _watch(ctx.checks, prim, args, params)
        values = [raw(a) if device is None else _moved(a, device) for a in args]
        avals = [
            a.aval if isinstance(a, Array) else ShapedArray(v.shape, v.dtype, _is_weak(a))
            for a, v in zip(args, values, strict=True)
        ]
        if prim.multiple:
            out_aval = prim.abstract(*avals, **params)
        else:
            out_aval = ctx.type_of(prim, avals, params)
        before = errors()
        try:
            quiet()
            if device is None:
                out = prim.impl(np, *values, **params)
            else:
                out = _run_on(device, prim, values, params)
        finally:
            loud(before)
        if np.ndarray in map(type, args):
            out = own(args, out) if prim.multiple else own(args, [out])[0]
        if prim.multiple:
            outs = [wrap(v, a) for v, a in zip(out, out_aval, strict=True)]
            if ctx.checks:
                check_finite(prim, values, outs)
            return outs
        result = wrap(out, out_aval)
        if ctx.checks:
            check_finite(prim, values, [result])
        return result


def _watch(checks: Checks, prim: Primitive, args: tuple, params: dict) -> None:
    """Tell of the arrays of NumPy's and the random keys among an operation's operands."""
    for a in args:
        if type(a) is np.ndarray:
            taken_in(a, ShapedArray(a.shape, a.dtype))
    if checks.keys is not None:
        checks.keys.watch(prim, args, params)


def _moved(x: Value, device: Device) -> PlainArray:
    """The buffer of an operand on a device, where what is on the host is copied to."""
    if isinstance(x, Array):
        return x.buffer if type(x) is DeviceArray else on_device(x, device).buffer
    return memory_on(device).put(raw(x), device)  # type: ignore[union-attr]


def _run_on(device: Device, prim: Primitive, values: Values, params: Params) -> Result:
    """What an op makes of buffers on a device, there; of none, what it makes of itself."""
    here = values[0] if values else _moved(0, device)
    with beside(here):
        return memory_of(here).run(prim, values, params, here)  # type: ignore[union-attr]


def _is_weak(operand: Value) -> bool:
    if isinstance(operand, Array):
        return operand.weak_type
    return not isinstance(operand, np.ndarray | np.generic | bool)


def own(args: Values, outs: Sequence[PlainArray]) -> list:
    """Results, copied where they share memory with a numpy array among the operands, which its
    owner may write to."""
    given = [a for a in args if type(a) is np.ndarray and a.flags.writeable]
    return [
        out.copy()
        if isinstance(out, np.ndarray) and any(np.may_share_memory(out, a) for a in given)
        else out
        for out in outs
    ]


def _has(x: Value, wild: Callable) -> bool:
    """Whether an array (of a sharded one the part in this process) has such an element."""
    value = x.buffer if isinstance(x, Array) else buffer_of(x)
    memory = memory_of(value)
    if memory is not None and memory.namespace(value) is None:
        value = on_host(value)
    with np.errstate(all="ignore"), beside(value):
        return dtypes.is_inexact(value.dtype) and bool(wild(value).any())


_WILD: dict[str, Callable] = {
    "NaN": lambda x: x != x,
    "inf": lambda x: abs(x) == np.inf,
}


def found_in(values: Sequence[Value]) -> str:
    """Which of what is watched for the values have: "NaN", "inf" or nothing, ""."""
    checks = context.current().checks or Checks()
    wanted = {"NaN": checks.nans, "inf": checks.infs}
    found = (name for name, wild in _WILD.items()
             if wanted[name] and any(_has(x, wild) for x in values))  # fmt: skip
    return next(found, "")


def check_finite(
    prim: Primitive, values: list, outs: list, place: source.Source | None = None
) -> None:
    """Raise where an op made a NaN, or an infinity, out of operands that had none."""
    found = found_in(outs)
    if found and not any(_has(x, _WILD[found]) for x in values):
        place = place or source.current()
        where = f" at {place}: {place.text}" if place else ""
        avals = ", ".join(str(ShapedArray(v.shape, v.dtype)) for v in values)
        raise NonFiniteError(
            f"{prim.name} produced {found} from operands ({avals}) without {found}{where}"
        )


context.ROOT.trace = EvalTrace(None)
