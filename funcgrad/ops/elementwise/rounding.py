"""Rounding: floats to whole floats, to their neighbours, and whether they are finite at all."""

from __future__ import annotations

import enum
from typing import Any

from funcgrad import dtypes
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.ops.families import FLAT, binary, unary


class RoundingMethod(enum.IntEnum):
    """Where `round` sends numbers half-way between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


floor: Primitive = unary(
    "floor",
    impl=lambda xp, x: xp.floor(x),
    jvp=FLAT,
    accepts=dtypes.is_float,
    need="floating-point numbers",
    doc="""Elementwise greatest integer ≤ x, in x's dtype. The derivative is zero.

    >>> from funcgrad import lax
    >>> lax.floor(-1.5)
    Array(-2., dtype=float32, weak_type=True)
    """,
)

ceil: Primitive = unary(
    "ceil",
    impl=lambda xp, x: xp.ceil(x),
    jvp=FLAT,
    accepts=dtypes.is_float,
    need="floating-point numbers",
    doc="""Elementwise least integer ≥ x, in x's dtype. The derivative is zero.

    >>> from funcgrad import lax
    >>> lax.ceil(1.5)
    Array(2., dtype=float32, weak_type=True)
    """,
)


def _round_impl(xp: Any, x: Any, *, rounding_method: RoundingMethod) -> Any:
    if rounding_method == RoundingMethod.TO_NEAREST_EVEN:
        return xp.rint(x)
    whole = xp.trunc(x)
    # The difference is exact, so that 0.49999997 does not become 1.
    return xp.where(xp.abs(x - whole) >= 0.5, whole + xp.copysign(xp.ones_like(x), x), whole)


round_p: Primitive = unary(
    "round",
    impl=_round_impl,
    jvp=FLAT,
    accepts=dtypes.is_float,
    need="floating-point numbers",
    doc="",
)


def round(x: Any, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """Elementwise nearest integer, in x's dtype; `rounding_method` says where halves go.

    The derivative is zero.

    >>> from funcgrad import lax
    >>> lax.round(2.5), lax.round(2.5, lax.RoundingMethod.TO_NEAREST_EVEN)
    (Array(3., dtype=float32, weak_type=True), Array(2., dtype=float32, weak_type=True))
    """
    try:
        method = RoundingMethod(rounding_method)
    except ValueError:
        message = f"round: rounding_method must be a RoundingMethod, got {rounding_method!r}"
        raise ValueError(message) from None
    return round_p(x, rounding_method=method)


nextafter: Primitive = binary(
    "nextafter",
    impl=lambda xp, x, y: xp.nextafter(x, y),
    jvp=NoRule("neighbouring floats are no smooth function; pass lax.stop_gradient(x)"),
    accepts=dtypes.is_float,
    need="floating-point numbers",
    doc="""The float next to x in the direction of y.

    >>> from funcgrad import lax
    >>> lax.nextafter(0.0, 1.0)
    Array(1.e-45, dtype=float32, weak_type=True)
    """,
)

is_finite: Primitive = unary(
    "is_finite",
    impl=lambda xp, x: xp.isfinite(x),
    jvp=FLAT,
    accepts=dtypes.is_float,
    need="floating-point numbers",
    result=lambda dtype: dtypes.BOOL,
    doc="""Elementwise whether x is neither infinite nor NaN.

    >>> from funcgrad import lax
    >>> lax.is_finite(float("inf"))
    Array(False, dtype=bool)
    """,
)
