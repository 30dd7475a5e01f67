"""Ops that convert, choose and pass on values: casts, bitcasts, select, clamp, copies.

Casts from floats to integers saturate and send NaN to 0, on every machine. A choice is
differentiated in what it chose; the selector has no derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core.array import Array, of_scalar
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import aval_of
from funcgrad.core.views import in_order
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops import identities
from funcgrad.ops.arguments import integer
from funcgrad.ops.base import instantiate, is_linear, move_axis, sum_to
from funcgrad.ops.elementwise.compare import bitwise_and, gt, lt
from funcgrad.ops.elementwise.float8 import by_table
from funcgrad.ops.families import (
    FLAT,
    NOT_LINEAR,
    common_shape,
    elementwise,
    scalar_operands,
    unary,
)

# ---- convert_element_type


def _convert_abstract(
    x: ShapedArray, *, new_dtype: np.dtype, weak_type: bool = False
) -> ShapedArray:
    return ShapedArray(x.shape, new_dtype, weak_type)


def _saturate(xp: Any, x: Any, dtype: np.dtype) -> Any:
    """Floats as integers: towards zero, held within the range, NaN as 0."""
    if x.dtype.itemsize < 4:
        x = x.astype(np.float32)
    info = dtypes.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    storage = dtype if info.bits >= 8 else np.dtype("int8")
    inside = xp.where(x == x, x, 0).astype(storage)
    # float(high) may round up to the first value beyond the range: hence ≥.
    result = xp.where(x >= float(high), high, xp.where(x <= float(low), low, inside))
    return result.astype(dtype)


def _convert_impl(xp: Any, x: Any, *, new_dtype: np.dtype, weak_type: bool = False) -> Any:
    if x.dtype.kind == "c" and new_dtype.kind not in "cb":
        x = x.real
    if dtypes.is_float(x.dtype) and dtypes.is_integer(new_dtype):
        return _saturate(xp, x, new_dtype)
    return _cast(x, new_dtype)


def _cast(x: Any, dtype: np.dtype) -> Any:
    if x.dtype in dtypes.FLOAT8 or dtype in dtypes.FLOAT8:
        found = by_table(x, dtype)
        if found is not None:
            return found
    # ml_dtypes has no cast between its two 4-bit integers.
    return (x.astype(np.int8) if _bit_width(x.dtype) == 4 else x).astype(dtype)


def _convert_partial(
    g: Any, y: Any, x: Any, *, new_dtype: np.dtype, weak_type: bool = False
) -> Any:
    if not dtypes.is_inexact(new_dtype):
        return Zero(aval_of(y).tangent())
    return convert_element_type(g, new_dtype)


convert_element_type_p: Primitive = unary(
    "convert_element_type",
    impl=_convert_impl,
    jvp=_convert_partial,
    transpose=lambda ct, x, **dtype: convert_element_type(ct, x.aval.dtype),
    abstract=_convert_abstract,
    simplify=identities.same_type,
    doc="",
)


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """`operand` with its elements converted to `new_dtype`.

    Floats become integers towards zero, held within the integers' range, NaN as 0. Complex numbers
    become real ones by dropping the imaginary part. The derivative is the conversion of the
    tangent, and zero where either dtype has no derivatives.

    >>> from funcgrad import lax
    >>> lax.convert_element_type(2.7, "int32")
    Array(2, dtype=int32)
    """
    dtype = dtypes.canonical(new_dtype)
    if isinstance(operand, bool | int | float | complex):
        # A Python number is converted at its full precision.
        operand = np.asarray(operand)
    (x,) = scalar_operands("convert_element_type", [operand])
    aval = aval_of(x)
    if aval.dtype == dtype and not aval.weak_type and hasattr(x, "aval"):
        return x
    return convert_element_type_p.bind(x, new_dtype=dtype)


# ---- bitcasts


def _bit_width(dtype: np.dtype) -> int:
    return dtypes.iinfo(dtype).bits if dtypes.is_integer(dtype) else 8 * dtype.itemsize


def _bitcast_impl(xp: Any, x: Any, *, new_dtype: np.dtype) -> Any:
    return _cast(x, new_dtype) if _bit_width(new_dtype) == 4 else x.view(new_dtype)


bitcast_convert_type_p: Primitive = unary(
    "bitcast_convert_type",
    impl=_bitcast_impl,
    jvp=FLAT,
    abstract=_convert_abstract,
    doc="",
)


def _regroup_abstract(x: ShapedArray, *, new_dtype: np.dtype) -> ShapedArray:
    old, new = x.dtype.itemsize, new_dtype.itemsize
    if old > new:
        return ShapedArray((*x.shape, old // new), new_dtype)
    if not x.shape or x.shape[-1] != new // old:
        raise ShapeError(
            f"bitcast_convert_type: {x} to {new_dtype} needs a last axis of size {new // old}, "
            "whose elements make up one"
        )
    return ShapedArray(x.shape[:-1], new_dtype)


def _regroup_impl(xp: Any, x: Any, *, new_dtype: np.dtype) -> Any:
    if x.dtype.itemsize > new_dtype.itemsize:
        return xp.ascontiguousarray(x).reshape((*x.shape, 1)).view(new_dtype)
    return xp.ascontiguousarray(x).view(new_dtype).reshape(x.shape[:-1])


def _regroup_dims(x: ShapedArray, *, new_dtype: np.dtype) -> str:
    wide = x.dtype.itemsize > new_dtype.itemsize
    kept = " ".join(f"a{i}" for i in range(x.ndim - (not wide)))
    return f"{kept} -> {kept} ." if wide else f"{kept} . -> {kept}"


def _regroup_batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    return bitcast_regroup_p.bind(move_axis(args[0], dims[0], 0), **params), 0


def _regroup_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    y = bitcast_regroup_p.bind(*primals, **params)
    return y, Zero(aval_of(y).tangent())


# A bitcast between widths is no elementwise op: it makes or takes a last axis.
bitcast_regroup_p = Primitive(
    name="bitcast_regroup",
    abstract=_regroup_abstract,
    impl=_regroup_impl,
    jvp=_regroup_jvp,
    transpose=NOT_LINEAR,
    batch=_regroup_batch,
    dims=_regroup_dims,
)


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """The bits of `operand` read as elements of `new_dtype`.

    A narrower dtype adds a last axis (lowest bits first), a wider one takes the last axis away.
    bool and complex are not defined but to themselves. The derivative is zero.

    >>> from funcgrad import lax
    >>> lax.bitcast_convert_type(1.0, "uint32")
    Array(1065353216, dtype=uint32)
    """
    (x,) = scalar_operands("bitcast_convert_type", [operand])
    old, new = aval_of(x).dtype, dtypes.canonical(new_dtype)
    if old == new:
        return x
    widths = _bit_width(old), _bit_width(new)
    if dtypes.BOOL in (old, new) or "c" in (old.kind, new.kind) or (
        4 in widths and widths[0] != widths[1]
    ):  # fmt: skip
        raise DTypeError(
            f"bitcast_convert_type: no bitcast of {old} to {new}; bool, complex and the packing of "
            "4-bit integers are not defined, use convert_element_type"
        )
    prim = bitcast_convert_type_p if widths[0] == widths[1] else bitcast_regroup_p
    return prim.bind(x, new_dtype=new)


# ---- select_n


def _select_abstract(which: ShapedArray, *cases: ShapedArray) -> ShapedArray:
    listed = ", ".join(str(c) for c in cases)
    if not cases:
        raise TypeError("select_n: need at least one case, got none")
    if which.dtype != np.int32 and (which.dtype != dtypes.BOOL or len(cases) > 2):
        raise DTypeError(
            f"select_n: the selector of {len(cases)} cases must be int32 (or bool, for up to 2), "
            f"got {which}"
        )
    if any(c.dtype != cases[0].dtype for c in cases):
        raise DTypeError(f"select_n: cases must have one dtype, got {listed}")
    shape = common_shape("select_n", (which, *cases))
    return ShapedArray(shape, cases[0].dtype, all(c.weak_type for c in cases))


def _select_impl(xp: Any, which: Any, *cases: Any) -> Any:
    if len(cases) == 2 and which.dtype == dtypes.BOOL:
        return xp.where(which, cases[1], cases[0])
    chosen = cases[-1]
    if len(cases) == 1:
        # The result has the selector's shape also where the only case is a scalar.
        return xp.where(which == which, chosen, chosen)
    for i in reversed(range(len(cases) - 1)):
        chosen = xp.where(which <= i, cases[i], chosen)
    return chosen


def _select_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    y = select_n_p.bind(*primals)
    if all(type(t) is Zero for t in tangents[1:]):
        return y, Zero(aval_of(y).tangent())
    return y, select_n_p.bind(primals[0], *(instantiate(t) for t in tangents[1:]))


def _select_transpose(ct: Any, which: Any, *cases: Any) -> list:
    zero = np.zeros((), aval_of(ct).dtype)

    def share(i: int) -> Any:
        if not is_linear(cases[i]):
            return None
        kept = [ct if j == i else zero for j in range(len(cases))]
        return sum_to(select_n_p.bind(which, *kept) if len(cases) > 1 else ct, cases[i].aval)

    return [None, *(share(i) for i in range(len(cases)))]


select_n_p: Primitive = elementwise(
    "select_n",
    impl=_select_impl,
    jvp=_select_jvp,
    transpose=_select_transpose,
    abstract=_select_abstract,
    doc="",
)


def select_n(which: Any, *cases: Any) -> Any:
    """Elementwise choice among `cases` by the selector `which`.

    `which` is bool (False takes the first case, True the second) or int32 (the case's number, held
    within range), of the cases' shape or a scalar. Cases have one dtype, and one shape or none.

    >>> import funcgrad.numpy as fnp
    >>> from funcgrad import lax
    >>> lax.select_n(fnp.array([False, True]), fnp.array([1.0, 2.0]), 0.0)
    Array([1., 0.], dtype=float32)
    """
    if isinstance(which, bool):
        which = Array(np.asarray(which))
    elif isinstance(which, int) and not isinstance(which, np.generic):
        which = Array(of_scalar(which, np.dtype(np.int32)))
    return select_n_p.bind(*scalar_operands("select_n", [which]),
                           *scalar_operands("select_n", cases))  # fmt: skip


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """Elementwise `on_true` where `pred` holds, else `on_false`; see `select_n`.

    >>> import funcgrad.numpy as fnp
    >>> from funcgrad import lax
    >>> lax.select(fnp.array([False, True]), fnp.array([1.0, 2.0]), 0.0)
    Array([0., 2.], dtype=float32)
    """
    return select_n(pred, on_false, on_true)


# ---- clamp


def _only_where(condition: Any, g: Any) -> Any:
    return select(condition, g, 0.0)


clamp: Primitive = elementwise(
    "clamp",
    impl=lambda xp, low, x, high: xp.minimum(xp.maximum(low, x), high),
    jvp=(
        lambda g, y, low, x, high: _only_where(gt(low, x), g),
        lambda g, y, low, x, high: _only_where(bitwise_and(gt(x, low), lt(x, high)), g),
        lambda g, y, low, x, high: _only_where(lt(high, x), g),
    ),
    accepts=lambda dtype: dtype.kind != "c",
    need="real numbers",
    doc="""Elementwise min(max(low, x), high), the operands in this order; NaN stays.

    The derivative in x is 1 strictly between the bounds and 0 elsewhere.

    >>> import funcgrad.numpy as fnp
    >>> from funcgrad import lax
    >>> lax.clamp(0.0, fnp.array([-1.0, 0.5, 3.0]), 1.0)
    Array([0. , 0.5, 1. ], dtype=float32)
    """,
)

# ---- reduce_precision

_IEEE = {np.dtype("float16"): (5, 10), dtypes.canonical("bfloat16"): (8, 7),
         np.dtype("float32"): (8, 23), np.dtype("float64"): (11, 52)}  # fmt: skip


def _reduce_precision_impl(xp: Any, x: Any, *, exponent_bits: int, mantissa_bits: int) -> Any:
    exponent, mantissa = _IEEE[x.dtype]
    width = exponent + mantissa + 1
    unsigned = np.dtype(f"uint{width}")

    def bits(value: int) -> Any:
        return unsigned.type(value)

    b = x.view(unsigned)
    drop = mantissa - mantissa_bits
    if drop > 0:
        # Round to nearest: add just under half a unit, and one more where the last bit is odd.
        odd = (b >> bits(drop)) & bits(1)
        b = (b + odd + bits((1 << (drop - 1)) - 1)) & bits((1 << width) - (1 << drop))
    if exponent_bits < exponent:
        sign = b & bits(1 << (width - 1))
        size = b & bits((1 << (width - 1)) - 1)
        bias, small_bias = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        inf = bits(((1 << exponent) - 1) << mantissa)
        too_large = size >= bits((bias + small_bias + 1) << mantissa)
        too_small = size < bits((bias - small_bias + 1) << mantissa)
        size = xp.where(too_large, inf, xp.where(too_small, bits(0), size))
        b = sign | size
    return xp.where(x == x, b.view(x.dtype), x)


reduce_precision_p: Primitive = unary(
    "reduce_precision",
    impl=_reduce_precision_impl,
    jvp=lambda g, y, x, **bits: reduce_precision(g, **bits),
    transpose=lambda ct, x, **bits: reduce_precision(ct, **bits),
    accepts=_IEEE.__contains__,
    need="float16, bfloat16, float32 or float64",
    doc="",
)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """`operand` rounded to a float format of so many exponent and mantissa bits, in its own dtype.

    Rounds to nearest, ties to even; what is too large becomes infinite, and what lies below the
    format's normal numbers zero. Tangents are rounded alike.

    >>> from funcgrad import lax
    >>> lax.reduce_precision(3.14159, exponent_bits=8, mantissa_bits=7)
    Array(3.140625, dtype=float32, weak_type=True)
    """
    exponent_bits = integer("exponent_bits", exponent_bits)
    mantissa_bits = integer("mantissa_bits", mantissa_bits)
    if exponent_bits < 1 or mantissa_bits < 0:
        raise ValueError(
            "reduce_precision: need exponent_bits ≥ 1 and mantissa_bits ≥ 0, got "
            f"{exponent_bits} and {mantissa_bits}"
        )
    (x,) = scalar_operands("reduce_precision", [operand])
    return reduce_precision_p.bind(x, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits)


# ---- identities

copy: Primitive = unary(
    "copy",
    impl=lambda xp, x: xp.copy(x),
    jvp=lambda g, y, x: copy.bind(g),
    transpose=lambda ct, x: copy.bind(ct),
    doc="""A copy of an array, in memory of its own.

    >>> from funcgrad import lax
    >>> lax.copy(1.0)
    Array(1., dtype=float32, weak_type=True)
    """,
)

stop_gradient_p: Primitive = unary(
    "stop_gradient",
    impl=lambda xp, x: x,
    jvp=FLAT,
    transpose=NoRule("its derivative is zero, so nothing linear is left to transpose"),
    identity=True,
    view=in_order,
    doc="",
)


def stop_gradient(x: Any) -> Any:
    """`x`, an array or a pytree of them, taken as constant by differentiation.

    >>> import funcgrad as fg
    >>> from funcgrad import lax
    >>> fg.grad(lambda x: x * lax.stop_gradient(x))(3.0)
    Array(3., dtype=float32, weak_type=True)
    """

    def stop(leaf: Any) -> Any:
        return stop_gradient_p(leaf) if dtypes.is_inexact(aval_of(leaf).dtype) else leaf

    return tree.map(stop, x)
