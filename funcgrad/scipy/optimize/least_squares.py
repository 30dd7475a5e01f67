"""Roots and least squares of vectors of residuals, by Levenberg and Marquardt's method.

Each step solves min |J p + r|² + μ |D p|² with D the largest norms of J's columns so far (Moré
1978); μ falls and rises with how well that foretold the change (Nielsen 1999).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.flatten_util import ravel_pytree
from funcgrad.numpy._util import promote_inexact
from funcgrad.ops.arguments import check_callable
from funcgrad.scipy.integrate.adaptive import ravel
from funcgrad.scipy.optimize.minimize import dense_solve
from funcgrad.transforms.derivatives.implicit import custom_root
from funcgrad.transforms.derivatives.jacobian import jacfwd
from funcgrad.transforms.derivatives.linear import vjp


class LeastSquaresResult(NamedTuple):
    """What was found: x, half the sum of squares, residuals and their Jacobian, the gradient and
    its largest element, the turns, and how it ended (status 0: too many turns, else converged)."""

    x: Any
    cost: Any
    fun: Any
    jac: Any
    grad: Any
    optimality: Any
    nfev: Any
    status: Any
    success: Any


def _damped(j: Any, r: Any, d: Any, mu: Any) -> Any:
    """The step, by QR of J over √μ D, which keeps the digits that normal equations lose."""
    q, u = fnp.linalg.qr(fnp.concatenate([j, fnp.sqrt(mu) * fnp.diag(d)]))
    return lax.linalg.triangular_solve(u, (-q[: r.shape[0]].T @ r)[:, None], left_side=True)[:, 0]


def _marquardt(
    fun: Callable, x: Any, ftol: Any, xtol: Any, gtol: Any, most: Any
) -> tuple[Any, Any, Any]:
    """(x, turns, status)."""
    derivative = jacfwd(fun)
    r, j = fun(x), derivative(x)
    tiny = float(np.finfo(x.dtype).eps)

    def more(state: tuple) -> Any:
        return (state[-1] == 0) & (state[-2] < most)

    def turn(state: tuple) -> tuple:
        x, r, j, d, mu, nu, k, _ = state
        p = _damped(j, r, d, mu)
        new = fun(x + p)
        cost, changed = fnp.sum(r * r), fnp.sum(new * new)
        foretold = cost - fnp.sum((r + j @ p) ** 2)
        share = (cost - changed) / fnp.where(foretold > 0, foretold, 1)
        better = (changed < cost) & (foretold > 0)
        status = fnp.zeros((), np.int32)
        small = fnp.linalg.norm(p) <= xtol * (xtol + fnp.linalg.norm(x))
        status = fnp.where(small, 3, status)
        status = fnp.where(better & (cost - changed <= ftol * cost) & (share > 0.25), 2, status)
        x, r = fnp.where(better, x + p, x), fnp.where(better, new, r)
        j = fnp.where(better, derivative(x), j)
        status = fnp.where(fnp.max(fnp.abs(j.T @ r)) <= gtol, 1, status)
        d = fnp.maximum(d, fnp.linalg.norm(j, axis=0))
        less = fnp.maximum(1 / 3, 1 - (2 * share - 1) ** 3)
        mu = fnp.where(better, fnp.maximum(mu * less, tiny * 1e-6), mu * nu)
        status = fnp.where(fnp.isfinite(mu) & fnp.all(fnp.isfinite(p)), status, -1)
        nu = fnp.where(better, 2, 2 * nu).astype(x.dtype)
        return x, r, j, d, mu.astype(x.dtype), nu, k + 1, status.astype(np.int32)

    norms = fnp.linalg.norm(j, axis=0)
    d = fnp.where(norms > 0, norms, 1)
    status = fnp.where(fnp.max(fnp.abs(j.T @ r)) <= gtol, 1, 0).astype(np.int32)
    one = fnp.ones((), x.dtype)
    init = x, r, j, d, one * 1e-3, 2 * one, fnp.zeros((), np.int32), status
    x, _, _, _, _, _, k, status = lax.while_loop(more, turn, init)
    return x, k, status


def _problem(name: str, fun: Any, x0: Any, args: Any) -> tuple[Any, Any, Callable]:
    check_callable("fun", fun)
    if not isinstance(args, tuple):
        raise ArgumentError(f"{name}: args must be a tuple, got {args!r}")
    x0 = tree.map(lambda x: promote_inexact(name, fnp.asarray(x))[0], x0)
    start, back = ravel(x0)
    if not start.shape[0]:
        raise ShapeError(f"{name}: x0 has no elements")

    def residuals(v: Any) -> Any:
        return ravel_pytree(fun(back(v), *args))[0].astype(v.dtype)

    return start, back, residuals


def least_squares(
    fun: Callable,
    x0: Any,
    args: tuple = (),
    *,
    ftol: float = 1e-8,
    xtol: float = 1e-8,
    gtol: float = 1e-8,
    max_nfev: int | None = None,
) -> LeastSquaresResult:
    """The x for which the sum of squares of fun(x, *args), an array or pytree, is least near x0.

    Ends where the gradient is at most gtol, or the sum's or x's relative change ftol or xtol. x is
    an array or a pytree and has derivatives in args and in what `fun` captures, by the implicit
    function theorem.

    >>> from funcgrad.scipy import optimize
    >>> x, y = fnp.arange(4.0), fnp.array([3.0, 1.1, 0.4, 0.15])
    >>> found = optimize.least_squares(lambda p: p[0] * fnp.exp(-p[1] * x) - y, fnp.ones(2))
    >>> found.x.round(2)
    Array([3., 1.], dtype=float32)
    """
    start, back, residuals = _problem("least_squares", fun, x0, args)

    def slope(v: Any) -> Any:
        r, pull = vjp(residuals, v)
        return pull(r)[0]

    most = 100 * start.shape[0] if max_nfev is None else max_nfev

    def solve(_: Callable, guess: Any) -> Any:
        x, k, status = _marquardt(residuals, guess, ftol, xtol, gtol, most)
        return x, (k, status)

    x, (k, status) = custom_root(slope, start, solve, dense_solve, has_aux=True)
    r, j = residuals(x), jacfwd(residuals)(x)
    g = j.T @ r
    return LeastSquaresResult(
        back(x), fnp.sum(r * r) / 2, r, j, g, fnp.max(fnp.abs(g)), k, status, status > 0
    )


class RootResult(NamedTuple):
    """What `root` found: x, the function's value there, whether it is a root, and the turns."""

    x: Any
    fun: Any
    success: Any
    nfev: Any


def root(
    fun: Callable,
    x0: Any,
    args: tuple = (),
    method: str = "lm",
    *,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> RootResult:
    """The x near x0 with fun(x, *args) = 0, which has as many elements as x, by `least_squares`.

    tol: the root's relative precision; the option maxiter, the most turns. x has derivatives in
    args and in what `fun` captures, by the implicit function theorem.

    >>> from funcgrad.scipy import optimize
    >>> f = lambda a: optimize.root(lambda x: x**2 - a, fnp.ones(1)).x[0]
    >>> f(4.0).round(3), fg.grad(f)(4.0).round(3)
    (Array(2., dtype=float32), Array(0.25, dtype=float32))
    """
    if method != "lm":
        raise ArgumentError(f"root: method must be lm, got {method!r}")
    if wrong := set(options or {}) - {"maxiter"}:
        raise ArgumentError(f"root: options must be of maxiter, got {', '.join(sorted(wrong))}")
    start, back, residuals = _problem("root", fun, x0, args)
    found = fnp.shape(residuals(start))
    if found != start.shape:
        raise ShapeError(
            f"root: fun must give as many numbers as x has, {start.shape}, got {found}"
        )
    eps = float(np.finfo(start.dtype).eps)
    small = 4 * eps if tol is None else tol
    most = (options or {}).get("maxiter", 100 * start.shape[0])

    def solve(_: Callable, guess: Any) -> Any:
        x, k, _ = _marquardt(residuals, guess, 0.0, small, 0.0, most)
        return x, k

    x, k = custom_root(residuals, start, solve, dense_solve, has_aux=True)
    r, j = residuals(x), lax.stop_gradient(jacfwd(residuals)(x))
    # What a change of x by its precision would make of the residuals.
    reach = fnp.abs(j) @ (1 + fnp.abs(x))
    near = fnp.all(fnp.abs(r) <= max(small, eps**0.5) * reach)
    return RootResult(back(x), fun(back(x), *args), near, k)
