"""`solve_ivp`: initial value problems under SciPy's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import promote_inexact
from funcgrad.ops.arguments import check_callable
from funcgrad.scipy.integrate.adaptive import RK23, RK45, ROSENBROCK23, solutions
from funcgrad.scipy.integrate.equations import closed

_METHODS = {"RK23": RK23, "RK45": RK45, "Rosenbrock23": ROSENBROCK23}


class OdeResult(NamedTuple):
    """What `solve_ivp` found: times, states with the times along the last axis, the number of
    steps, whether the last time was reached, as a status (0, or -1) too; `sol` with dense output.
    """

    t: Any
    y: Any
    nsteps: Any
    status: Any
    success: Any
    sol: Any = None


def solve_ivp(
    fun: Callable,
    t_span: tuple[Any, Any],
    y0: Any,
    method: str = "RK45",
    t_eval: Any = None,
    dense_output: bool = False,
    events: None = None,
    vectorized: bool = False,
    args: tuple | None = None,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-6,
    max_step: float = np.inf,
    first_step: float | None = None,
    max_steps: float = np.inf,
) -> OdeResult:
    """The solution of dy/dt = fun(t, y, *args) from y0 at t_span[0] to t_span[1].

    The result has the states at times `t_eval`, from t_span[0] on in its direction, by default the
    two ends; y0 is an array or a pytree. method: "RK45" and "RK23", explicit; "Rosenbrock23" for
    stiff equations, which needs ∂fun/∂y and solves linear systems. dense_output: `sol(t)`
    integrates to any times in order. max_steps: the most steps between two times. Derivatives exist
    in all arguments but the tolerances, see `funcgrad.experimental.ode.odeint`.

    >>> from funcgrad.scipy import integrate
    >>> found = integrate.solve_ivp(lambda t, y: -y, (0.0, 1.0), fnp.ones(1), rtol=1e-6)
    >>> found.y.round(3)
    Array([[1.   , 0.368]], dtype=float32)
    """
    name, args = "solve_ivp", () if args is None else args
    _check(name, fun, method, events, args)
    begin, end, at = _times(name, t_span, t_eval)
    sign = fnp.where(end < begin, -1, 1).astype(begin.dtype)

    def by_sign(y: Any, s: Any, sign: Any, *args: Any) -> Any:
        out = fun(sign * s, y, *args)
        return tree.map(lambda d: d * sign.astype(fnp.result_type(float, d)), _like(out, y0))

    first = fnp.stack([sign * begin])
    start, back, equation, operands, fixed = closed(
        name, by_sign, y0, first, (lax.stop_gradient(sign), *args)
    )
    how = rtol, atol, max_steps, max_step, first_step

    def states(times: Any) -> tuple[Any, Any, Any]:
        every = fnp.concatenate([first, sign * times])
        ys, steps, reached = solutions(
            _METHODS[method], equation, start, every, operands, fixed, how
        )
        return tree.map(lambda x: fnp.moveaxis(x, 0, -1), back(ys[1:])), steps, reached

    def sol(times: Any) -> Any:
        times = fnp.asarray(times).astype(begin.dtype)
        found, _, _ = states(fnp.atleast_1d(times))
        return found if times.ndim else tree.map(lambda x: x[..., 0], found)

    y, steps, reached = states(at)
    more = sol if dense_output else None
    return OdeResult(at, y, steps, fnp.where(reached, 0, -1), reached, more)


def _check(name: str, fun: Callable, method: str, events: None, args: tuple) -> None:
    check_callable("fun", fun)
    if method not in _METHODS:
        raise ArgumentError(
            f"{name}: method must be one of {', '.join(_METHODS)} (the last is for stiff "
            f"equations), got {method!r}"
        )
    if events is not None:
        raise NotImplementedError(f"{name}: events are not supported")
    if not isinstance(args, tuple):
        raise ArgumentError(f"{name}: args must be a tuple, got {args!r}")


def _times(name: str, t_span: tuple[Any, Any], t_eval: Any) -> tuple[Any, Any, Any]:
    """The two ends, and the times at which the states are wanted."""
    if len(t_span) != 2:
        raise ArgumentError(f"{name}: t_span must be two times, got {t_span!r}")
    begin, end = promote_inexact(name, *(fnp.asarray(t) for t in t_span))
    at = fnp.stack([begin, end]) if t_eval is None else fnp.asarray(t_eval).astype(begin.dtype)
    if at.ndim != 1:
        raise ShapeError(f"{name}: t_eval must be a vector of times, got {at.aval}")
    return begin, end, at


def _like(out: Any, y0: Any) -> Any:
    """A list of derivatives for a vector as an array, as SciPy takes them."""
    if isinstance(out, list | tuple) and tree.structure(y0) == tree.structure(0):
        return fnp.stack([fnp.asarray(x) for x in out])
    return out
