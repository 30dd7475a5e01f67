"""Comparisons, logic, bits, and whether numbers are finite or close: functions without derivatives.

Operands promote to one dtype and broadcast to one shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.eager.single import single
from funcgrad.core.primitive import Primitive
from funcgrad.errors import ShapeError
from funcgrad.numpy._util import (
    align,
    applied,
    as_array,
    binary,
    broadcast_shapes,
    broadcast_to,
    convert,
    documented,
    need_real,
    no_out,
    numbers,
    promote,
    promote_and_broadcast,
    quick,
)
from funcgrad.ops import reduce
from funcgrad.ops.base import full
from funcgrad.ops.elementwise import arithmetic, compare, rounding
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add as add_p
from funcgrad.transforms.recorded import recorded

_BOTH = "`x` and `y` promote to one dtype and broadcast to one shape."

# ---- comparisons


def _comparison(prim: Primitive, name: str, relation: str, example: str) -> Any:
    return documented(
        binary(name, prim), name, f"Elementwise x {relation} y, as bool.", _BOTH, example
    )


def _ordering(prim: Primitive, name: str, relation: str, example: str) -> Any:
    def general(x: Any, y: Any) -> Any:
        given = x, y
        x, y = promote_and_broadcast(name, x, y)
        if not dtypes.is_complex(x.dtype):
            return applied(prim, given, (x, y))
        tied = compare.eq(arithmetic.real(x), arithmetic.real(y))
        by_imag = prim.bind(arithmetic.imag(x), arithmetic.imag(y))
        return select(tied, by_imag, prim.bind(arithmetic.real(x), arithmetic.real(y)))

    summary = (
        f"Elementwise x {relation} y, as bool; complex numbers compare by real, then imaginary "
        "part."
    )
    return documented(quick(name, prim, general), name, summary, _BOTH, example)


equal = _comparison(
    compare.eq,
    "equal",
    "=",
    """>>> fnp.equal(fnp.array([1.0, 2.0, fnp.nan]), 2.0)
    Array([False,  True, False], dtype=bool)
    """,
)
not_equal = _comparison(
    compare.ne,
    "not_equal",
    "≠",
    """>>> fnp.not_equal(fnp.array([1.0, 2.0, fnp.nan]), 2.0)
    Array([ True, False,  True], dtype=bool)
    """,
)
less = _ordering(
    compare.lt,
    "less",
    "<",
    """>>> fnp.less(fnp.array([1, 2, 3]), 2)
Array([ True, False, False], dtype=bool)
""",
)
less_equal = _ordering(
    compare.le,
    "less_equal",
    "≤",
    """>>> fnp.less_equal(fnp.array([1, 2, 3]), 2)
    Array([ True,  True, False], dtype=bool)
    """,
)
greater = _ordering(
    compare.gt,
    "greater",
    ">",
    """>>> fnp.greater(fnp.array([1, 2, 3]), 2)
    Array([False, False,  True], dtype=bool)
    """,
)
greater_equal = _ordering(
    compare.ge,
    "greater_equal",
    "≥",
    """>>> fnp.greater_equal(fnp.array([1, 2, 3]), 2)
    Array([False,  True,  True], dtype=bool)
    """,
)

# ---- logic of truth values


def truth(x: Any) -> Any:
    """An array as bool: whether its elements are nonzero (NaN is)."""
    return x if x.dtype == dtypes.BOOL else compare.ne(x, np.zeros((), x.dtype))


def _logical(prim: Primitive, name: str, word: str, example: str) -> Any:
    @single
    def function(x: Any, y: Any, /) -> Any:
        x, y = as_array(name, x, "x"), as_array(name, y, "y")
        return prim.bind(*align(name, [truth(x), truth(y)]))

    summary = f"Elementwise logical {word} of the truth of x and y (nonzero is true), as bool."
    return documented(function, name, summary, "`x` and `y` broadcast to one shape.", example)


logical_and = _logical(
    compare.bitwise_and,
    "logical_and",
    "and",
    """>>> fnp.logical_and(fnp.array([0, 1, 2]), True)
    Array([False,  True,  True], dtype=bool)
    """,
)
logical_or = _logical(
    compare.bitwise_or,
    "logical_or",
    "or",
    """>>> fnp.logical_or(fnp.array([0, 1, 2]), False)
    Array([False,  True,  True], dtype=bool)
    """,
)
logical_xor = _logical(
    compare.bitwise_xor,
    "logical_xor",
    "exclusive or",
    """>>> fnp.logical_xor(fnp.array([0, 1, 2]), True)
    Array([ True, False, False], dtype=bool)
    """,
)


@single
def logical_not(x: Any, /) -> Any:
    """Elementwise whether x is zero (or False), as bool.

    >>> fnp.logical_not(fnp.array([0, 1, 2]))
    Array([ True, False, False], dtype=bool)
    """
    return compare.bitwise_not(truth(as_array("logical_not", x, "x")))


# ---- bits


def _bits(prim: Primitive, name: str, summary: str, example: str) -> Any:
    @single
    def function(x: Any, y: Any, /) -> Any:
        return prim.bind(*promote_and_broadcast(name, x, y))

    return documented(function, name, summary, _BOTH, example)


bitwise_and = _bits(
    compare.bitwise_and,
    "bitwise_and",
    "Elementwise and of the bits of integers, or of bools.",
    """>>> fnp.bitwise_and(fnp.array([5, 6]), 3)
    Array([1, 2], dtype=int32)
    """,
)
bitwise_or = _bits(
    compare.bitwise_or,
    "bitwise_or",
    "Elementwise or of the bits of integers, or of bools.",
    """>>> fnp.bitwise_or(fnp.array([5, 6]), 3)
    Array([7, 7], dtype=int32)
    """,
)
bitwise_xor = _bits(
    compare.bitwise_xor,
    "bitwise_xor",
    "Elementwise exclusive or of the bits of integers, or of bools.",
    """>>> fnp.bitwise_xor(fnp.array([5, 6]), 3)
    Array([6, 5], dtype=int32)
    """,
)


@single
def bitwise_not(x: Any, /) -> Any:
    """Elementwise complement of the bits of integers, or negation of bools. Also named `invert`.

    >>> fnp.bitwise_not(fnp.array([0, 5]))
    Array([-1, -6], dtype=int32)
    """
    return compare.bitwise_not.bind(as_array("bitwise_not", x, "x"))


@single
def left_shift(x: Any, y: Any, /) -> Any:
    """Elementwise x · 2ʸ of integers; 0 where y is negative or not below the dtype's width.

    `x` and `y` promote to one dtype and broadcast to one shape.

    >>> fnp.left_shift(fnp.array([1, 5]), 2)
    Array([ 4, 20], dtype=int32)
    """
    return compare.shift_left.bind(*numbers(*promote_and_broadcast("left_shift", x, y)))


@single
def right_shift(x: Any, y: Any, /) -> Any:
    """Elementwise floor(x / 2ʸ) of integers: signed ones keep their sign.

    `x` and `y` promote to one dtype and broadcast to one shape.

    >>> fnp.right_shift(fnp.array([20, -20]), 2)
    Array([ 5, -5], dtype=int32)
    """
    x, y = numbers(*promote_and_broadcast("right_shift", x, y))
    signed = dtypes.is_signed(x.dtype)
    return (compare.shift_right_arithmetic if signed else compare.shift_right_logical).bind(x, y)


def bitwise_count(x: Any, /) -> Any:
    """Elementwise number of set bits in |x|, as uint8.

    >>> fnp.bitwise_count(fnp.array([0, 7, -8]))
    Array([0, 3, 1], dtype=uint8)
    """
    (x,) = numbers(as_array("bitwise_count", x, "x"))
    size = arithmetic.abs(x) if dtypes.is_signed(x.dtype) else x
    return convert(compare.population_count(size), np.dtype(np.uint8))


invert = bitwise_invert = bitwise_not
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift

# ---- finite and close


@single
def isfinite(x: Any, /) -> Any:
    """Elementwise whether x is neither infinite nor NaN, as bool.

    >>> fnp.isfinite(fnp.array([1.0, fnp.inf, fnp.nan]))
    Array([ True, False, False], dtype=bool)
    """
    x = as_array("isfinite", x, "x")
    if dtypes.is_complex(x.dtype):
        parts = arithmetic.real(x), arithmetic.imag(x)
        return compare.bitwise_and(*(rounding.is_finite(p) for p in parts))
    return rounding.is_finite(x) if dtypes.is_float(x.dtype) else full(x.shape, True, bool)


def isinf(x: Any, /) -> Any:
    """Elementwise whether x (for complex numbers: a part of it) is infinite, as bool.

    >>> fnp.isinf(fnp.array([1.0, -fnp.inf, fnp.nan]))
    Array([False,  True, False], dtype=bool)
    """
    x = as_array("isinf", x, "x")
    if dtypes.is_complex(x.dtype):
        return compare.bitwise_or(isinf(arithmetic.real(x)), isinf(arithmetic.imag(x)))
    if not dtypes.is_float(x.dtype):
        return full(x.shape, False, bool)
    return compare.eq(arithmetic.abs(x), np.asarray(np.inf, x.dtype))


@single
def isnan(x: Any, /) -> Any:
    """Elementwise whether x is NaN, as bool.

    >>> fnp.isnan(fnp.array([1.0, fnp.inf, fnp.nan]))
    Array([False, False,  True], dtype=bool)
    """
    x = as_array("isnan", x, "x")
    return compare.ne(x, x) if dtypes.is_inexact(x.dtype) else full(x.shape, False, bool)


def isposinf(x: Any, /, out: None = None) -> Any:
    """Elementwise whether x is +inf, as bool. Raises DTypeError for complex numbers.

    >>> fnp.isposinf(fnp.array([fnp.inf, -fnp.inf, 1.0]))
    Array([ True, False, False], dtype=bool)
    """
    no_out("isposinf", out)
    return _is_infinity("isposinf", x, np.inf)


def isneginf(x: Any, /, out: None = None) -> Any:
    """Elementwise whether x is -inf, as bool. Raises DTypeError for complex numbers.

    >>> fnp.isneginf(fnp.array([fnp.inf, -fnp.inf, 1.0]))
    Array([False,  True, False], dtype=bool)
    """
    no_out("isneginf", out)
    return _is_infinity("isneginf", x, -np.inf)


def _is_infinity(name: str, x: Any, which: float) -> Any:
    x = as_array(name, x, "x")
    need_real(name, x)
    if not dtypes.is_float(x.dtype):
        return full(x.shape, False, bool)
    return compare.eq(x, np.asarray(which, x.dtype))


def isreal(x: Any) -> Any:
    """Elementwise whether x has no imaginary part, as bool.

    >>> fnp.isreal(fnp.array([1 + 1j, 2.0]))
    Array([False,  True], dtype=bool)
    """
    x = as_array("isreal", x, "x")
    if not dtypes.is_complex(x.dtype):
        return full(x.shape, True, bool)
    return compare.eq(arithmetic.imag(x), 0)


def iscomplex(x: Any) -> Any:
    """Elementwise whether x has an imaginary part, as bool.

    >>> fnp.iscomplex(fnp.array([1 + 1j, 2.0]))
    Array([ True, False], dtype=bool)
    """
    return compare.bitwise_not(isreal(x))


@recorded
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Elementwise |a - b| ≤ atol + rtol · |b|, as bool; infinities of one sign are close.

    `a` and `b` promote to one dtype and broadcast to one shape. NaNs are close only if `equal_nan`.

    >>> fnp.isclose(fnp.array([1.0, 2.0]), fnp.array([1.000001, 2.1]))
    Array([ True, False], dtype=bool)
    """
    a, b = promote_and_broadcast("isclose", a, b)
    same = compare.eq(a, b)
    if not dtypes.is_inexact(a.dtype):
        if a.dtype == dtypes.BOOL:
            return same
        # Integers keep their precision: only the difference becomes a float. That of two int64 is
        # a uint64, as which its bits are right.
        wide = np.dtype(np.uint64 if a.dtype == np.uint64 else np.int64)
        a, b = convert(a, wide), convert(b, wide)
        far = convert(
            arithmetic.sub(arithmetic.max(a, b), arithmetic.min(a, b)), np.dtype("uint64")
        )
        far, size = (convert(v, np.dtype(np.float64)) for v in (far, b))
        size = arithmetic.abs(size)
        return compare.bitwise_or(same, less_equal(far, _bound(size, rtol, atol)))
    finite = compare.bitwise_and(isfinite(a), isfinite(b))
    near = less_equal(arithmetic.abs(arithmetic.sub(a, b)), _bound(arithmetic.abs(b), rtol, atol))
    close = compare.bitwise_or(same, compare.bitwise_and(finite, near))
    if not equal_nan:
        return close
    return compare.bitwise_or(close, compare.bitwise_and(isnan(a), isnan(b)))


def _bound(size: Any, rtol: Any, atol: Any) -> Any:
    rtol, size, atol = align("isclose", promote("isclose", rtol, size, atol))
    return add_p(arithmetic.mul(rtol, size), atol)


@recorded
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether all elements of `a` and `b` are close, as a bool scalar; see `isclose`.

    >>> fnp.allclose(fnp.array([1.0, 2.0]), fnp.array([1.000001, 2.0]))
    Array(True, dtype=bool)
    """
    return _all(isclose(a, b, rtol, atol, equal_nan))


def _all(x: Any) -> Any:
    return reduce.reduce_and(x, range(x.ndim))


def _listed(x: Any) -> Any:
    """Lists as arrays: whether two are equal is asked of results, which may be written down."""
    return np.asarray(x) if isinstance(x, list | tuple) else x


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether two arrays have one shape and equal elements, as a bool scalar.

    NaNs are equal only if `equal_nan`.

    >>> fnp.array_equal(fnp.array([1, 2]), fnp.array([1, 2]))
    Array(True, dtype=bool)
    """
    a1, a2 = promote("array_equal", _listed(a1), _listed(a2))
    if a1.shape != a2.shape:
        return full((), False, bool)
    return _all(_same(a1, a2, equal_nan))


def _same(x: Any, y: Any, equal_nan: bool) -> Any:
    same = compare.eq(x, y)
    if not equal_nan or not dtypes.is_inexact(x.dtype):
        return same
    return compare.bitwise_or(same, compare.bitwise_and(isnan(x), isnan(y)))


def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether two arrays broadcast to one shape with equal elements, as a bool scalar.

    >>> fnp.array_equiv(fnp.array([1, 1]), 1)
    Array(True, dtype=bool)
    """
    a1, a2 = promote("array_equiv", _listed(a1), _listed(a2))
    try:
        shape = broadcast_shapes("array_equiv", a1.shape, a2.shape)
    except ShapeError:
        return full((), False, bool)
    return _all(compare.eq(broadcast_to(a1, shape), broadcast_to(a2, shape)))
