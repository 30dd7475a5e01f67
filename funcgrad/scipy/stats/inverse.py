"""Quantiles without a formula: Newton's method inside of a bracket, and a search over integers.

What is solved is log F(y) = log p, or with the other tail log(1 - F(y)) = log q if q is smaller,
in a coordinate s on which y depends monotonically over many magnitudes. Derivatives are those of
the implicit function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.ops.elementwise.convert import stop_gradient
from funcgrad.transforms.control.while_loop import while_loop
from funcgrad.transforms.derivatives.custom import SymbolicZero, custom_jvp
from funcgrad.transforms.derivatives.linear import jvp

MOST_STEPS = 120


def _residual(tails: Callable, y_of: Callable, s: Any, p: Any, q: Any, shapes: Any) -> Any:
    """What is 0 at the solution and increases with s, and its derivative in s."""
    y, log_slope = y_of(s, *shapes)
    log_cdf, log_sf, log_pdf = tails(y, *shapes)
    lower = p <= q
    gap = fnp.where(
        lower,
        log_cdf - fnp.log(fnp.where(lower, p, 1)),
        fnp.log(fnp.where(lower, 1, q)) - log_sf,
    )
    return gap, fnp.exp(log_pdf + log_slope - fnp.where(lower, log_cdf, log_sf))


@partial(custom_jvp, nondiff_argnums=(0, 1))
def solve(tails: Callable, y_of: Callable, p: Any, q: Any, shapes: tuple, ends: tuple) -> Any:
    """s between `ends` where the distribution function is p = 1 - q.

    tails: of (y, *shapes), the logarithms of the distribution function, its complement and the
    density. y_of: of (s, *shapes), y and the logarithm of its derivative.

    >>> def tails(y):
    ...     return fnp.log(y), fnp.log1p(-y), 0 * y
    >>> def identity(s):
    ...     return s, 0 * s
    >>> ends = fnp.array(0.0), fnp.array(1.0)
    >>> print(solve(tails, identity, fnp.array(0.25), fnp.array(0.75), (), ends))
    0.25
    """
    eps = 2 * dtypes.finfo(p.dtype).eps

    def step(state: tuple) -> tuple:
        n, low, high, s, _ = state
        gap, slope = _residual(tails, y_of, s, p, q, shapes)
        low, high = fnp.where(gap < 0, s, low), fnp.where(gap < 0, high, s)
        newton = s - gap / slope
        inside = fnp.logical_and(newton >= low, newton <= high)  # neither is NaN
        new = fnp.where(inside, newton, 0.5 * (low + high))
        # A step by rounding alone ends it; so does a bracket of neighbours.
        going = fnp.abs(new - s) > eps * fnp.maximum(1, fnp.abs(new))
        return n + 1, low, high, new, going

    low, high = (fnp.broadcast_to(e, p.shape) for e in ends)
    start = fnp.clip(fnp.zeros_like(p), low, high)
    start = fnp.where(fnp.logical_or(start == low, start == high), 0.5 * (low + high), start)
    init = (0, low, high, start, fnp.ones(p.shape, bool))
    end = while_loop(
        lambda state: fnp.logical_and(state[0] < MOST_STEPS, fnp.any(state[4])), step, init
    )
    return end[3]


@partial(solve.defjvp, symbolic_zeros=True)
def _solve_jvp(tails: Callable, y_of: Callable, primals: tuple, tangents: tuple) -> tuple[Any, Any]:
    p, q, shapes, ends = primals
    s = solve(tails, y_of, p, q, shapes, ends)
    values, moves = [p, q, *shapes], [*tangents[:2], *tangents[2]]
    varying = [i for i, t in enumerate(moves) if not isinstance(t, SymbolicZero)]

    def gap(*given: Any) -> Any:
        full = list(values)
        for i, v in zip(varying, given, strict=True):
            full[i] = v
        return _residual(tails, y_of, s, full[0], full[1], tuple(full[2:]))[0]

    slope = _residual(tails, y_of, s, p, q, shapes)[1]
    if not varying:
        return s, fnp.zeros_like(s)
    _, moved = jvp(gap, tuple(values[i] for i in varying), tuple(moves[i] for i in varying))
    return s, -moved / slope


def search(reached: Callable, low: Any, high: Any) -> Any:
    """The least whole number k, low < k ≤ high, with `reached(k)`, which is monotone.

    >>> print(search(lambda k: k >= 7, fnp.array(-1.0), fnp.array(2.0**20)))
    7.0
    """
    low, high = fnp.broadcast_arrays(stop_gradient(low), stop_gradient(high))
    limit = fnp.asarray(2.0 ** (dtypes.finfo(low.dtype).nmant + 1), low.dtype)
    first = low

    def step(state: tuple) -> tuple:
        low, high = state
        # Between far ends the middle of their magnitudes, then that of the numbers.
        a, b = low - first + 1, high - first + 1
        middle = fnp.where(b > 4 * a + 4, first - 1 + fnp.sqrt(a * b), 0.5 * (low + high))
        middle = fnp.clip(fnp.floor(middle), low + 1, fnp.maximum(low + 1, high - 1))
        done = high - low <= 1
        yes = reached(middle)
        return (
            fnp.where(fnp.logical_or(done, yes), low, middle),
            fnp.where(fnp.logical_and(~done, yes), middle, high),
        )

    init = (low, fnp.minimum(high, first + limit))
    return while_loop(lambda state: fnp.any(state[1] - state[0] > 1), step, init)[1]


def line(s: Any) -> tuple[Any, Any]:
    """sinh(s) and the logarithm of its derivative.

    >>> print(line(fnp.array(0.0))[0])
    0.0
    """
    size = fnp.abs(s)
    return fnp.sinh(s), size + fnp.log1p(fnp.exp(-2 * size)) - math.log(2)


def half_line(s: Any) -> tuple[Any, Any]:
    """exp(s) and the logarithm of its derivative.

    >>> print(half_line(fnp.array(0.0))[0])
    1.0
    """
    return fnp.exp(s), s


def interval(s: Any) -> tuple[Any, Any]:
    """The logistic function of s, and the logarithm of its derivative.

    >>> print(interval(fnp.array(0.0))[0])
    0.5
    """
    return 1 / (1 + fnp.exp(-s)), s - 2 * fnp.logaddexp(s, 0)


def slope_is(density: Callable) -> Callable:
    """Decorate a function of (x, *shapes): its derivative in x is the density.

    >>> @slope_is(lambda x: 2 * x)
    ... def square(x):
    ...     return x * x
    >>> print(square(fnp.array(3.0)))
    9.0
    """

    def decorate(function: Callable) -> Callable:
        known = custom_jvp(function)

        def rule(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
            x, *shapes = primals
            y, parts = known(*primals), []
            if not isinstance(tangents[0], SymbolicZero):
                parts.append(density(*primals) * tangents[0])
            varying = [i for i, t in enumerate(tangents[1:]) if not isinstance(t, SymbolicZero)]
            if varying:

                def of(*given: Any) -> Any:
                    full = list(shapes)
                    for i, v in zip(varying, given, strict=True):
                        full[i] = v
                    return function(x, *full)

                moves = tuple(tangents[1 + i] for i in varying)
                parts.append(jvp(of, tuple(shapes[i] for i in varying), moves)[1])
            return y, sum(parts[1:], parts[0]) if parts else fnp.zeros_like(y)

        known.defjvp(rule, symbolic_zeros=True)
        return known

    return decorate
