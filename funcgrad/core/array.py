"""Arrays: immutable values on a device, and the trace that evaluates operations on them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context, eager, source
from funcgrad.core.aval import ShapedArray, scalar_dtype
from funcgrad.core.backend import spmd
from funcgrad.core.methods import ArrayMethods, fact
from funcgrad.core.primitive import Primitive
from funcgrad.core.quiet import errors, loud, quiet
from funcgrad.core.sharding import Device, Shard, SingleDeviceSharding
from funcgrad.core.show_array import array_html
from funcgrad.core.trace import Trace, Tracer, captured_error, leak_error
from funcgrad.errors import DonatedBufferError, NonFiniteError, asked

current = context.current
counter, MOMENTS = eager.counter, eager.MOMENTS
ROOT = context.ROOT
ndarray = np.ndarray


class Freed:
    """What a deleted array still knows of itself."""

    __slots__ = ("dtype", "itemsize", "nbytes", "ndim", "shape", "size")

    def __init__(self, value: Any):
        self.shape, self.dtype, self.ndim = value.shape, value.dtype, value.ndim
        self.size, self.nbytes, self.itemsize = value.size, value.nbytes, value.itemsize


class Array(ArrayMethods):
    """An immutable n-dimensional array. Made by `funcgrad.numpy`, not by calling the class.

    >>> import funcgrad.numpy as fnp
    >>> x = fnp.arange(3.0)
    >>> x.at[0].set(5.0) + x
    Array([5., 2., 4.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_gone", "_value", "aval", "weak_type")

    aval: ShapedArray

    def __init__(self, value: np.ndarray, weak_type: bool = False, aval: ShapedArray | None = None):
        self._value = value
        self.weak_type = weak_type
        self._gone: str | None = None
        if aval is not None:
            self.aval = aval

    def __getattr__(self, name: str) -> Any:
        # `aval` is made when it is first asked for; from then on it is found without this.
        if name != "aval":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.aval = ShapedArray(self._value.shape, self._value.dtype, self.weak_type)
        return self.aval

    @property
    def value(self) -> np.ndarray:
        """The numpy array behind this one; it must not be written to."""
        if self._gone is not None:
            raise DonatedBufferError(
                f"this array {ShapedArray(self._value.shape, self._value.dtype)} is gone: "
                f"{self._gone}. Keep the function's result instead, or don't donate the argument."
            )
        return self._value

    shape = fact("shape", lambda self: self._value.shape)
    dtype = fact("dtype", lambda self: self._value.dtype)
    ndim = fact("ndim", lambda self: self._value.ndim)
    size = fact("size", lambda self: self._value.size)
    nbytes = fact("nbytes", lambda self: self._value.nbytes)
    itemsize = fact("itemsize", lambda self: self._value.itemsize)

    def delete(self, reason: str = "it was deleted by .delete()") -> None:
        """Give the buffer back now; using the array again raises, quoting `reason`."""
        self._gone = reason
        # Shape and dtype stay known for the error message; the memory does not.
        self._value = Freed(self._value)  # type: ignore[assignment]

    def is_deleted(self) -> bool:
        """Whether the buffer was deleted or donated."""
        return self._gone is not None

    def block_until_ready(self) -> Array:
        """Wait for the value; it is always there on CPU."""
        return self

    @property
    def sharding(self) -> Any:
        """How the array is cut over devices: not at all."""
        return SingleDeviceSharding()

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process holds all of the array."""
        return True

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts that this process holds: one, the whole."""
        whole = tuple(slice(0, n) for n in self.shape)
        return [Shard(Device(0), whole, 0, self.value)]

    def concrete(self) -> Array:
        """The array itself: its value is known."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self.value
        if dtype is not None and value.dtype != dtype:
            if copy is False:
                raise ValueError(f"an array of {value.dtype} is no {dtype} without a copy")
            return value.astype(dtype)
        if copy:
            return value.copy()
        view = value.view()
        view.flags.writeable = False
        return view

    def __dlpack__(self, **kwargs: Any) -> Any:
        value = self.value
        if (kwargs.get("max_version") or (0, 0))[0] >= 1:
            value = value.view()
            value.flags.writeable = False
        elif not value.flags.writeable:
            # Before its version 1, DLPack can't say that memory must not be written to.
            value = value.copy()
        return value.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return self.value.__index__()

    def __float__(self) -> float:
        return float(self.value)

    def __complex__(self) -> complex:
        return complex(self.value)

    def __iter__(self) -> Any:
        if not self._value.ndim:
            raise TypeError("iteration over a 0-d array")
        return (Array(np.asarray(row), self.weak_type) for row in self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value[()] if not self._value.ndim else self.value, spec)

    def item(self, *args: int) -> Any:
        """The element (of a one-element array, or at an index) as a Python scalar."""
        return self.value.item(*args)

    def tolist(self) -> Any:
        """The elements as nested Python lists."""
        return self.value.tolist()

    def tobytes(self) -> bytes:
        """The elements' bytes in C order."""
        return self.value.tobytes()

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: Any) -> Array:
        return Array(self.value.copy(), self.weak_type)

    def __reduce__(self) -> Any:
        return Array, (self.value, self.weak_type)

    def __repr__(self) -> str:
        if self._gone is not None:
            return f"Array({ShapedArray(self._value.shape, self._value.dtype)}, deleted)"
        body = np.array2string(self._value, separator=", ", prefix="Array(")
        empty = f", shape={self._value.shape}" if not self._value.size else ""
        weak = ", weak_type=True" if self.weak_type else ""
        return f"Array({body}{empty}, dtype={self._value.dtype.name}{weak})"

    def __str__(self) -> str:
        return str(self.value)

    def _repr_html_(self) -> str:
        return array_html(self.value, self.aval)


def is_distributed(value: Any) -> bool:
    """Whether an operand is an array that is cut over a mesh."""
    return isinstance(value, Array) and type(value) is not Array


_ARRAYS = frozenset({Array})
_GIVEN = "as given"  # the types that `combined` knows, beside those of operations themselves
# Operands of which it is known without a look that they aren't.
_HERE = frozenset({Array, np.ndarray, bool, int, float, complex})


def raw(value: Any) -> np.ndarray:
    """The numpy array behind a concrete operand: an Array, a numpy array or a Python scalar."""
    kind = type(value)
    if kind is Array:
        return value.value
    if kind is np.ndarray:
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, Array):
        return value.value
    if isinstance(value, Tracer):
        if not value._trace.live:
            raise leak_error(value)
        raise captured_error(value)
    if not isinstance(value, bool | int | float | complex):
        raise TypeError(
            f"{asked(value)}not an array or a scalar, so it has no value: {value!r} of "
            f"{type(value)}"
        )
    return of_scalar(value, scalar_dtype(value))


def of_scalar(value: Any, dtype: np.dtype) -> np.ndarray:
    """A Python scalar in a dtype, OverflowError where that can't hold it."""
    try:
        return np.asarray(value, dtype)
    except (OverflowError, TypeError, ValueError) as e:  # ValueError of NaN
        kind = TypeError if isinstance(e, TypeError) else OverflowError
        raise kind(
            f"{asked(value)}{value}, which {dtype} can't hold; give it a wider dtype, as in "
            "fnp.int64(...)"
        ) from e


_SETTLED = 1 << 24  # bytes


def settled(value: Any) -> np.ndarray:
    """As `raw`, for compiled code, which reads memory in row-major order: an Array that is another
    view (broadcast, transposed) is copied once, not at each call, unless it is very large."""
    x = raw(value)
    if type(value) is Array and not x.flags.c_contiguous and x.nbytes <= _SETTLED:
        value._value = x = np.ascontiguousarray(x)
    return x


class EvalTrace(Trace):
    """The root: runs each operation's `impl` at once."""

    what = "evaluation"

    def process(self, prim: Primitive, args: tuple, params: dict) -> Any:
        n = len(args)
        if n == 2:
            out = evaluated2(prim, args[0], args[1], params)
        elif n == 1:
            out = evaluated1(prim, args[0], params, True)
        else:
            out = _evaluated(prim, args, params)
        return self._evaluate(prim, args, params) if out is None else out

    def _evaluate(self, prim: Primitive, args: tuple, params: dict) -> Any:
        """Evaluate on operands of any kind, and remember the result's type for next time."""
        if not _HERE.issuperset(map(type, args)) and any(map(is_distributed, args)):
            return spmd().evaluate(prim, args, params)
        values = [raw(a) for a in args]
        avals = [
            a.aval if type(a) is Array else ShapedArray(v.shape, v.dtype, _is_weak(a))
            for a, v in zip(args, values, strict=True)
        ]
        ctx = current()
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


def evaluated2(prim: Primitive, x: Any, y: Any, params: dict) -> Array | None:
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
    if known is None or x._gone is not None or y._gone is not None or ctx.debug_nans:
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
    prim: Primitive, x: Any, params: dict | None = None, at_root: bool = False
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
    if known is None or x._gone is not None or ctx.debug_nans:
        return None
    if next(counter) in MOMENTS:
        eager.consider()
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


def _evaluated(prim: Primitive, args: tuple, params: dict) -> Array | None:
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
    if known is None or ctx.debug_nans or any(x._gone is not None for x in args):
        return None
    aval, impl = known
    before = errors()
    try:
        quiet()
        out = impl(np, *[x._value for x in args], **params)
    finally:
        loud(before)
    return wrap(out, aval)


def recipe1(prim: Primitive, ctx: context.Context, x: Array) -> eager.Recipe | None:
    """What `evaluated1` would do."""
    a = x._value
    known = ctx.types.get((prim, a.shape, a.dtype, x.weak_type))
    return None if known is None else eager.Recipe(known[0], (0,), known[1])


def combined(prim: Primitive, x: Any, y: Any) -> Array | None:
    """The result of an elementwise op on operands as users give them, Arrays that broadcast or an
    Array and a number: None, unless `remember_combined` met operands of these types before. Under a
    transformation it is always None, since its trace is to apply the op."""
    ctx = current()
    if ctx.trace is not ROOT.trace or ctx.debug_nans:
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
        eager.consider()
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


def remember_combined(
    prim: Primitive, given: Sequence[Any], taken: Sequence[Any], out: Any
) -> None:
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


def recipe2(prim: Primitive, ctx: context.Context, x: Any, y: Any) -> eager.Recipe | None:
    """What `combined` would do."""
    key = _given_key(prim, (x, y))
    known = None if key is None else ctx.types.get(key)
    return None if known is None else eager.Recipe(known[0], (0, 1), known[1])


def _given_key(prim: Primitive, given: Sequence[Any]) -> tuple | None:
    key: list[Any] = [_GIVEN, prim]
    for x in given:
        if type(x) is Array:
            key += x._value.shape, x._value.dtype, x.weak_type
        elif type(x) is float or type(x) is int:
            key.append(type(x))
        else:
            return None
    return tuple(key)


def _is_weak(operand: Any) -> bool:
    if isinstance(operand, Array):
        return operand.weak_type
    return not isinstance(operand, np.ndarray | np.generic | bool)


def wrap(value: Any, aval: ShapedArray) -> Array:
    """An Array of what an `impl` returned, in the dtype that the op's type promises."""
    if is_distributed(value):
        return value
    if type(value) is not ndarray:
        value = np.asarray(value)
    if value.dtype is aval.dtype:
        return Array(value, aval.weak_type, aval)
    return Array(value.astype(aval.dtype, copy=False), aval.weak_type)


def own(args: Sequence[Any], outs: Sequence[Any]) -> list:
    """Results, copied where they share memory with a numpy array among the operands, which its
    owner may write to."""
    given = [a for a in args if type(a) is np.ndarray and a.flags.writeable]

    def owned(out: Any) -> Any:
        if is_distributed(out):
            return out
        value = np.asarray(out)
        return value.copy() if any(np.may_share_memory(value, a) for a in given) else value

    return [owned(o) for o in outs]


def has_nan(x: Any) -> bool:
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


ROOT.trace = EvalTrace(None)
