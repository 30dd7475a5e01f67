"""`odeint`: ordinary differential equations at JAX's address and with its signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.ops.arguments import check_callable
from funcgrad.scipy.integrate.adaptive import RK45, solutions
from funcgrad.scipy.integrate.equations import closed

__all__ = ["odeint"]


def odeint(
    func: Callable,
    y0: Any,
    t: Any,
    *args: Any,
    rtol: float = 1.4e-8,
    atol: float = 1.4e-8,
    mxstep: float = np.inf,
    hmax: float = np.inf,
) -> Any:
    """The solution of dy/dt = func(y, t, *args) at increasing times t, from y0 at t[0].

    y0 and args are pytrees; the result is y0's with an axis of times in front. Steps are Dormand
    and Prince's of order 5, within tolerances `rtol` and `atol`, no longer than `hmax`, at most
    `mxstep` between two times. Derivatives exist in y0, t, args and what `func` captures: backwards
    by the adjoint equation, forwards through the steps.

    >>> from funcgrad.experimental.ode import odeint
    >>> times = fnp.array([0.0, 1.0, 2.0])
    >>> odeint(lambda y, t, rate: -rate * y, 1.0, times, 0.5).round(3)
    Array([1.   , 0.607, 0.368], dtype=float32)
    >>> fg.grad(lambda rate: odeint(lambda y, t: -rate * y, 1.0, times)[-1])(0.5).round(3)
    Array(-0.736, dtype=float32)
    """
    check_callable("func", func)
    try:
        t = fnp.asarray(t)
    except TypeError as e:
        raise ArgumentError(f"odeint: t must be an array of floats, but got {t!r}") from e
    if not (dtypes.is_inexact(t.dtype) and not dtypes.is_complex(t.dtype)):
        raise DTypeError(f"odeint: t must be an array of floats, but got {t.aval}")
    if t.ndim != 1 or not t.shape[0]:
        raise ShapeError(f"odeint: t must be a vector of times, got {t.aval}")
    start, back, fun, operands, fixed = closed("odeint", func, y0, t, args)
    how = rtol, atol, mxstep, hmax, None
    ys, _, _ = solutions(RK45, fun, start, t, operands, fixed, how)
    return back(ys)
