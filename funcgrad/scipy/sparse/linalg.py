"""Iterative solutions of linear equations, for matrices and for functions of pytrees.

They are differentiated implicitly: the derivative of a solution is another solution, with the
transposed operator in reverse mode, so nothing of the iterations is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.core.array import Array
from funcgrad.core.trace import Tracer
from funcgrad.core.types import Tree
from funcgrad.errors import ArgumentError, ShapeError, TreeError, within
from funcgrad.flatten_util import ravel_pytree
from funcgrad.numpy._util import as_array, convert
from funcgrad.ops.arguments import integer
from funcgrad.transforms.control.while_loop import fori_loop, while_loop
from funcgrad.transforms.derivatives.custom import closure_convert, custom_jvp
from funcgrad.transforms.derivatives.implicit import custom_linear_solve
from funcgrad.transforms.derivatives.linear import jvp, linear_transpose

__all__ = ["bicgstab", "cg", "gmres", "lsqr"]

# ---- operators and vectors


def _operator(name: str, f: Any, square: bool = True) -> Callable:
    """A matrix, or what has @, as a function."""
    if isinstance(f, Array | Tracer | np.ndarray) or hasattr(f, "__matmul__"):
        shape = tuple(getattr(f, "shape", (1, 1)))
        if len(shape) != 2 or (square and shape[0] != shape[1]):
            need = "a square matrix" if square else "a matrix"
            raise ShapeError(f"{name}: linear operator must be {need}, but has shape: {shape}")
        f = as_array(name, f, "A") if isinstance(f, np.ndarray) else f
        return lambda x: f @ x
    if callable(f):
        return f
    raise ArgumentError(f"{name}: linear operator must be either a function or ndarray: {f!r:.100}")


def _identity(x: Tree) -> Tree:
    return x


def _dot(x: Tree, y: Tree) -> Any:
    """The sum of conj(x) y over all leaves."""
    parts = tree.leaves(tree.map(lambda a, b: fnp.sum(fnp.conj(a) * b), x, y))
    return sum(parts[1:], parts[0])


def _square(x: Tree) -> Any:
    return fnp.real(_dot(x, x))


def _plus(x: Tree, scale: Any, y: Tree) -> Tree:
    """x + scale y, in the dtypes of x."""
    return _as(x, tree.map(lambda a, b: a + scale * b, x, y))


def _as(like: Tree, x: Tree) -> Tree:
    """x in the dtypes of `like`, weak where they are."""
    return tree.map(lambda a, b: convert(b, a.dtype, a.weak_type), like, x)


def _minus(x: Tree, y: Tree) -> Tree:
    return tree.map(lambda a, b: a - b, x, y)


def _arguments(
    name: str, A: Any, b: Tree, x0: Tree, maxiter: Any, M: Any, tol: Any, atol: Any
) -> tuple[Callable, Tree, Tree, int, Callable]:
    as_array(name, tol, "tol"), as_array(name, atol, "atol")
    b = tree.map(lambda leaf: as_array(name, leaf, "b"), b)
    if not tree.leaves(b):
        raise TreeError(f"{name}: b holds no array, got {b!r:.80}")
    if x0 is None:
        x0 = _as(b, tree.map(fnp.zeros_like, b))
    x0 = tree.map(lambda leaf: as_array(name, leaf, "x0"), x0)
    if tree.structure(x0) != tree.structure(b):
        raise TreeError(
            f"{name}: x0 and b must have matching tree structure: {tree.structure(x0)} vs "
            f"{tree.structure(b)}"
        )
    shapes = [[leaf.shape for leaf in tree.leaves(t)] for t in (x0, b)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"{name}: arrays in x0 and b must have matching shapes: {shapes[0]} vs {shapes[1]}"
        )
    size = sum(leaf.size for leaf in tree.leaves(b))
    most = 10 * size if maxiter is None else integer("maxiter", maxiter)
    return (
        _operator(name, A),
        b,
        x0,
        most,
        _identity if M is None else _operator(name, M),
    )


def _solved(
    iterate: Callable, name: str, A: Any, b: Tree, x0: Tree, tol: Any, atol: Any, maxiter: Any,
    M: Any, hermitian: bool = False,
) -> tuple[Tree, None]:  # fmt: skip
    A, b, x0, most, M = _arguments(name, A, b, x0, maxiter, M, tol, atol)
    solve = partial(iterate, x0=x0, tol=tol, atol=atol, most=most, M=M)
    real = not any(dtypes.is_complex(leaf.dtype) for leaf in tree.leaves(b))
    x = custom_linear_solve(A, b, solve, transpose_solve=solve, symmetric=hermitian and real)
    return x, None


def _bound(b: Tree, tol: Any, atol: Any) -> Any:
    """The square of the residual's norm at which iterations end."""
    return fnp.maximum(tol**2 * _square(b), atol**2)


# ---- conjugate gradients


def cg(
    A: Any, b: Tree, x0: Tree = None, *, tol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Any = None,
) -> tuple[Tree, None]:  # fmt: skip
    """(x, None) with A x = b, by conjugate gradients: for A Hermitian and positive definite.

    A: a matrix or a linear function of pytrees like b. Iterations end where the residual's norm is
    at most max(tol |b|, atol), or after `maxiter`. x0: where to start. M: an approximate inverse
    of A (preconditioner), as A is given.

    >>> A = fnp.array([[4.0, 1.0], [1.0, 3.0]])
    >>> fnp.round(cg(A, fnp.array([1.0, 2.0]))[0], 3)
    Array([0.091, 0.636], dtype=float32)
    """
    return _solved(_cg, "cg", A, b, x0, tol, atol, maxiter, M, hermitian=True)


def _cg(A: Callable, b: Tree, *, x0: Tree, tol: Any, atol: Any, most: int, M: Callable) -> Tree:
    bound = _bound(b, tol, atol)
    plain = M is _identity

    def go_on(state: Any) -> Any:
        _, r, gamma, _, k = state
        size = gamma if plain else _square(r)
        return (size > bound) & (k < most)

    def step(state: Any) -> Any:
        x, r, gamma, p, k = state
        moved = A(p)
        alpha = gamma / fnp.real(_dot(p, moved))
        x, r = _plus(x, alpha, p), _plus(r, -alpha, moved)
        z = M(r)
        found = fnp.real(_dot(r, z))
        return x, r, found.astype(gamma.dtype), _plus(z, found / gamma, p), k + 1

    r = _minus(b, A(x0))
    z = M(r)
    return while_loop(go_on, step, (x0, r, fnp.real(_dot(r, z)), z, 0))[0]


# ---- biconjugate gradients, stabilized


def bicgstab(
    A: Any, b: Tree, x0: Tree = None, *, tol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Any = None,
) -> tuple[Tree, None]:  # fmt: skip
    """(x, None) with A x = b, by stabilized biconjugate gradients: for any A; see `cg`.

    >>> A = fnp.array([[4.0, 1.0], [0.0, 3.0]])
    >>> fnp.round(bicgstab(A, fnp.array([5.0, 3.0]))[0], 3)
    Array([1., 1.], dtype=float32)
    """
    return _solved(_bicgstab, "bicgstab", A, b, x0, tol, atol, maxiter, M)


def _bicgstab(
    A: Callable, b: Tree, *, x0: Tree, tol: Any, atol: Any, most: int, M: Callable
) -> Tree:
    """H. van der Vorst, "Bi-CGSTAB", 1992. Where it breaks down, k becomes negative."""
    bound = _bound(b, tol, atol)

    def go_on(state: Any) -> Any:
        _, r, _, _, _, _, _, k = state
        return (_square(r) > bound) & (k < most) & (k >= 0)

    def step(state: Any) -> Any:
        x, r, alpha, omega, rho, p, q, k = state
        found = _dot(shadow, r)
        beta = found / rho * alpha / omega
        p = _plus(r, beta, _plus(p, -omega, q))
        near = M(p)
        q = A(near)
        alpha = found / _dot(shadow, q)
        s = _plus(r, -alpha, q)
        early = _square(s) < bound
        close = M(s)
        t = A(close)
        omega = _dot(t, s) / _dot(t, t)
        half = _plus(x, alpha, near)
        x = tree.map(partial(fnp.where, early), half, _plus(half, omega, close))
        r = tree.map(partial(fnp.where, early), s, _plus(s, -omega, t))
        broken = ~early & ((omega == 0) | (alpha == 0))
        k = fnp.where(broken | (found == 0), -11, k + 1)
        like = [v.astype(rho.dtype) for v in (alpha, omega, found)]
        return (x, r, *like, p, q, k)

    r = shadow = _minus(b, A(x0))
    one = fnp.ones((), _dot(b, b).dtype)
    return while_loop(go_on, step, (x0, r, one, one, one, r, r, fnp.asarray(0)))[0]


# ---- generalized minimal residuals


def gmres(
    A: Any, b: Tree, x0: Tree = None, *, tol: float = 1e-5, atol: float = 0.0, restart: int = 20,
    maxiter: int | None = None, M: Any = None, solve_method: str = "batched",
) -> tuple[Tree, Any]:  # fmt: skip
    """(x, info) with A x = b, by minimal residuals over Krylov spaces: for any A; see `cg`.

    restart: the size of a space, after which the next starts at what was found; maxiter: how many
    of them. solve_method ("batched" or "incremental") has no effect. info: 0, or -1 where x is
    NaN.

    >>> A = fnp.array([[4.0, 1.0], [0.0, 3.0]])
    >>> fnp.round(gmres(A, fnp.array([5.0, 3.0]))[0], 3)
    Array([1., 1.], dtype=float32)
    """
    A, b, x0, most, M = _arguments("gmres", A, b, x0, maxiter, M, tol, atol)
    if solve_method not in ("batched", "incremental"):
        raise ValueError(
            within(
                f"gmres: invalid solve_method {solve_method}, must be either 'incremental' or "
                "'batched'"
            )
        )
    size = min(integer("restart", restart), sum(leaf.size for leaf in tree.leaves(b)))
    if restart < 1:
        raise ValueError(within(f"gmres: restart must be at least 1, got {restart}"))
    solve = partial(_gmres, x0=x0, tol=tol, atol=atol, size=size, most=most, M=M)
    x = custom_linear_solve(A, b, solve, transpose_solve=solve)
    return x, fnp.where(fnp.isnan(_square(x)), -1, 0)


def _gmres(
    A: Callable, b: Tree, *, x0: Tree, tol: Any, atol: Any, size: int, most: int, M: Callable
) -> Tree:
    """Y. Saad, M. Schultz, "GMRES", 1986, on vectors of all leaves."""
    start, unravel = ravel_pytree(x0)
    if not size:
        return x0

    def matvec(x: Any) -> Any:
        return ravel_pytree(M(A(unravel(x))))[0].astype(start.dtype)

    right = ravel_pytree(M(b))[0].astype(start.dtype)
    norms = fnp.sqrt(_square(b)), fnp.linalg.norm(right)
    share = fnp.maximum(tol, atol / fnp.where(norms[0] == 0, 1, norms[0]))
    bound = norms[1] * fnp.minimum(1.0, share)

    def expand(k: Any, basis: Any) -> Any:
        """The next vector of a Krylov space, orthogonal to the others, and what it was made of."""
        vectors, products = basis
        w = matvec(vectors[k])
        first = fnp.conj(vectors) @ w
        w = w - first @ vectors
        again = fnp.conj(vectors) @ w
        w = w - again @ vectors
        length = fnp.linalg.norm(w)
        enough = length > fnp.linalg.norm(first) * float(dtypes.finfo(start.dtype).eps)
        column = (first + again).at[k + 1].set(fnp.where(enough, length, 0).astype(start.dtype))
        unit = fnp.where(enough, w / fnp.where(enough, length, 1), 0)
        return vectors.at[k + 1].set(unit), products.at[k].set(column)

    def cycle(state: Any) -> Any:
        x, r, length, k = state
        vectors = fnp.zeros((size + 1, start.size), start.dtype)
        vectors = vectors.at[0].set(r / length)
        products = fnp.zeros((size, size + 1), start.dtype)
        vectors, products = fori_loop(0, size, expand, (vectors, products))
        target = fnp.zeros(size + 1, start.dtype).at[0].set(length.astype(start.dtype))
        x = x + fnp.linalg.lstsq(products.T, target)[0] @ vectors[:-1]
        r = right - matvec(x)
        return x, r, fnp.linalg.norm(r), k + 1

    r = right - matvec(start)
    state = (start, r, fnp.linalg.norm(r), 0)

    def go_on(state: Any) -> Any:
        """Until the residual is small, or NaN after a cycle (so that x is)."""
        _, _, length, k = state
        return ~(length <= bound) & (k < most) & ((k == 0) | ~fnp.isnan(length))

    x = while_loop(go_on, cycle, state)[0]
    return _as(x0, unravel(x))


# ---- least squares


def lsqr(
    A: Any, b: Any, damp: float = 0.0, atol: float = 1e-6, btol: float = 1e-6,
    conlim: float = 1e8, iter_lim: int | None = None, x0: Any = None,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """(x, istop, itn, r1norm) where x minimizes |A x - b|² + damp² |x - x0|².

    A: a matrix, or a linear function with a vector `x0` given. istop: 1 where A x = b is solved to
    `atol` and `btol`, 2 where the least squares are, 3 where the condition exceeds `conlim`, 7
    after `iter_lim` iterations (2 n by default). itn: their number; r1norm: |b - A x|. Derivatives
    are those of full column rank, or of damp > 0.

    >>> A = fnp.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> fnp.round(lsqr(A, fnp.array([1.0, 3.0, 5.0]))[0], 3)
    Array([1., 2.], dtype=float32)
    """
    b = as_array("lsqr", b, "b")
    if x0 is None and not hasattr(A, "shape"):
        raise ArgumentError("lsqr: where A is a function, x0 must be given")
    start = as_array("lsqr", np.zeros(A.shape[1:]) if x0 is None else x0, "x0")
    if start.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"lsqr: need vectors, got b {b.aval} and x0 {start.aval}")
    dtype = dtypes.to_inexact(b.dtype, np.dtype(np.float32))
    if hasattr(A, "dtype"):
        dtype = fnp.result_type(A.dtype, dtype)
    start, n = start.astype(dtype), start.shape[0]
    forward, captured = closure_convert(_operator("lsqr", A, square=False), start)
    most = 2 * n if iter_lim is None else integer("iter_lim", iter_lim)
    b = b.astype(dtype)
    given = {"damp": damp, "atol": atol, "btol": btol, "conlim": conlim}
    for name, value in given.items():
        if not isinstance(value, int | float | np.number):
            raise ArgumentError(f"lsqr: {name} must be a number, got {value!r:.80}")
    bounds = (float(damp), float(atol), float(btol), 1 / float(conlim) if conlim else 0.0, most)
    x, *rest = _lsqr(forward, bounds, tuple(captured), b - forward(start, *captured), start)
    return (start + x, *rest)


def _transposed(forward: Callable, captured: Any, x: Any) -> Callable:
    back = linear_transpose(lambda v: forward(v, *captured), x)
    return lambda y: fnp.conj(back(fnp.conj(y))[0])


@partial(custom_jvp, nondiff_argnums=(0, 1))
def _lsqr(forward: Callable, bounds: tuple, captured: Any, b: Any, like: Any) -> Any:
    """C. Paige, M. Saunders, "LSQR", 1982: from Golub and Kahan's bidiagonalization."""
    damp, atol, btol, ctol, most = bounds
    back = _transposed(forward, captured, like)
    size = fnp.linalg.norm

    def unit(v: Any) -> tuple[Any, Any]:
        length = size(v)
        return v / fnp.where(length == 0, 1, length), length

    u, beta = unit(b)
    v, alpha = unit(back(u))
    total = beta

    def step(state: Any) -> Any:
        x, w, u, v, alpha, rhobar, phibar, squares, lengths, rest, k, _ = state
        u, beta = unit(forward(v, *captured) - alpha * u)
        squares = squares + alpha**2 + beta**2 + damp**2
        v, alpha = unit(back(u) - beta * v)
        # One rotation takes `damp` away, another what is below the diagonal.
        damped = fnp.hypot(rhobar, damp)
        psi, phibar = damp / damped * phibar, rhobar / damped * phibar
        rest = rest + psi**2
        rho = fnp.hypot(damped, beta)
        c, s = damped / rho, beta / rho
        theta, rhobar = s * alpha, -c * alpha
        phi, phibar = c * phibar, s * phibar
        lengths = lengths + size(w / rho) ** 2
        x, w = x + phi / rho * w, v - theta / rho * w
        norm, gone = fnp.sqrt(squares), fnp.sqrt(phibar**2 + rest)
        done = fnp.where(gone <= btol * total + atol * norm * size(x), 1, 0)
        least = alpha * fnp.abs(c * phibar) <= atol * norm * gone
        done = fnp.where((done == 0) & least, 2, done)
        ill = norm * fnp.sqrt(lengths) * ctol >= 1
        done = fnp.where((done == 0) & ill, 3, done)
        k = k + 1
        done = fnp.where((done == 0) & (k >= most), 7, done)
        return x, w, u, v, alpha, rhobar, phibar, squares, lengths, rest, k, done

    none = fnp.zeros((), alpha.dtype)
    begun = fnp.where(alpha * beta == 0, 1, 0)
    state = (
        fnp.zeros_like(like), v, u, v, alpha, alpha, beta, none, none, none, fnp.asarray(0), begun
    )  # fmt: skip
    x, *_, k, done = while_loop(lambda s: s[-1] == 0, step, state)
    return x, done, k, size(b - forward(x, *captured))


@_lsqr.defjvp
def _lsqr_jvp(forward: Callable, bounds: tuple, primals: Any, tangents: Any) -> Any:
    """(AᴴA + damp²) dx = Aᴴ (db - dA x) + dAᴴ (b - A x), solved by conjugate gradients."""
    captured, b, like = primals
    d_captured, db, _ = tangents
    x, done, k, length = _lsqr(forward, bounds, captured, b, like)
    back = partial(_transposed, forward, x=like)
    rest, d_rest = jvp(lambda held, y: y - forward(x, *held), (captured, b), (d_captured, db))
    _, right = jvp(lambda held, y: back(held)(y), (captured, rest), (d_captured, d_rest))

    def normal(v: Any) -> Any:
        return back(captured)(forward(v, *captured)) + bounds[0] ** 2 * v

    dx, _ = cg(normal, right, tol=float(dtypes.finfo(x.dtype).eps))
    safe = fnp.where(length == 0, 1, length)
    moved = d_rest - forward(dx, *captured)
    change = fnp.where(length == 0, 0, fnp.real(fnp.sum(fnp.conj(rest) * moved)) / safe)
    zeros = (np.zeros(v.shape, dtypes.float0) for v in (done, k))
    return (x, done, k, length), (dx, *zeros, change.astype(length.dtype))
