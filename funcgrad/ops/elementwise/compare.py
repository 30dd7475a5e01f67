"""Comparisons, logic and the bits of integers: ops without derivatives.

Shifts follow XLA: an amount outside 0 … bits - 1 shifts every bit out, so no hardware's behaviour
shows. Total order is IEEE 754's: -NaN < -inf < … < -0 < +0 < … < inf < NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.primitive import Primitive
from funcgrad.ops.families import FLAT, binary, unary

_UNSIGNED = {1: np.dtype("uint8"), 2: np.dtype("uint16"), 4: np.dtype("uint32"),
             8: np.dtype("uint64")}  # fmt: skip
_SIGNED = {n: np.dtype(f"int{8 * n}") for n in _UNSIGNED}


def bool_or_integer(dtype: np.dtype) -> bool:
    """Whether bitwise logic is defined on dtype.

    >>> bool_or_integer(np.dtype("float32"))
    False
    """
    return dtype == dtypes.BOOL or dtypes.is_integer(dtype)


def _ordered(dtype: np.dtype) -> bool:
    return dtype.kind != "c"


def _to_bool(*operands: np.dtype) -> np.dtype:
    return dtypes.BOOL


# ---- comparisons


def _comparison(name: str, impl: Any, doc: str, accepts: Any = _ordered) -> Primitive:
    return binary(
        name,
        impl=impl,
        jvp=FLAT,
        accepts=accepts,
        need="real numbers or bool (complex numbers have no order)",
        result=_to_bool,
        doc=doc,
    )


def _any(dtype: np.dtype) -> bool:
    return True


eq: Primitive = _comparison(
    "eq",
    lambda xp, x, y: x == y,
    """Elementwise x = y, as bool. NaN equals nothing.

    >>> from funcgrad import lax
    >>> lax.eq(1.0, 2.0)
    Array(False, dtype=bool)
    """,
    _any,
)

ne: Primitive = _comparison(
    "ne",
    lambda xp, x, y: x != y,
    """Elementwise x ≠ y, as bool. NaN differs from everything.

    >>> from funcgrad import lax
    >>> lax.ne(1.0, 2.0)
    Array(True, dtype=bool)
    """,
    _any,
)

lt: Primitive = _comparison(
    "lt",
    lambda xp, x, y: x < y,
    """Elementwise x < y, as bool. False where either is NaN.

    >>> from funcgrad import lax
    >>> lax.lt(1.0, 2.0)
    Array(True, dtype=bool)
    """,
)

le: Primitive = _comparison(
    "le",
    lambda xp, x, y: x <= y,
    """Elementwise x ≤ y, as bool. False where either is NaN.

    >>> from funcgrad import lax
    >>> lax.le(2.0, 2.0)
    Array(True, dtype=bool)
    """,
)

gt: Primitive = _comparison(
    "gt",
    lambda xp, x, y: x > y,
    """Elementwise x > y, as bool. False where either is NaN.

    >>> from funcgrad import lax
    >>> lax.gt(1.0, 2.0)
    Array(False, dtype=bool)
    """,
)

ge: Primitive = _comparison(
    "ge",
    lambda xp, x, y: x >= y,
    """Elementwise x ≥ y, as bool. False where either is NaN.

    >>> from funcgrad import lax
    >>> lax.ge(2.0, 2.0)
    Array(True, dtype=bool)
    """,
)


def _rank(x: Any) -> Any:
    """Integers in the total order of x: a float's bits, with those of negative ones reversed."""
    if not dtypes.is_float(x.dtype):
        return x
    bits = 8 * x.dtype.itemsize
    b = x.view(_SIGNED[x.dtype.itemsize])
    return b ^ ((b >> (bits - 1)) & ((1 << (bits - 1)) - 1))


def _eq_to_impl(xp: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind == "c":
        return (_rank(x.real) == _rank(y.real)) & (_rank(x.imag) == _rank(y.imag))
    return _rank(x) == _rank(y)


eq_to: Primitive = _comparison(
    "eq_to",
    _eq_to_impl,
    """Elementwise x = y in the total order: NaN equals the same NaN, -0 differs from +0.

    >>> from funcgrad import lax
    >>> lax.eq_to(0.0, -0.0)
    Array(False, dtype=bool)
    """,
    _any,
)

lt_to: Primitive = _comparison(
    "lt_to",
    lambda xp, x, y: _rank(x) < _rank(y),
    """Elementwise x < y in the total order -NaN < -inf < … < -0 < +0 < … < inf < NaN.

    >>> from funcgrad import lax
    >>> lax.lt_to(-0.0, 0.0)
    Array(True, dtype=bool)
    """,
)

le_to: Primitive = _comparison(
    "le_to",
    lambda xp, x, y: _rank(x) <= _rank(y),
    """Elementwise x ≤ y in the total order -NaN < -inf < … < -0 < +0 < … < inf < NaN.

    >>> from funcgrad import lax
    >>> lax.le_to(1.0, float("nan"))
    Array(True, dtype=bool)
    """,
)

# ---- logic


def _bits(name: str, impl: Any, doc: str) -> Primitive:
    return binary(name, impl=impl, jvp=FLAT, accepts=bool_or_integer, need="bool or integers",
                  doc=doc)  # fmt: skip


bitwise_and: Primitive = _bits(
    "and",
    lambda xp, x, y: x & y,
    """Elementwise and of the bits of integers, or of bools.

    >>> from funcgrad import lax
    >>> lax.bitwise_and(6, 3)
    Array(2, dtype=int32, weak_type=True)
    """,
)

bitwise_or: Primitive = _bits(
    "or",
    lambda xp, x, y: x | y,
    """Elementwise or of the bits of integers, or of bools.

    >>> from funcgrad import lax
    >>> lax.bitwise_or(6, 3)
    Array(7, dtype=int32, weak_type=True)
    """,
)

bitwise_xor: Primitive = _bits(
    "xor",
    lambda xp, x, y: x ^ y,
    """Elementwise exclusive or of the bits of integers, or of bools.

    >>> from funcgrad import lax
    >>> lax.bitwise_xor(6, 3)
    Array(5, dtype=int32, weak_type=True)
    """,
)

bitwise_not: Primitive = unary(
    "not",
    impl=lambda xp, x: ~x,
    jvp=FLAT,
    accepts=bool_or_integer,
    need="bool or integers",
    doc="""Elementwise complement of the bits of integers, or negation of bools.

    >>> from funcgrad import lax
    >>> lax.bitwise_not(5)
    Array(-6, dtype=int32, weak_type=True)
    """,
)

# ---- shifts


def _width(dtype: np.dtype) -> int:
    return dtypes.iinfo(dtype).bits


def unsigned_bits(x: Any) -> Any:
    """The bits of integers as unsigned integers (those of 4-bit ones in 8 bits)."""
    u = x.astype(_UNSIGNED[x.dtype.itemsize])
    return u & 15 if _width(x.dtype) == 4 else u


def _shift_left_impl(xp: Any, x: Any, y: Any) -> Any:
    u, n, bits = unsigned_bits(x), unsigned_bits(y), _width(x.dtype)
    return xp.where(n < bits, u << (n & (bits - 1)), 0).astype(x.dtype)


def _shift_right_logical_impl(xp: Any, x: Any, y: Any) -> Any:
    u, n, bits = unsigned_bits(x), unsigned_bits(y), _width(x.dtype)
    return xp.where(n < bits, u >> (n & (bits - 1)), 0).astype(x.dtype)


def _shift_right_arithmetic_impl(xp: Any, x: Any, y: Any) -> Any:
    n, bits = unsigned_bits(y), _width(x.dtype)
    s = x.astype(_SIGNED[x.dtype.itemsize])
    if bits == 4:
        s = (s ^ 8) - 8 if x.dtype == dtypes.canonical("uint4") else s
    last = xp.where(n < bits, n, bits - 1).astype(s.dtype)
    return (s >> last).astype(x.dtype)


def _shift(name: str, impl: Any, doc: str) -> Primitive:
    return binary(name, impl=impl, jvp=FLAT, accepts=dtypes.is_integer, need="integers", doc=doc)


shift_left: Primitive = _shift(
    "shift_left",
    _shift_left_impl,
    """Elementwise x · 2ʸ: bits shifted left by y; 0 where y is negative or not below the width.

    >>> from funcgrad import lax
    >>> lax.shift_left(3, 4)
    Array(48, dtype=int32, weak_type=True)
    """,
)

shift_right_logical: Primitive = _shift(
    "shift_right_logical",
    _shift_right_logical_impl,
    """Elementwise right shift by y that fills with zeros; 0 where y is out of range.

    >>> from funcgrad import lax
    >>> lax.shift_right_logical(-1, 28)
    Array(15, dtype=int32, weak_type=True)
    """,
)

shift_right_arithmetic: Primitive = _shift(
    "shift_right_arithmetic",
    _shift_right_arithmetic_impl,
    """Elementwise right shift by y that fills with the top bit, also where y is out of range.

    >>> from funcgrad import lax
    >>> lax.shift_right_arithmetic(-16, 2)
    Array(-4, dtype=int32, weak_type=True)
    """,
)

# ---- counting bits


def _clz_impl(xp: Any, x: Any) -> Any:
    u, width = unsigned_bits(x), _width(x.dtype)
    # All bits below the highest set one are set; what is left unset leads.
    for k in (1, 2, 4, 8, 16, 32):
        if k < width:
            u = u | (u >> k)
    return (width - xp.bitwise_count(u)).astype(x.dtype)


population_count: Primitive = unary(
    "population_count",
    impl=lambda xp, x: xp.bitwise_count(unsigned_bits(x)).astype(x.dtype),
    jvp=FLAT,
    accepts=dtypes.is_integer,
    need="integers",
    doc="""Elementwise number of set bits, in two's complement.

    >>> from funcgrad import lax
    >>> lax.population_count(7)
    Array(3, dtype=int32, weak_type=True)
    """,
)

clz: Primitive = unary(
    "clz",
    impl=_clz_impl,
    jvp=FLAT,
    accepts=dtypes.is_integer,
    need="integers",
    doc="""Elementwise number of leading zero bits; the width for 0.

    >>> from funcgrad import lax
    >>> lax.clz(1)
    Array(31, dtype=int32, weak_type=True)
    """,
)
