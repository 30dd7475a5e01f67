"""Steps along a direction that satisfy the strong Wolfe conditions.

An interval is found that has such steps, by doubling, and narrowed by cubic interpolation (Nocedal
and Wright 2006, algorithms 3.5 and 3.6), in one loop with one evaluation a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.ops.arguments import check_callable
from funcgrad.transforms.derivatives.grad import value_and_grad


class _Point(NamedTuple):
    """A step with the function's value and gradient there, and the slope along the direction."""

    a: Any
    f: Any
    g: Any
    d: Any


class LineSearchResults(NamedTuple):
    """What a line search found: whether it failed, the step a_k, the function's value and gradient
    there, and the numbers of evaluations."""

    failed: Any
    a_k: Any
    f_k: Any
    g_k: Any
    nfev: Any
    ngev: Any


def _between(low: _Point, high: _Point) -> Any:
    """The minimum of the cubic through both points, well inside; else the middle."""
    width = high.a - low.a
    d1 = low.d + high.d - 3 * (low.f - high.f) / (low.a - high.a)
    root = d1 * d1 - low.d * high.d
    d2 = fnp.sign(width) * fnp.sqrt(fnp.maximum(root, 0))
    share = 1 - (high.d + d2 - d1) / (high.d - low.d + 2 * d2)
    good = fnp.isfinite(share) & (root >= 0)
    return low.a + width * fnp.where(good, fnp.clip(share, 0.1, 0.9), 0.5)


def _where(test: Any, yes: _Point, no: _Point) -> _Point:
    return _Point(*(fnp.where(test, a, b) for a, b in zip(yes, no, strict=True)))


def search(
    fun: Callable, x: Any, p: Any, f: Any, g: Any, first: Any, c1: float, c2: float, most: Any
) -> LineSearchResults:
    """A step along p from x, for a function that gives (value, gradient)."""
    start = _Point(fnp.zeros((), x.dtype), f, g, fnp.sum(g * p))

    def more(state: tuple) -> Any:
        i, done, *_ = state
        return (i < most) & ~done

    def turn(state: tuple) -> tuple:
        i, _, inside, a, low, high, _ = state
        value, slope = fun(x + a * p)
        new = _Point(a, value, slope, fnp.sum(slope * p))
        enough = value <= f + c1 * a * start.d
        flat = fnp.abs(new.d) <= -c2 * start.d
        above = ~enough | ((value >= low.f) & (inside | (i > 0)))
        done = ~above & flat & enough
        # outside of an interval `low` is the step before; inside, its better end
        turned = fnp.where(inside, new.d * (high.a - low.a) >= 0, new.d >= 0)
        next_high = _where(above, new, _where(turned, low, high))
        next_low = _where(above, low, new)
        inside = inside | above | turned
        a = fnp.where(inside, _between(next_low, next_high), 2 * a)
        return i + 1, done, inside, a, next_low, next_high, _where(done, new, next_low)

    zero = fnp.zeros((), np.int32)
    first = fnp.asarray(first, x.dtype)
    init = zero, fnp.zeros((), bool), fnp.zeros((), bool), first, start, start, start
    i, done, _, _, _, _, best = lax.while_loop(more, turn, init)
    return LineSearchResults(~done, best.a, best.f, best.g, i, i)


def line_search(
    f: Callable,
    xk: Any,
    pk: Any,
    old_fval: Any = None,
    old_old_fval: Any = None,
    gfk: Any = None,
    c1: float = 1e-4,
    c2: float = 0.9,
    maxiter: int = 20,
) -> LineSearchResults:
    """A step a_k along pk for which f falls enough and its slope is small enough (strong Wolfe).

    old_fval, gfk: the value and gradient at xk, where known. old_old_fval: the value at the point
    before, which says how long the first step is.

    >>> from funcgrad.scipy import optimize
    >>> optimize.line_search(lambda x: fnp.sum(x**2), fnp.ones(1), -2 * fnp.ones(1)).a_k
    Array(0.5, dtype=float32)
    """
    check_callable("f", f)
    xk, pk = fnp.asarray(xk), fnp.asarray(pk)
    both = value_and_grad(f)
    if old_fval is None or gfk is None:
        value, gradient = both(xk)
        old_fval, gfk = (
            (value if old_fval is None else old_fval),
            (gradient if gfk is None else gfk),
        )
    first = fnp.ones((), xk.dtype)
    if old_old_fval is not None:
        first = first_step(old_fval, old_old_fval, fnp.sum(gfk * pk))
    return search(both, xk, pk, fnp.asarray(old_fval), gfk, first, c1, c2, maxiter)


def first_step(f: Any, before: Any, slope: Any) -> Any:
    """The step that would change f as much as the step before did, at most 1."""
    step = 2.02 * (f - before) / fnp.where(slope < 0, slope, 1)
    return fnp.where((slope < 0) & (step > 0), fnp.minimum(step, 1), 1)
