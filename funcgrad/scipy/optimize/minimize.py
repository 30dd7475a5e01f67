"""Minima of functions: BFGS, and L-BFGS with a limited memory (Nocedal and Wright 2006, chapters
6 and 7). Derivatives of minima are those of the root of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, tree
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import promote_inexact
from funcgrad.ops.arguments import check_callable
from funcgrad.scipy.integrate.adaptive import ravel
from funcgrad.scipy.optimize.line_search import first_step, search
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.grad import grad, value_and_grad
from funcgrad.transforms.derivatives.implicit import custom_root


class OptimizeResults(NamedTuple):
    """What `minimize` found: the minimum x, whether and how it ended (status 0: it converged, 1:
    too many turns, 3: no lower point was found), the value, gradient and inverse Hessian there, the
    numbers of values and gradients computed, and of turns."""

    x: Any
    success: Any
    status: Any
    fun: Any
    jac: Any
    hess_inv: Any
    nfev: Any
    njev: Any
    nit: Any


class _State(NamedTuple):
    x: Any
    f: Any
    g: Any
    before: Any  # the value before
    memory: Any
    k: Any
    nfev: Any
    status: Any  # -1 while it runs


def _run(fun: Callable, x: Any, memory: Any, direction: Callable, update: Callable, *,
         maxiter: Any, norm: Any, gtol: Any, ftol: Any, maxls: Any) -> _State:  # fmt: skip
    both = value_and_grad(fun)
    f, g = both(x)

    def status(g: Any) -> Any:
        return fnp.where(fnp.linalg.norm(g, norm) <= gtol, 0, -1).astype(np.int32)

    def more(s: _State) -> Any:
        return (s.status == -1) & (s.k < maxiter)

    def turn(s: _State) -> _State:
        p = direction(s.memory, s.g)
        slope = fnp.sum(s.g * p)
        p = fnp.where(slope < 0, p, -s.g)
        first = first_step(s.f, s.before, fnp.sum(s.g * p))
        found = search(both, s.x, p, s.f, s.g, first, 1e-4, 0.9, maxls)
        step = found.a_k * p
        lower = (found.a_k > 0) & (found.f_k <= s.f)
        x, f, g = (fnp.where(lower, a, b) for a, b in
                   ((s.x + step, s.x), (found.f_k, s.f), (found.g_k, s.g)))  # fmt: skip
        memory = tree.map(
            lambda a, b: fnp.where(lower, a, b), update(s.memory, step, found.g_k - s.g), s.memory
        )
        done = fnp.where(lower, status(g), 3)
        small = s.f - f <= ftol * fnp.maximum(fnp.maximum(fnp.abs(s.f), fnp.abs(f)), 1)
        done = fnp.where((done == -1) & small & (ftol > 0), 0, done).astype(np.int32)
        return _State(x, f, g, s.f, memory, s.k + 1, s.nfev + found.nfev, done)

    one = fnp.ones((), np.int32)
    before = f + fnp.linalg.norm(g) / 2
    state = _State(x, f, g, before, memory, one - 1, one, status(g))
    out: _State = lax.while_loop(more, turn, state)
    return out._replace(status=fnp.where(out.status == -1, 1, out.status))


def _bfgs(fun: Callable, x: Any, maxiter: Any = None, norm: Any = np.inf, gtol: float = 1e-5,
          line_search_maxiter: int = 10) -> tuple[_State, Any]:  # fmt: skip
    eye = fnp.eye(x.shape[0], dtype=x.dtype)

    def update(h: Any, s: Any, y: Any) -> Any:
        sy = fnp.sum(s * y)
        rho = 1 / fnp.where(sy > 0, sy, 1)
        left = eye - rho * s[:, None] * y
        return fnp.where(sy > 0, left @ h @ left.T + rho * s[:, None] * s, h)

    maxiter = x.shape[0] * 200 if maxiter is None else maxiter
    out = _run(fun, x, eye, lambda h, g: -h @ g, update, maxiter=maxiter, norm=norm, gtol=gtol,
               ftol=0.0, maxls=max(line_search_maxiter, 1))  # fmt: skip
    return out, out.memory


def _lbfgs(fun: Callable, x: Any, maxiter: Any = None, norm: Any = np.inf, maxcor: int = 10,
           ftol: float = 2.220446049250313e-09, gtol: float = 1e-05, maxfun: Any = None,
           maxgrad: Any = None, maxls: int = 20) -> tuple[_State, Any]:  # fmt: skip
    n = x.shape[0]
    rows = fnp.zeros((maxcor, n), x.dtype)
    memory = rows, rows, fnp.zeros(maxcor, x.dtype), fnp.ones((), x.dtype)

    def direction(memory: Any, g: Any) -> Any:
        ss, ys, rhos, gamma = memory
        q, shares = g, []
        for i in reversed(range(maxcor)):
            share = rhos[i] * fnp.sum(ss[i] * q)
            q = q - share * ys[i]
            shares.append(share)
        q = gamma * q
        for i in range(maxcor):
            q = q + ss[i] * (shares[maxcor - 1 - i] - rhos[i] * fnp.sum(ys[i] * q))
        return -q

    def update(memory: Any, s: Any, y: Any) -> Any:
        sy = fnp.sum(s * y)
        ss, ys, rhos, _ = memory
        safe = fnp.where(sy > 0, sy, 1)
        later = [fnp.concatenate([a[1:], b[None]]) for a, b in ((ss, s), (ys, y), (rhos, 1 / safe))]
        yy = fnp.sum(y * y)
        new = (*later, safe / fnp.where(yy > 0, yy, 1))
        return tree.map(lambda a, b: fnp.where(sy > 0, a, b), new, memory)

    limits = [v for v in (maxiter, maxfun, maxgrad) if v is not None]
    most = min(limits) if limits else n * 200
    out = _run(fun, x, memory, direction, update, maxiter=most, norm=norm, gtol=gtol, ftol=ftol,
               maxls=maxls)  # fmt: skip
    return out, None


_METHODS: dict[str, Callable] = {
    "bfgs": _bfgs,
    "l-bfgs": _lbfgs,
    "l-bfgs-experimental-do-not-rely-on-this": _lbfgs,
}


def dense_solve(operator: Callable, y: Any) -> Any:
    """The solution of a linear equation of vectors, by its matrix."""
    matrix = vmap(operator, out_axes=1)(fnp.eye(y.shape[0], dtype=y.dtype))
    return fnp.linalg.solve(matrix, y)


def minimize(
    fun: Callable,
    x0: Any,
    args: tuple = (),
    *,
    method: str,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """A minimum of fun(x, *args), a real number, from x0 on; x is an array or a pytree.

    method: "BFGS" with options maxiter, norm, gtol, line_search_maxiter, or "L-BFGS" (also under
    JAX's name) with maxiter, norm, gtol, ftol, maxcor, maxfun, maxgrad, maxls. tol is the default
    of gtol. x and fun have derivatives in args and in what `fun` captures, by the implicit function
    theorem, which holds where it converged and the Hessian is regular; none in x0.

    >>> from funcgrad.scipy import optimize
    >>> def valley(x, a):
    ...     return (x[0] - a) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2
    >>> found = optimize.minimize(valley, fnp.zeros(2), (1.5,), method="BFGS")
    >>> found.x.round(2)
    Array([1.5 , 2.25], dtype=float32)
    >>> f = lambda a: optimize.minimize(valley, fnp.zeros(2), (a,), method="BFGS").x[1]
    >>> fg.grad(f)(1.5).round(1)
    Array(3., dtype=float32)
    """
    check_callable("fun", fun)
    if not isinstance(args, tuple):
        raise ArgumentError(f"minimize: args argument to minimize must be a tuple, got {args!r}")
    if not isinstance(method, str) or method.lower() not in _METHODS:
        raise ArgumentError(f"minimize: Method {method} not recognized; it is BFGS or L-BFGS")
    options = dict(options or {})
    if tol is not None:
        options.setdefault("gtol", tol)
    x0 = tree.map(lambda x: promote_inexact("minimize", fnp.asarray(x))[0], x0)
    start, back = ravel(x0)
    if not start.shape[0]:
        raise ShapeError("minimize: x0 has no elements")

    def value(v: Any) -> Any:
        out = fun(back(v), *args)
        if fnp.shape(out):
            raise ShapeError(f"minimize: fun must give a number, got shape {fnp.shape(out)}")
        return out

    solver = _METHODS[method.lower()]
    known = solver.__code__.co_varnames[2 : solver.__code__.co_argcount]
    if wrong := sorted(set(options) - set(known)):
        raise ArgumentError(
            f"minimize: options must be of {', '.join(known)}, got {', '.join(wrong)}"
        )

    def solve(_: Callable, guess: Any) -> Any:
        out, inverse = solver(value, guess, **options)
        return out.x, (out.g, inverse, out.k, out.nfev, out.status)

    x, (g, inverse, k, nfev, status) = custom_root(
        grad(value), start, solve, dense_solve, has_aux=True
    )
    jac = tree.map(lambda x: fnp.conj(x) if dtypes.is_complex(x.dtype) else x, back(g))
    status = lax.stop_gradient(status)
    return OptimizeResults(back(x), status == 0, status, value(x), jac, inverse, nfev, nfev, k)
