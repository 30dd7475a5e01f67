"""Arithmetic: sums, products, quotients, powers, roots, and the parts of complex numbers.

Integers wrap around and divide towards zero; dividing them by zero gives what XLA gives (all bits
set, or the dividend as remainder), and no operand traps. Transposes don't conjugate: cotangents of
complex numbers pair with tangents by Re(ct · t).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import Zero
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError
from funcgrad.ops import identities
from funcgrad.ops.arguments import integer
from funcgrad.ops.base import factor, sum_to
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.elementwise.rounding import RoundingMethod, round
from funcgrad.ops.families import FLAT, binary, is_number, unary
from funcgrad.ops.folds import is_away


def _real_number(dtype: np.dtype) -> bool:
    return dtype != dtypes.BOOL and dtype.kind != "c"


def in_float32(impl: Any) -> Any:
    """A formula of several steps that rounds 8 and 16-bit floats once, at its end.

    >>> import numpy as np
    >>> half = in_float32(lambda xp, x: x / 3 * 3)
    >>> half(np, np.float16(1)).dtype
    dtype('float16')
    """

    @functools.wraps(impl)
    def wide(xp: Any, *operands: Any, **params: Any) -> Any:
        dtype = operands[0].dtype
        if dtype.itemsize > 2 or not dtypes.is_float(dtype):
            return impl(xp, *operands, **params)
        return impl(xp, *(x.astype(np.float32) for x in operands), **params).astype(dtype)

    return wide


# ---- sums and products

neg: Primitive = unary(
    "neg",
    impl=lambda xp, x: -x,
    jvp=lambda g, y, x: neg(g),
    transpose=lambda ct, x: neg(ct),
    simplify=identities.undone,
    accepts=is_number,
    doc="""Elementwise -x.

    >>> from funcgrad import lax
    >>> lax.neg(1.0)
    Array(-1., dtype=float32, weak_type=True)
    """,
)

sub: Primitive = binary(
    "sub",
    impl=lambda xp, x, y: x - y,
    jvp=(lambda g, z, x, y: g, lambda g, z, x, y: neg(g)),
    transpose=(lambda ct, x, y: ct, lambda ct, x, y: neg(ct)),
    linear=True,
    accepts=is_number,
    doc="""Elementwise difference x - y.

    >>> from funcgrad import lax
    >>> lax.sub(3.0, 1.0)
    Array(2., dtype=float32, weak_type=True)
    """,
)

mul: Primitive = binary(
    "mul",
    impl=lambda xp, x, y: x * y,
    jvp=(lambda g, z, x, y: mul(g, y), lambda g, z, x, y: mul(x, g)),
    transpose=(
        lambda ct, x, y: mul(ct, factor("mul", y)),
        lambda ct, x, y: mul(factor("mul", x), ct),
    ),
    simplify=identities.times_one,
    accepts=is_number,
    doc="""Elementwise product x · y.

    >>> from funcgrad import lax
    >>> lax.mul(3.0, 2.0)
    Array(6., dtype=float32, weak_type=True)
    """,
)


def _mulhi_impl(xp: Any, x: Any, y: Any) -> Any:
    if x.dtype.itemsize < 8:
        bits = dtypes.iinfo(x.dtype).bits
        wide = np.dtype("int64" if dtypes.is_signed(x.dtype) else "uint64")
        return ((x.astype(wide) * y.astype(wide)) >> bits).astype(x.dtype)
    # By halves: x = a 2³² + b, y = c 2³² + d; a and c carry the sign.
    low = (1 << 32) - 1
    a, b, c, d = x >> 32, x & low, y >> 32, y & low
    bd = ((b.astype(np.uint64) * d.astype(np.uint64)) >> 32).astype(x.dtype)
    middle = a * d + bd
    return a * c + (middle >> 32) + (((middle & low) + b * c) >> 32)


mulhi: Primitive = binary(
    "mulhi",
    impl=_mulhi_impl,
    jvp=FLAT,
    accepts=dtypes.is_integer,
    need="integers",
    doc="""The high half of the double-width product of integers.

    >>> from funcgrad import lax
    >>> lax.mulhi(1 << 30, 8)
    Array(2, dtype=int32, weak_type=True)
    """,
)

# ---- quotients


def _safe_divisor(xp: Any, y: Any) -> Any:
    """y, and 1 in place of the divisors 0 and -1 whose quotients may not exist."""
    unsafe = (y == 0) | (y == -1) if dtypes.is_signed(y.dtype) else y == 0
    return xp.where(unsafe, 1, y)


def _div_impl(xp: Any, x: Any, y: Any) -> Any:
    if not dtypes.is_integer(x.dtype):
        return x / y
    safe = _safe_divisor(xp, y)
    q = x // safe
    if not dtypes.is_signed(x.dtype):
        return xp.where(y == 0, dtypes.iinfo(x.dtype).max, q)
    # From the floor to the truncation: up by one where it is inexact and negative.
    q = q + ((q * safe != x) & ((x < 0) != (safe < 0))).astype(q.dtype)
    return xp.where(y == 0, -1, xp.where(y == -1, -x, q))


def _div_transpose(ct: Any, x: Any, y: Any) -> list:
    return [sum_to(div(ct, factor("div", y)), x.aval), None]


div: Primitive = binary(
    "div",
    impl=_div_impl,
    jvp=(
        lambda g, z, x, y: div(g, y),
        lambda g, z, x, y: neg(mul(g, div(z, y))),
    ),
    transpose=_div_transpose,
    simplify=identities.over_one,
    accepts=is_number,
    doc="""Elementwise quotient x / y; integers divide towards zero.

    >>> from funcgrad import lax
    >>> lax.div(-7, 2)
    Array(-3, dtype=int32, weak_type=True)
    """,
)


def _rem_impl(xp: Any, x: Any, y: Any) -> Any:
    if not dtypes.is_integer(x.dtype):
        return xp.fmod(x, y)
    safe = _safe_divisor(xp, y)
    if is_away(x):
        # CuPy's fmod takes integers as float64.
        return xp.where(y == 0, x, x - _div_impl(xp, x, safe) * safe)
    return xp.where(y == 0, x, xp.fmod(x, safe))


rem: Primitive = binary(
    "rem",
    impl=_rem_impl,
    jvp=(
        lambda g, z, x, y: g,
        # x = y · n + z, where n is a whole number but for rounding.
        lambda g, z, x, y: neg(mul(g, round(div(sub(x, z), y), RoundingMethod.TO_NEAREST_EVEN))),
    ),
    accepts=_real_number,
    need="real numbers",
    doc="""Elementwise remainder x - y · trunc(x / y), with the sign of the dividend x.

    >>> from funcgrad import lax
    >>> lax.rem(-7.0, 3.0)
    Array(-1., dtype=float32, weak_type=True)
    """,
)

# ---- size and sign


def _sign_impl(xp: Any, x: Any) -> Any:
    if x.dtype.kind == "c" or dtypes.is_integer(x.dtype):
        return xp.sign(x)
    return xp.where(x == 0, x, xp.sign(x))


def _sign_jvp(g: Any, y: Any, x: Any) -> Any:
    if aval_of(x).dtype.kind != "c":
        return Zero(aval_of(y).tangent())
    # y turns along the unit circle: by the part of g at a right angle to it, over |x|.
    size = abs(x)
    turn = div(imag(mul(g, conj(y))), select(eq(size, 0), 1.0, size))
    return mul(y, complex(np.zeros((), aval_of(turn).dtype), turn))


sign: Primitive = unary(
    "sign",
    impl=_sign_impl,
    jvp=_sign_jvp,
    accepts=is_number,
    doc="""Elementwise sign: -1, 0 or 1 (zeros keep their sign), and x / |x| for complex numbers.

    >>> from funcgrad import lax
    >>> lax.sign(-3.0)
    Array(-1., dtype=float32, weak_type=True)
    """,
)


def _abs_jvp(g: Any, y: Any, x: Any) -> Any:
    if aval_of(x).dtype.kind == "c":
        return real(mul(g, conj(sign(x))))
    return mul(g, sign(x))


abs: Primitive = unary(
    "abs",
    impl=lambda xp, x: xp.abs(x),
    jvp=_abs_jvp,
    accepts=is_number,
    result=dtypes.real_part,
    doc="""Elementwise |x|, real also for complex numbers. The derivative at 0 is 0.

    >>> from funcgrad import lax
    >>> lax.abs(-3.0)
    Array(3., dtype=float32, weak_type=True)
    """,
)


def _share(x: Any, z: Any, other: Any) -> Any:
    """How much of the tangent passes from x to the maximum z: half where both operands are it."""
    none, half, all_ = (np.asarray(v, aval_of(x).dtype) for v in (0, 0.5, 1))
    return select(eq(x, z), select(eq(other, z), half, all_), none)


_EXTREMUM_JVP = (
    lambda g, z, x, y: mul(g, _share(x, z, y)),
    lambda g, z, x, y: mul(g, _share(y, z, x)),
)

max: Primitive = binary(
    "max",
    impl=lambda xp, x, y: xp.maximum(x, y),
    jvp=_EXTREMUM_JVP,
    doc="""Elementwise maximum; NaN where either is. Complex numbers compare real parts first.

    Where both are equal, each gets half of the derivative.

    >>> from funcgrad import lax
    >>> lax.max(1.0, 2.0)
    Array(2., dtype=float32, weak_type=True)
    """,
)

min: Primitive = binary(
    "min",
    impl=lambda xp, x, y: xp.minimum(x, y),
    jvp=_EXTREMUM_JVP,
    doc="""Elementwise minimum; NaN where either is. Complex numbers compare real parts first.

    Where both are equal, each gets half of the derivative.

    >>> from funcgrad import lax
    >>> lax.min(1.0, 2.0)
    Array(1., dtype=float32, weak_type=True)
    """,
)

# ---- powers and roots


def _integer_pow_dtype(dtype: np.dtype, *, y: int) -> np.dtype:
    if y < 0 and dtypes.is_integer(dtype):
        raise DTypeError(
            f"integer_pow: integers have no negative powers, got {dtype} to the power {y}; "
            "convert to a float dtype first"
        )
    return dtype


@in_float32
def _integer_pow_impl(xp: Any, x: Any, *, y: int) -> Any:
    if y == 0:
        return xp.ones_like(x)
    n, power = (y if y > 0 else -y), None
    while n:
        if n & 1:
            power = x if power is None else power * x
        n >>= 1
        x = x * x if n else x
    return power if y > 0 else 1 / power  # type: ignore[operator]


def _integer_pow_jvp(g: Any, z: Any, x: Any, *, y: int) -> Any:
    if y == 0:
        return Zero(aval_of(z).tangent())
    if y == 1:
        return g
    return mul(g, mul(x if y == 2 else integer_pow(x, y - 1), y))


integer_pow_p: Primitive = unary(
    "integer_pow",
    impl=_integer_pow_impl,
    jvp=_integer_pow_jvp,
    accepts=is_number,
    result=_integer_pow_dtype,
    doc="",
)


def integer_pow(x: Any, y: int) -> Any:
    """Elementwise xʸ for a static integer y, by repeated squaring. x⁰ is 1 everywhere.

    >>> from funcgrad import lax
    >>> lax.integer_pow(2.0, 10)
    Array(1024., dtype=float32, weak_type=True)
    """
    return integer_pow_p(x, y=integer("y", y))


def reciprocal(x: Any) -> Any:
    """Elementwise 1 / x.

    >>> from funcgrad import lax
    >>> lax.reciprocal(4.0)
    Array(0.25, dtype=float32, weak_type=True)
    """
    return integer_pow(x, -1)


square: Primitive = unary(
    "square",
    impl=lambda xp, x: x * x,
    jvp=lambda g, y, x: mul(g, mul(x, 2)),
    accepts=is_number,
    doc="""Elementwise x².

    >>> from funcgrad import lax
    >>> lax.square(3.0)
    Array(9., dtype=float32, weak_type=True)
    """,
)

sqrt: Primitive = unary(
    "sqrt",
    impl=lambda xp, x: xp.sqrt(x),
    jvp=lambda g, y, x: mul(g, div(0.5, y)),
    accepts=dtypes.is_inexact,
    need="floating-point or complex numbers",
    doc="""Elementwise square root, NaN for negative real numbers. The derivative at 0 is infinite.

    >>> from funcgrad import lax
    >>> lax.sqrt(9.0)
    Array(3., dtype=float32, weak_type=True)
    """,
)

rsqrt: Primitive = unary(
    "rsqrt",
    impl=in_float32(lambda xp, x: 1 / xp.sqrt(x)),
    jvp=lambda g, y, x: mul(g, mul(div(y, x), -0.5)),
    accepts=dtypes.is_inexact,
    need="floating-point or complex numbers",
    doc="""Elementwise 1 / √x.

    >>> from funcgrad import lax
    >>> lax.rsqrt(4.0)
    Array(0.5, dtype=float32, weak_type=True)
    """,
)

cbrt: Primitive = unary(
    "cbrt",
    impl=lambda xp, x: xp.cbrt(x),
    jvp=lambda g, y, x: mul(g, div(1 / 3, square(y))),
    accepts=dtypes.is_float,
    need="floating-point numbers",
    doc="""Elementwise cube root, also of negative numbers.

    >>> from funcgrad import lax
    >>> lax.cbrt(-1.0)
    Array(-1., dtype=float32, weak_type=True)
    """,
)

# ---- parts of complex numbers


def _complex_impl(xp: Any, x: Any, y: Any) -> Any:
    # Not x + 1j y, which makes NaN of an infinite y. Compilers know this op by its name.
    pairs = xp.stack(xp.broadcast_arrays(x, y), axis=-1)
    return pairs.view(dtypes.to_complex(x.dtype))[..., 0]


complex: Primitive = binary(
    "complex",
    impl=_complex_impl,
    jvp=(
        lambda g, z, x, y: complex(g, np.zeros((), aval_of(g).dtype)),
        lambda g, z, x, y: complex(np.zeros((), aval_of(g).dtype), g),
    ),
    transpose=(lambda ct, x, y: real(ct), lambda ct, x, y: neg(imag(ct))),
    accepts=lambda dtype: dtype in (np.float32, np.float64),
    need="float32 or float64",
    result=lambda x, y: dtypes.to_complex(x),
    doc="""The complex number x + i y of two real ones.

    >>> from funcgrad import lax
    >>> lax.complex(1.0, 2.0)
    Array(1.+2.j, dtype=complex64, weak_type=True)
    """,
)

real: Primitive = unary(
    "real",
    impl=lambda xp, x: x.real,
    jvp=lambda g, y, x: real(g),
    transpose=lambda ct, x: complex(ct, np.zeros((), aval_of(ct).dtype)),
    accepts=dtypes.is_complex,
    need="complex numbers",
    result=dtypes.real_part,
    doc="""The real part of complex numbers.

    >>> from funcgrad import lax
    >>> lax.real(1 + 2j)
    Array(1., dtype=float32, weak_type=True)
    """,
)

imag: Primitive = unary(
    "imag",
    impl=lambda xp, x: x.imag,
    jvp=lambda g, y, x: imag(g),
    transpose=lambda ct, x: complex(np.zeros((), aval_of(ct).dtype), neg(ct)),
    accepts=dtypes.is_complex,
    need="complex numbers",
    result=dtypes.real_part,
    doc="""The imaginary part of complex numbers.

    >>> from funcgrad import lax
    >>> lax.imag(1 + 2j)
    Array(2., dtype=float32, weak_type=True)
    """,
)

conj: Primitive = unary(
    "conj",
    impl=lambda xp, x: xp.conj(x) if x.dtype.kind == "c" else x.astype(dtypes.to_complex(x.dtype)),
    jvp=lambda g, y, x: conj(g),
    transpose=lambda ct, x: conj(ct) if x.aval.dtype.kind == "c" else real(ct),
    accepts=lambda dtype: dtype.kind == "c" or dtype in (np.float32, np.float64),
    need="complex numbers, float32 or float64",
    result=dtypes.to_complex,
    doc="""The complex conjugate; the result is complex also for real numbers.

    >>> from funcgrad import lax
    >>> lax.conj(1 + 2j)
    Array(1.-2.j, dtype=complex64, weak_type=True)
    """,
)
