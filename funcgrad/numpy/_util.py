"""What every function of `funcgrad.numpy` does first: arguments to arrays, one dtype, one shape.

Python scalars are weakly typed, numpy's arrays and scalars keep their dtype, lists are no operands.
Operands that fit already are passed on untouched, so that eager calls cost what the op costs.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import backend, context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray, scalar_dtype
from funcgrad.core.aval import promote as _promote_avals
from funcgrad.core.eager.evaluated import combined, recipe2, remember_combined
from funcgrad.core.eager.functions import EagerFunction, Recipe
from funcgrad.core.places.transfers import taken_in
from funcgrad.core.primitive import Primitive
from funcgrad.core.source import called_within
from funcgrad.core.trace import Tracer
from funcgrad.errors import DTypeError, ShapeError, TypePromotionError, asked, within
from funcgrad.ops.arguments import (
    canonical_axes,
    canonical_axis,
    check_callable,
    integer,
    integers,
    items_of,
    shape_of,
)
from funcgrad.ops.base import broadcast_p
from funcgrad.ops.elementwise.convert import convert_element_type, convert_element_type_p
from funcgrad.transforms.recorded import recipe, recorded

__all__ = [
    "align", "applied", "as_array", "as_dtype", "axes_of", "binary", "broadcast",
    "broadcast_shapes", "broadcast_to", "canonical_axes", "canonical_axis", "check_callable",
    "convert", "default_float", "default_int", "documented", "dtype_or", "elementwise",
    "integer", "integers", "is_scalar", "keep_weak", "items_of", "made", "made_on", "mask_of",
    "need_plain", "need_real", "need_scalar", "no_out", "placed", "scalar_as", "number", "numbers",
    "promote", "promote_and_broadcast", "promote_inexact", "quick", "shape_of",
]  # fmt: skip

asarray = np.asarray
_SCALARS = frozenset({np.float32, np.float64, np.int32, np.int64, np.uint32, np.bool_})
_NUMPY = _SCALARS | {np.ndarray}

# ---- one argument


def is_scalar(x: Any) -> bool:
    """Whether x is a Python scalar (numpy's scalars have a dtype, so they are arrays here)."""
    return isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic)


def as_array(name: str, x: Any, argument: str = "an argument") -> Any:
    """x as an Array or Tracer: Python scalars, and those that NumPy makes of them, become weakly
    typed arrays.

    Raises TypeError, naming the function and the argument, for lists and everything else.
    """
    if type(x) is Array or isinstance(x, Array | Tracer):
        return x
    if is_scalar(x):
        return number(name, x, scalar_dtype(x), weak=type(x) is not bool, argument=argument)
    if isinstance(x, np.ndarray | np.generic):
        if type(x) is not np.ndarray or x.dtype.names is not None:
            need_plain(name, x)
        taken_in(x, ShapedArray(x.shape, x.dtype))
        # Whoever holds a writeable array may write to it later.
        value = np.array(x, dtypes.canonical(x.dtype), copy=x.flags.writeable or None)
        return Array(value, type(x) in dtypes.NUMBERS)
    if hasattr(x, "__jax_array__"):
        return as_array(name, x.__jax_array__(), argument)
    raise TypeError(within(_no_operand(name, x, argument)))


def need_plain(name: str, x: Any) -> None:
    """Raise for arrays of numpy's that are more than their values, or have none."""
    if hasattr(x, "mask"):
        raise TypeError(
            within(f"{name}: got a masked array, whose mask would be lost; use its .filled(...)")
        )
    if x.dtype == dtypes.float0:
        raise TypeError(
            within(
                f"{name}: got an array of float0, the derivative of what has none: there are no "
                "values to compute with. Leave such leaves out, or take zeros of the argument's "
                "shape"
            )
        )


def need_scalar(name: str, x: Any, argument: str) -> Any:
    """An argument as it is, which must be a scalar."""
    if np.ndim(x):
        shape = tuple(np.shape(x))
        raise ShapeError(f"{name}: {argument} must be a scalar, got an array of shape {shape}")
    return x


def scalar_as(name: str, x: Any, dtype: np.dtype, argument: str) -> Any:
    """An argument that must be a scalar as an array of a dtype."""
    return as_dtype(name, need_scalar(name, x, argument), dtype, argument)


def mask_of(name: str, where: Any) -> Any:
    """A `where=` argument as an array, which must be of bools."""
    mask = as_array(name, where, "where")
    if mask.dtype != dtypes.BOOL:
        raise DTypeError(f"{name}: where must be an array of bools, got {mask.aval}")
    return mask


def no_out(name: str, out: Any) -> None:
    """Raise where an `out=` argument is given."""
    if out is not None:
        raise NotImplementedError(
            within(f"{name}: arrays are immutable, so there is no out=; use the result")
        )


def _no_operand(name: str, x: Any, argument: str) -> str:
    if isinstance(x, list | tuple):
        return (
            f"{name}: {argument} is a {type(x).__name__}: {_short(x)}; arrays and scalars are "
            "needed. Convert it with fnp.array(...)"
        )
    return f"{name}: {argument} must be an array or a scalar, got {type(x)}: {_short(x)}"


def _short(x: Any) -> str:
    try:
        text = repr(x)
    except RecursionError:
        return "one nested too deep to be shown"
    return text if len(text) <= 80 else text[:77] + "..."


def number(
    name: str, value: Any, dtype: np.dtype, weak: bool, argument: str = "an argument"
) -> Array:
    """A Python scalar as a 0-d array of a dtype; OverflowError where the dtype can't hold it."""
    try:
        return Array(asarray(value, dtype), weak)
    except OverflowError as e:
        message = f"{name}: {argument} is {value}, which {dtype} can't hold; give it a wider dtype"
        raise OverflowError(within(f"{message}, as in fnp.int64(...)")) from e


def _label(i: int, count: int) -> str:
    """How errors call argument i: binary functions have x and y."""
    return "xy"[i] if count <= 2 else f"argument {i}"


def as_positions(name: str, x: Any, argument: str) -> Any:
    """x as an array; of Python's integers also such as only int64 holds."""
    if type(x) is int and 31 <= x.bit_length() < 64:
        x = np.int64(x)
    return as_array(name, x, argument)


# ---- dtypes


def default_float() -> np.dtype:
    """The dtype of floats that nothing else determines: float32, or fg.default_dtype's."""
    return context.current().float_dtype


def default_int() -> np.dtype:
    """The dtype of integers that nothing else determines: int32, or fg.default_dtype's."""
    return context.current().int_dtype


def index_dtype(size: int | np.integer) -> np.dtype:
    """The dtype of positions on an axis: that of default integers, or int64 if it is too small.

    That of counts of up to n elements is `index_dtype(n + 1)`.
    """
    kind = default_int()
    return kind if size - 1 <= int(dtypes.iinfo(kind).max) else np.dtype(np.int64)


def dtype_or(dtype: Any, otherwise: np.dtype) -> np.dtype:
    """A `dtype=` argument as a numpy dtype; Python's float, int and complex mean the defaults."""
    if dtype is None:
        return otherwise
    if dtype is float:
        return default_float()
    if dtype is int:
        return default_int()
    return dtypes.to_complex(default_float()) if dtype is complex else dtypes.canonical(dtype)


def convert(x: Any, dtype: np.dtype, weak: bool = False) -> Any:
    """An array in a dtype, strong or weak; x itself where it is so already."""
    aval = x.aval
    if aval.dtype == dtype and aval.weak_type == weak:
        return x
    if weak:
        return convert_element_type_p.bind(x, new_dtype=dtype, weak_type=True)
    return convert_element_type(x, dtype)


def as_dtype(
    name: str, x: Any, dtype: np.dtype, argument: str = "an argument", weak: bool = False
) -> Any:
    """x as an array of a dtype; a Python number at full precision: float64's 0.1 is not float32's.

    Raises TypeError, naming the function and the argument, for what is no array or scalar.
    """
    if type(x) in (int, float) and dtypes.is_inexact(dtype):
        return number(name, x, dtype, weak, argument)
    return convert(as_array(name, x, argument), dtype, weak)


def keep_weak(out: Any, *operands: Any) -> Any:
    """The result of a composed function: weak where all operands are, as if it were one op."""
    return convert(out, out.dtype, all(x.weak_type for x in operands))


def numbers(*arrays: Any) -> list[Any]:
    """Arrays of one dtype with bool as the default integer."""
    if arrays[0].dtype != dtypes.BOOL:
        return list(arrays)
    return [convert(x, default_int()) for x in arrays]


def as_python(args: Sequence[Any]) -> Sequence[Any]:
    """Arguments, among which NumPy's scalars of its default dtypes count as Python's numbers where
    they are beside an array: so `x / np.sqrt(n)` has the dtype of x."""
    known = [type(a) in dtypes.NUMBERS for a in args]
    if any(known) and any(isinstance(a, Array | Tracer) for a in args):
        return [a.item() if k else a for a, k in zip(args, known, strict=True)]
    return args


def _to_common(
    name: str, args: Sequence[Any], common: Callable[[list[ShapedArray]], tuple[np.dtype, bool]]
) -> list[Any]:
    """Arguments as arrays of the dtype, and weakness, that `common` says for their types."""
    n, args = len(args), as_python(args)
    plain = [is_scalar(a) for a in args]
    arrays = [a if s else as_array(name, a, _label(i, n))
              for i, (a, s) in enumerate(zip(args, plain, strict=True))]  # fmt: skip
    avals = [ShapedArray((), scalar_dtype(a), type(a) is not bool) if s else a.aval
             for a, s in zip(arrays, plain, strict=True)]  # fmt: skip
    dtype, weak = common(avals)
    checks = context.current().checks
    if checks is not None and checks.dtypes == "strict" and _is_users(name):
        _need_one_dtype(name, avals, _promote_avals(avals)[0])
    out: list[Any] = []
    for i, (a, s, aval) in enumerate(zip(arrays, plain, avals, strict=True)):
        if s:
            # At its full precision, once: float64's 0.1 is not float32's.
            out.append(number(name, a, dtype, weak, _label(i, n)))
        elif aval.dtype != dtype or (weak and not aval.weak_type):
            out.append(convert(a, dtype, weak))
        else:
            out.append(a)
    return out


def _is_users(name: str) -> bool:
    """Whether the user's code calls this function; what the library's own functions do with what
    they made is no matter of users' settings."""
    below = "core", "ops", "transforms", "numpy", "backends"
    return asked() in ("", f"{name}: ") and not called_within(*below)


def _need_one_dtype(name: str, avals: list[ShapedArray], common: np.dtype) -> None:
    """Raise where operands would be converted, but for numbers beside arrays of their kind."""
    given = dict.fromkeys(a.dtype for a in avals if not a.weak_type)
    if len(given) > 1 or (given and common not in given):
        found = " and ".join(str(d) for d in dict.fromkeys([*given, *(a.dtype for a in avals)]))
        raise TypePromotionError(
            within(
                f"{name}: {found} don't promote where numpy_dtype_promotion is 'strict'; convert "
                "one with .astype(dtype)"
            )
        )


def promote(name: str, *args: Any) -> list[Any]:
    """Arguments as arrays of their common dtype (JAX's lattice with weak types).

    Shapes stay as they are. Raises TypePromotionError where there is no common dtype.
    """
    if len(args) == 2 and type(args[0]) is type(args[1]) is Array:
        x, y = args
        if x._value.dtype == y._value.dtype:
            return [x, y]
    return _to_common(name, args, _promote_avals)


def _promote_inexact_avals(avals: list[ShapedArray]) -> tuple[np.dtype, bool]:
    dtype, weak = _promote_avals(avals)
    return dtypes.to_inexact(dtype, default_float()), weak


def promote_inexact(name: str, *args: Any) -> list[Any]:
    """Arguments as arrays of one floating-point or complex dtype: the default float for integers.

    Shapes stay as they are.
    """
    if len(args) == 1:
        # The functions of one argument: nothing to do for floats.
        x = args[0]
        if (type(x) is Array or isinstance(x, Tracer)) and x.aval.dtype.kind in "fc":
            return [x]
    return _to_common(name, args, _promote_inexact_avals)


# ---- shapes


def broadcast_shapes(name: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all `shapes` broadcast to by NumPy's rules.

    Raises ShapeError naming the function, the two arguments and the sizes that differ.
    """
    checks = context.current().checks
    if checks is not None and checks.ranks != "allow" and _is_users(name):
        _watch_ranks(name, shapes, checks.ranks)
    ndim = max(map(len, shapes), default=0)
    out = [1] * ndim
    source = [0] * ndim
    for i, shape in enumerate(shapes):
        for axis, n in enumerate(shape, start=ndim - len(shape)):
            if n == 1 or n == out[axis]:
                continue
            if out[axis] != 1:
                first, second = _label(source[axis], len(shapes)), _label(i, len(shapes))
                raise ShapeError(
                    f"{name}: {first} of shape {tuple(shapes[source[axis]])} and {second} of shape "
                    f"{tuple(shape)} can't be broadcast together: their sizes {out[axis]} and {n} "
                    f"at axis {axis - ndim} differ, and neither is 1"
                )
            out[axis], source[axis] = n, i
    return tuple(out)


def _watch_ranks(name: str, shapes: Sequence[Sequence[int]], how: str) -> None:
    """Tell where operands of different ranks broadcast, which `numpy_rank_promotion` forbids."""
    if len({len(s) for s in shapes if s}) > 1:
        found = " and ".join(str(tuple(s)) for s in shapes)
        told = f"{name}: shapes {found} have different ranks, which numpy_rank_promotion forbids"
        if how == "raise":
            raise ShapeError(f"{told}; write x[None] or fnp.expand_dims")
        warnings.warn(told, stacklevel=4)


def broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    """An array broadcast to a shape that is known to fit; x itself where it has that shape."""
    own = x.shape
    if own == shape:
        return x
    dims = tuple(range(len(shape) - len(own), len(shape)))
    return broadcast_p.bind(x, shape=shape, broadcast_dimensions=dims)


def broadcast(name: str, *args: Any) -> list[Any]:
    """Arguments as arrays of their common shape; dtypes stay as they are."""
    arrays = [as_array(name, a, _label(i, len(args))) for i, a in enumerate(args)]
    shape = broadcast_shapes(name, *(a.shape for a in arrays))
    return [broadcast_to(a, shape) for a in arrays]


def align(name: str, arrays: list[Any]) -> list[Any]:
    """Arrays as elementwise ops take them: of one shape, but scalars, which ops take as they are.

    Where all are scalars of one element in different ranks, the common shape is made of them.
    """
    shape = arrays[0].shape
    if all(a.shape == shape for a in arrays):
        return arrays
    shape = broadcast_shapes(name, *(a.shape for a in arrays))
    return [broadcast_to(a, shape) if a.shape else a for a in arrays]


def promote_and_broadcast(name: str, *args: Any) -> list[Any]:
    """Arguments as arrays of one dtype and one shape; scalars stay scalars, as ops take them."""
    if len(args) == 2:
        x, y = (as_array(name, a) if type(a) in _SCALARS else a for a in as_python(args))
        a = x.aval if type(x) is Array or isinstance(x, Tracer) else None
        b = y.aval if type(y) is Array or isinstance(y, Tracer) else None
        if a is None:
            if b is not None and _yields(x, b):
                return [number(name, x, b.dtype, False, "x"), y]
        elif b is None:
            if _yields(y, a):
                return [x, number(name, y, a.dtype, False, "y")]
        elif a.dtype == b.dtype and (a.shape == b.shape or not (a.shape and b.shape)):
            return [x, y]
        args = x, y
    return align(name, promote(name, *args))


# The kinds of dtypes, as numpy has them, that a Python number takes beside an array.
_KINDS = {float: "fc", int: "fciu"}


def _yields(scalar: Any, x: ShapedArray) -> bool:
    """Whether a Python scalar takes x's dtype, as far as that is plain to see."""
    return not x.weak_type and x.dtype.kind in _KINDS.get(type(scalar), "")


def quick(name: str, prim: Primitive, fun: Callable) -> Callable:
    """A function of two arguments to which it applies an elementwise primitive, by the shortest way
    that there is."""
    general = recorded(fun, alone=True)

    def by_python(x: Any, y: Any, /) -> Any:
        if type(x) in dtypes.NUMBERS or type(y) in dtypes.NUMBERS:
            x, y = as_python((x, y))
        ctx = context.current()
        if ctx.trace is context.ROOT.trace:
            out = combined(prim, x, y)
            if out is None and (type(x) in _NUMPY or type(y) in _NUMPY):
                x = as_array(name, x, "x") if type(x) in _NUMPY else x
                y = as_array(name, y, "y") if type(y) in _NUMPY else y
                return function(x, y)
        else:
            out = ctx.trace.ready2(ctx, fun, x, y)
        return general(*with_array(name, x, y)) if out is None else out

    def known(ctx: context.Context, args: tuple, kwargs: dict) -> Recipe | None:
        return recipe2(prim, ctx, *args) or recipe(fun, ctx, args, kwargs)

    swift = EagerFunction(by_python, known, numbers=True)

    def function(x: Any, y: Any, /) -> Any:
        return swift.call(x, y)

    vars(function)["swift"] = swift
    return function


def with_array(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    """Two arguments, with a number beside a traced array of floats as the array that an op takes:
    so that what is recorded doesn't depend on the number."""
    if type(y) in _KINDS and isinstance(x, Tracer) and _takes(x.aval, y):
        return x, number(name, y, x.aval.dtype, False, "y")
    if type(x) in _KINDS and isinstance(y, Tracer) and _takes(y.aval, x):
        return number(name, x, y.aval.dtype, False, "x"), y
    return x, y


def _takes(x: ShapedArray, number: Any) -> bool:
    return x.dtype.kind in "fc" and _yields(number, x)


def binary(name: str, prim: Primitive) -> Callable:
    """The function that applies an elementwise primitive to two arguments that promote and
    broadcast."""
    return quick(name, prim, lambda x, y: applied(prim, (x, y), promote_and_broadcast(name, x, y)))


def applied(prim: Primitive, given: Sequence[Any], operands: Sequence[Any]) -> Any:
    """A primitive of two operands that were made of those given, which is quicker next time."""
    out = prim.bind(*operands)
    remember_combined(prim, given, operands, out)
    return out


def elementwise(name: str, prim: Any, *args: Any) -> Any:
    """A primitive applied to arguments of any dtypes and shapes that promote and broadcast."""
    return prim.bind(*promote_and_broadcast(name, *args))


def axes_of(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """An `axis=` argument (None for all axes, an integer or a sequence) as non-negative axes."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, tuple | list):
        return canonical_axes(name, axis, ndim)
    return (canonical_axis(name, axis, ndim),)


def need_real(name: str, x: Any) -> None:
    """Raise DTypeError for complex arrays, which have no order."""
    if dtypes.is_complex(x.dtype):
        raise DTypeError(f"{name}: need real numbers, got {x.aval}: complex ones have no order")


def documented(function: Any, name: str, *paragraphs: str) -> Any:
    """A function made by a family, under its public name, with a docstring of paragraphs."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = "funcgrad.numpy"  # where it is found again, as by pickle
    function.__doc__ = "\n\n".join(map(inspect.cleandoc, paragraphs)) + "\n"
    return function


def made(make: Callable[[], Any], device: Any) -> Any:
    """What `make` gives, as `made_on` the device or the default one; for functions that know which
    of them there is."""
    where = context.current().device if device is None else device
    with context.scoped(device=None):
        return placed(make(), where)


def made_on(x: Any, device: Any) -> Any:
    """What a function made of no arrays, on the device that its `device=` asked for, else on the
    default one."""
    return placed(x, context.current().device if device is None else device)


def placed(x: Any, device: Any) -> Any:
    """A function's result on the device, or cut by the sharding, that its `device=` asked for."""
    return x if device is None else backend.door("devices").device_put(x, device)
