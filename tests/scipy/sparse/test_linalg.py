"""Iterative solvers: solutions solve, derivatives are those of direct ones, trees and functions."""

import numpy as np
import pytest
import scipy.sparse.linalg

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, ShapeError, TreeError
from funcgrad.scipy.sparse.linalg import bicgstab, cg, gmres, lsqr
from tests.scipy.linalg.test_condensed import WIDE, draw, near
from tests.scipy.linalg.test_factorizations import positive

SOLVERS = pytest.mark.parametrize("solver", [cg, bicgstab, gmres])


def system(rng, solver, kind, n=6):
    p = positive(rng, n, kind)
    return (p if solver is cg else p + draw(rng, (n, n), kind)), draw(rng, (n,), kind)


@WIDE
@SOLVERS
def test_solutions(solver, kind, rng):
    a, b = system(rng, solver, kind)
    expected = np.linalg.solve(a, b)
    inverse = np.linalg.inv(a + 0.01 * np.eye(6))
    for options in ({}, {"x0": draw(rng, (6,), kind)}, {"M": inverse},
                    {"M": lambda x: inverse @ x, "x0": b}):  # fmt: skip
        if solver is not cg or "M" not in options:
            near(solver(a, b, tol=1e-13, **options)[0], expected)
    near(solver(lambda x: a @ x, b, tol=1e-13)[0], expected)
    near(fg.jit(lambda a, b: solver(a, b, tol=1e-13)[0])(a, b), expected)
    stack = np.stack([b, 2 * b])
    near(fg.vmap(lambda b: solver(a, b, tol=1e-13)[0])(stack), np.linalg.solve(a, stack.T).T)


def test_cg_with_a_preconditioner(rng):
    a, b = system(rng, cg, "float64")
    near(cg(a, b, tol=1e-13, M=np.diag(1 / np.diag(a)))[0], np.linalg.solve(a, b))


@WIDE
@SOLVERS
def test_derivatives_are_those_of_direct_solutions(solver, kind, rng):
    a, b = (fnp.asarray(x) for x in system(rng, solver, kind, 4))

    def loss(solve):
        return lambda a, b: fnp.real(fnp.sum(solve(a, b) ** 3))

    ours, theirs = loss(lambda a, b: solver(a, b, tol=1e-14)[0]), loss(fnp.linalg.solve)
    for x, y in zip(fg.grad(ours, (0, 1))(a, b), fg.grad(theirs, (0, 1))(a, b), strict=True):
        near(x, y)
    if kind == "float64":
        near(fg.hessian(ours, 1)(a, b), fg.hessian(theirs, 1)(a, b))
        near(fg.jvp(ours, (a, b), (a, b))[1], fg.jvp(theirs, (a, b), (a, b))[1])


@SOLVERS
def test_trees_and_weak_numbers(solver):
    A = lambda x: {"a": x["a"] + 0.5 * x["b"], "b": 0.5 * x["a"] + x["b"]}
    x, _ = solver(A, {"a": 1.0, "b": -4.0})
    assert {k: round(float(v), 4) for k, v in x.items()} == {"a": 4.0, "b": -6.0}
    assert solver(lambda x: x, 1.0)[0].weak_type
    x, _ = solver(lambda x: 2 * x, fnp.arange(9.0).reshape(3, 3))
    near(x, np.arange(9.0).reshape(3, 3) / 2, "float32")
    near(solver(np.eye(2), np.zeros(2))[0], np.zeros(2))


def test_gmres_restarts_and_tells_failure(rng):
    a, b = system(rng, gmres, "float64", 8)
    x, info = gmres(a, b, tol=1e-12, restart=3, maxiter=200)
    near(x, np.linalg.solve(a, b))
    assert int(info) == 0
    assert int(gmres(np.full((2, 2), np.nan), np.ones(2))[1]) == -1


@WIDE
@pytest.mark.parametrize("damp", [0.0, 0.7])
def test_lsqr(kind, damp, rng):
    a, b = draw(rng, (9, 4), kind), draw(rng, (9,), kind)
    x, stop, _, length = lsqr(a, b, damp=damp, atol=1e-13, btol=1e-13)
    theirs = scipy.sparse.linalg.lsqr(a, b, damp=damp, atol=1e-13, btol=1e-13)
    near(x, theirs[0])
    assert int(stop) in (1, 2)
    near(length, np.linalg.norm(b - a @ theirs[0]))
    near(lsqr(lambda v: a @ v, b, damp=damp, atol=1e-13, btol=1e-13,
              x0=np.zeros(4, kind))[0], x)  # fmt: skip
    ours = lambda a, b: lsqr(a, b, damp=damp, atol=1e-14, btol=1e-14)[0]
    direct = lambda a, b: fnp.linalg.solve(
        fnp.conj(a).T @ a + damp**2 * fnp.eye(4, dtype=a.dtype), fnp.conj(a).T @ b
    )
    a, b = fnp.asarray(a), fnp.asarray(b)
    loss = lambda f: lambda a, b: fnp.real(fnp.sum(f(a, b) ** 3))
    pairs = zip(fg.grad(loss(ours), (0, 1))(a, b), fg.grad(loss(direct), (0, 1))(a, b), strict=True)
    for x, y in pairs:
        near(x, y)


def test_lsqr_of_consistent_and_wide_systems(rng):
    a = draw(rng, (3, 5), "float64")
    near(a @ np.asarray(lsqr(a, np.ones(3), atol=1e-13, btol=1e-13)[0]), np.ones(3))
    near(lsqr(a, np.zeros(3))[0], np.zeros(5))
    assert int(lsqr(a, np.ones(3), atol=0, btol=0, conlim=0, iter_lim=1)[1]) == 7


def test_errors():
    b = np.zeros(2, np.float32)
    with pytest.raises(TreeError, match="x0 and b must have matching tree structure"):
        cg(lambda x: x, {"x": b}, {"y": b})
    with pytest.raises(ShapeError, match="x0 and b must have matching shape"):
        cg(lambda x: x, b, b[:, None])
    for solver in (cg, gmres, bicgstab):
        with pytest.raises(ShapeError, match="must be a square matrix"):
            solver(np.zeros((3, 2)), b)
        with pytest.raises(TypeError, match="must be either a function or ndarray"):
            solver([[1]], b)
    with pytest.raises(ValueError, match="invalid solve_method"):
        gmres(np.eye(2), b, solve_method="x")
    with pytest.raises(ArgumentError, match="x0 must be given"):
        lsqr(lambda x: x, b)
