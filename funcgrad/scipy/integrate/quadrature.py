"""Integrals of samples and of functions.

`quad` halves the interval whose Gauss and Kronrod sums differ most until the sum of the differences
is small. The intervals found are constants for derivatives; the sum over them is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.ops.arguments import canonical_axis, check_callable, integer
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.custom import closure_convert


def _samples(name: str, y: Any, x: Any, dx: Any, axis: Any) -> tuple[Any, Any, int]:
    """y with the axis last, the distances between its samples, and the axis."""
    y = as_array(name, y, "y")
    axis = canonical_axis(name, axis, y.ndim)
    (y,) = promote_inexact(name, y)
    y = fnp.moveaxis(y, axis, -1)
    if x is None:
        return y, fnp.broadcast_to(fnp.asarray(dx), (max(y.shape[-1] - 1, 0),)), axis
    x = as_array(name, x, "x")
    x = x if x.ndim == 1 else fnp.moveaxis(x, axis, -1)
    if not x.ndim or x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"{name}: x must have a place for each of y's samples, got {x.aval} for "
                         f"{y.shape[-1]} samples")  # fmt: skip
    return y, fnp.diff(x, axis=-1), axis


def cumulative_trapezoid(
    y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1, initial: Any = None
) -> Any:
    """The integrals of samples up to each one by the trapezoidal rule; `initial`, 0, stands first.

    >>> from funcgrad.scipy import integrate
    >>> integrate.cumulative_trapezoid(fnp.array([0.0, 1.0, 2.0]), initial=0)
    Array([0. , 0.5, 2. ], dtype=float32)
    """
    name = "cumulative_trapezoid"
    y, d, axis = _samples(name, y, x, dx, axis)
    if not y.shape[-1]:
        raise ShapeError(f"{name}: at least one sample is needed along axis {axis}")
    out = fnp.cumsum(d * (y[..., 1:] + y[..., :-1]) / 2, -1)
    if initial is not None:
        first = fnp.broadcast_to(fnp.asarray(initial, out.dtype), (*out.shape[:-1], 1))
        out = fnp.concatenate([first, out], -1)
    return fnp.moveaxis(out, -1, axis)


def simpson(y: Any, x: Any = None, *, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of samples by Simpson's rule: of parabolas through three samples each, the last
    of which counts for half where the number of samples is even.

    >>> from funcgrad.scipy import integrate
    >>> integrate.simpson(fnp.array([0.0, 1.0, 4.0]), dx=3.0)
    Array(8., dtype=float32)
    """
    y, d, axis = _samples("simpson", y, x, dx, axis)
    n = y.shape[-1]
    if n < 2:
        return fnp.zeros(y.shape[:-1], y.dtype)
    if n == 2:
        return d[..., 0] * (y[..., 0] + y[..., 1]) / 2
    odd = n - (n % 2 == 0)
    a, b = d[..., 0 : odd - 1 : 2], d[..., 1 : odd - 1 : 2]
    y0, y1, y2 = y[..., 0 : odd - 2 : 2], y[..., 1 : odd - 1 : 2], y[..., 2:odd:2]
    whole, even = a + b, a * b == 0
    a, b = fnp.where(even, 1, a), fnp.where(even, 1, b)
    parts = whole / 6 * (y0 * (2 - b / a) + y1 * whole**2 / (a * b) + y2 * (2 - a / b))
    total = fnp.sum(fnp.where(even, 0, parts), -1)
    if odd == n:
        return total
    # Cartwright 2016: the last interval under the parabola through the last three samples.
    a, b = d[..., -2], d[..., -1]
    last = (2 * b**2 + 3 * a * b) / (6 * (a + b)) * y[..., -1]
    last = last + (b**2 + 3 * a * b) / (6 * a) * y[..., -2]
    return total + last - b**3 / (6 * a * (a + b)) * y[..., -3]


def romb(y: Any, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of 2ᵏ + 1 samples at one distance by Romberg's extrapolation.

    >>> from funcgrad.scipy import integrate
    >>> integrate.romb(fnp.arange(5.0) ** 2, dx=0.5).round(3)
    Array(10.667, dtype=float32)
    """
    y, _, axis = _samples("romb", y, None, 1.0, axis)
    n = y.shape[-1] - 1
    if n < 1 or n & (n - 1):
        raise ShapeError(
            f"romb: the number of samples must be one more than a power of 2, got {n + 1}"
        )
    levels = []
    for k in range(n.bit_length()):
        part = y[..., :: n >> k]
        trapezoids = fnp.sum(part, -1) - (part[..., 0] + part[..., -1]) / 2
        levels.append(trapezoids * (n >> k) * dx)
    for k in range(1, len(levels)):
        levels = [(4**k * b - a) / (4**k - 1) for a, b in itertools.pairwise(levels)]
    return levels[0]


def fixed_quad(func: Callable, a: Any, b: Any, args: tuple = (), n: int = 5) -> tuple[Any, None]:
    """(integral of func(x, *args) from a to b, None) by Gauss' formula of n points.

    func: of a vector of points, which are along the last axis of what it gives.

    >>> from funcgrad.scipy import integrate
    >>> integrate.fixed_quad(lambda x: x**9, 0.0, 1.0)[0].round(4)
    Array(0.1, dtype=float32)
    """
    check_callable("func", func)
    n = integer("n", n)
    if n < 1:
        raise ArgumentError(f"fixed_quad: n must be positive, got {n}")
    a, b = promote_inexact("fixed_quad", fnp.asarray(a), fnp.asarray(b))
    points, weights = (fnp.asarray(v, a.dtype) for v in np.polynomial.legendre.leggauss(n))
    half = (b - a) / 2
    return half * fnp.sum(weights * func(half * (points + 1) + a, *args), -1), None


# Kronrod's points of order 15 and their weights, and Gauss' of order 7 of every second point.
_POINTS = [
    0.991455371120812639206854697526329, 0.949107912342758524526189684047851,
    0.864864423359769072789712788640926, 0.741531185599394439863864773280788,
    0.586087235467691130294144691693000, 0.405845151377397166906606412076961,
    0.207784955007898467600689403773245, 0.0,
]  # fmt: skip
_KRONROD = [
    0.022935322010529224963732008058970, 0.063092092629978553290700663189204,
    0.104790010322250183839876322541518, 0.140653259715525918745189590510238,
    0.169004726639267902826583426598550, 0.190350578064785409913256402421014,
    0.204432940075298892414161999234649, 0.209482141084727828012999174891714,
]  # fmt: skip
_GAUSS = [
    0.129484966168869693270611432679082, 0.279705391489276667901467771423780,
    0.381830050505118944950369775488975, 0.417959183673469387755102040816327,
]  # fmt: skip
PLACES = np.array([-p for p in _POINTS] + _POINTS[-2::-1])
KRONROD = np.array(_KRONROD + _KRONROD[-2::-1])
GAUSS = np.zeros(15)
GAUSS[1::2] = _GAUSS + _GAUSS[-2::-1]


def quad(
    func: Callable,
    a: Any,
    b: Any,
    args: tuple = (),
    epsabs: float = 1.49e-8,
    epsrel: float = 1.49e-8,
    limit: int = 50,
) -> tuple[Any, Any]:
    """(the integral of func(x, *args) from a to b, an estimate of its error), adaptively.

    func: of one number. The bounds may be infinite where they are known. At most `limit` intervals.
    Derivatives of any order exist in the bounds, in args and in what `func` captures.

    >>> from funcgrad.scipy import integrate
    >>> integrate.quad(lambda x: fnp.exp(-x * x), -fnp.inf, fnp.inf)[0].round(4)
    Array(1.7725, dtype=float32)
    >>> fg.grad(lambda p: integrate.quad(lambda x: x**p, 0.0, 1.0)[0])(1.0).round(4)
    Array(-0.25, dtype=float32)
    """
    check_callable("func", func)
    if not isinstance(args, tuple):
        args = (args,)
    limit = integer("limit", limit)
    if limit < 1:
        raise ArgumentError(f"quad: limit must be positive, got {limit}")
    ends = [isinstance(v, float | int) and np.isinf(v) for v in (a, b)]
    a, b = promote_inexact("quad", fnp.asarray(a), fnp.asarray(b))
    if a.shape or b.shape:
        raise ShapeError(f"quad: a and b must be numbers, got {a.aval} and {b.aval}")
    f, captured = closure_convert(_on_unit(func, a, b, *ends), fnp.zeros((), a.dtype), a, b, args)
    held = a, b, args, *captured
    sums = _rule(f, a.dtype)
    count, lows, highs, errors = _cuts(sums, lax.stop_gradient(held), limit, epsabs, epsrel)
    # Those that aren't used are the whole one: never a place where func isn't defined.
    used = fnp.arange(limit) < count
    cuts = fnp.where(used, lows, 0), fnp.where(used, highs, 1)
    wholes = vmap(lambda low, high: sums(low, high, *held)[0])(*cuts)
    return fnp.sum(fnp.where(used, wholes, 0)), lax.stop_gradient(fnp.sum(errors))


def _rule(f: Callable, dtype: np.dtype) -> Callable:
    """(the integral between two places, its error), by the rule of Gauss and Kronrod."""
    points, kronrod, gauss = (fnp.asarray(v, dtype) for v in (PLACES, KRONROD, GAUSS))

    def sums(low: Any, high: Any, *held: Any) -> tuple[Any, Any]:
        half = (high - low) / 2
        values = vmap(lambda x: f(x, *held))(low + half * (points + 1))
        whole = half * fnp.sum(kronrod * values)
        return whole, fnp.abs(whole - half * fnp.sum(gauss * values))

    return sums


def _cuts(sums: Callable, fixed: tuple, limit: int, epsabs: float, epsrel: float) -> tuple:
    """How many intervals there are, and their lower and upper ends and errors: the one that is the
    most wrong is halved until all are right, or there are `limit`."""
    lows = fnp.zeros(limit, fixed[0].dtype)
    highs = lows.at[0].set(1)
    value, error = sums(lows[0], highs[0], *fixed)

    def more(state: Any) -> Any:
        i, _, _, values, errors = state
        least = fnp.maximum(epsabs, epsrel * fnp.abs(fnp.sum(values)))
        return (i < limit) & (fnp.sum(errors) > least)

    def halve(state: Any) -> Any:
        i, lows, highs, values, errors = state
        worst = fnp.argmax(errors)
        low, high = lows[worst], highs[worst]
        middle = (low + high) / 2
        left, right = sums(low, middle, *fixed), sums(middle, high, *fixed)
        return (
            i + 1,
            lows.at[i].set(middle),
            highs.at[i].set(high).at[worst].set(middle),
            values.at[i].set(right[0]).at[worst].set(left[0]),
            errors.at[i].set(right[1]).at[worst].set(left[1]),
        )

    values, errors = (fnp.zeros(limit, v.dtype).at[0].set(v) for v in (value, error))
    count, lows, highs, _, errors = lax.while_loop(
        more, halve, (fnp.ones((), np.int32), lows, highs, values, errors)
    )
    return count, *lax.stop_gradient((lows, highs)), errors


def _on_unit(func: Callable, a: Any, b: Any, below: bool, above: bool) -> Callable:
    """The integrand from 0 to 1, whatever the bounds."""

    def on_unit(u: Any, a: Any, b: Any, args: Any) -> Any:
        if below and above:  # x = (2u - 1) / (1 - (2u - 1)²)
            t = 2 * u - 1
            rest = 1 - t * t
            sign = fnp.sign(b) if a.dtype == b.dtype else 1
            return sign * func(t / rest, *args) * 2 * (1 + t * t) / rest**2
        if above:
            sign = fnp.sign(lax.stop_gradient(b))
            return sign * func(a + sign * u / (1 - u), *args) / (1 - u) ** 2
        if below:
            sign = fnp.sign(lax.stop_gradient(a))
            return -sign * func(b + sign * (1 - u) / u, *args) / u**2
        return (b - a) * func(a + (b - a) * u, *args)

    return on_unit
