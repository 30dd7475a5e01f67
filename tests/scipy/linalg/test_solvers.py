"""funcgrad.scipy.linalg.solvers: solutions solve, derivatives to second order, batches."""

import numpy as np
import pytest
import scipy.linalg

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.scipy import linalg
from funcgrad.transforms.jit.jit import jit
from tests.ops.rules import check_derivatives, check_vmap
from tests.scipy.linalg.test_condensed import KINDS, WIDE, draw, near
from tests.scipy.linalg.test_factorizations import positive

BATCHES = [((4, 4), (4,)), ((4, 4), (4, 2)), ((3, 4, 4), (4, 2)), ((3, 4, 4), (3, 4)),
           ((4, 4), (3, 4, 2)), ((3, 4, 4), (3, 4, 2))]  # fmt: skip


def times(a, x, b):
    """a x, of the vectors or matrices that b holds."""
    if b.ndim == 1 or (a.ndim == b.ndim + 1 and b.shape[-1] == a.shape[-1]):
        return (a @ np.asarray(x)[..., None])[..., 0]
    return a @ np.asarray(x)


@WIDE
@pytest.mark.parametrize(("a_shape", "b_shape"), BATCHES)
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_triangular_and_lu_solves(kind, a_shape, b_shape, trans, rng):
    a, b = draw(rng, a_shape, kind) + 3 * np.eye(4), draw(rng, b_shape, kind)
    side = {0: lambda a: a, 1: lambda a: np.swapaxes(a, -1, -2),
            2: lambda a: np.conj(np.swapaxes(a, -1, -2))}[trans]  # fmt: skip
    target = np.broadcast_to(b, linalg.lu_solve(linalg.lu_factor(a), b, trans).shape)
    near(times(side(a), linalg.lu_solve(linalg.lu_factor(a), b, trans), b), target)
    for lower in (True, False):
        part = np.tril(a) if lower else np.triu(a)
        x = linalg.solve_triangular(a, b, trans=trans, lower=lower)
        near(times(side(part), x, b), target)


def diagonals(a, low, up):
    """The diagonals of matrices as SciPy holds them."""
    n = a.shape[-1]
    ab = np.full((*a.shape[:-2], low + up + 1, n), 7, a.dtype)  # corners aren't read
    for i in range(n):
        for j in range(max(0, i - low), min(n, i + up + 1)):
            ab[..., up + i - j, j] = a[..., i, j]
    return ab


@WIDE
@pytest.mark.parametrize("bands", [(0, 0), (1, 1), (2, 0), (1, 3)])
def test_solve_banded(kind, bands, rng):
    low, up = bands
    a = np.triu(np.tril(draw(rng, (3, 5, 5), kind), up), -low)
    ab, b = diagonals(a, low, up), draw(rng, (5, 2), kind)
    near(linalg.solve_banded(bands, ab[0], b), scipy.linalg.solve_banded(bands, ab[0], b))
    near(jit(lambda ab: linalg.solve_banded(bands, ab, b))(ab), np.linalg.solve(a, b))
    near(linalg.solve_banded(bands, ab[0], b[:, 0]), np.linalg.solve(a[0], b[:, 0]))
    if kind == "float64":
        check_derivatives(lambda *args: linalg.solve_banded(bands, *args), (ab[0], b), rng)


@WIDE
@pytest.mark.parametrize(("a_shape", "b_shape"), BATCHES)
@pytest.mark.parametrize("lower", [True, False])
def test_positive_solves(kind, a_shape, b_shape, lower, rng):
    a = np.broadcast_to(positive(rng, 4, kind), a_shape)
    b = draw(rng, b_shape, kind)
    for x in (
        linalg.cho_solve(linalg.cho_factor(a, lower), b),
        linalg.solve(np.tril(a) if lower else np.triu(a), b, lower=lower, assume_a="pos"),
    ):
        near(times(a, x, b), np.broadcast_to(b, x.shape))


@WIDE
def test_solves_derivatives(kind, rng):
    a, b = positive(rng, 3, kind), draw(rng, (3, 2), kind)
    for fun in (
        lambda a, b: linalg.solve(a, b, assume_a="pos"),
        lambda a, b: linalg.solve(a, b),
        lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b, trans=1),
        lambda a, b: linalg.cho_solve((a, True), b),
        lambda a, b: linalg.solve_triangular(a, b, unit_diagonal=True, trans="T"),
    ):
        check_derivatives(fun, [a, b], rng, tol=1e-4)
        check_vmap(fun, [a, b], rng)


@KINDS
def test_inv_and_det(kind, rng):
    a = draw(rng, (3, 3), kind) + 3 * np.eye(3, dtype=kind)
    near(linalg.inv(a), scipy.linalg.inv(a), kind)
    near(linalg.det(a), scipy.linalg.det(a), kind)


@KINDS
@pytest.mark.parametrize("shapes", [
    ((4, 4), (3, 3), (4, 3)), ((2, 4, 4), (3, 3), (4, 3)), ((1, 1), (1, 1), (2, 1, 1)),
])  # fmt: skip
def test_solve_sylvester(kind, shapes, rng):
    a, b, c = (draw(rng, shape, kind) for shape in shapes)
    for method in ("schur", "eigen"):
        x = linalg.solve_sylvester(a, b, c, method=method)
        assert x.dtype == kind
        x = np.asarray(x)
        near(a @ x + x @ b, np.broadcast_to(c, x.shape), kind)
    if kind in ("float64", "complex128") and len(shapes[0]) == 2:
        check_derivatives(linalg.solve_sylvester, [a, b, c], rng, tol=1e-4, order=1)
        part = lambda a, b, c: linalg.solve_sylvester(a[:2, :2], b[:2, :2], c[:2, :2])
        check_derivatives(part, [a, b, c], rng, tol=1e-4)


def test_singular_sylvester_is_nan():
    assert np.isnan(np.asarray(linalg.solve_sylvester(np.eye(2), -np.eye(2), np.eye(2)))).all()


def test_errors():
    a, b = np.eye(3), np.ones(2)
    for fun in (
        linalg.solve,
        linalg.solve_triangular,
        lambda a, b: linalg.solve(a, b, assume_a="pos"),
        lambda a, b: linalg.cho_solve((a, True), b),
        lambda a, b: linalg.lu_solve((a, np.int32([0, 1, 2])), b),
    ):
        with pytest.raises(ShapeError, match="as many rows as a"):
            fun(a, b)
    with pytest.raises(ValueError, match="Invalid 'trans' value 3"):
        linalg.solve_triangular(a, a, trans=3)
    with pytest.raises(ValueError, match="must be 0, 1, or 2"):
        linalg.lu_solve((a, np.int32([0, 1, 2])), a, trans=3)
    with pytest.raises(ValueError, match="assume_a"):
        linalg.solve(a, a, assume_a="nice")
    with pytest.raises(ShapeError, match="Incompatible shapes for Sylvester"):
        linalg.solve_sylvester(a, a, np.ones((2, 3)))
    with pytest.raises(ValueError, match="Unrecognized method"):
        linalg.solve_sylvester(a, a, a, method="x")
    with pytest.raises(ShapeError, match="ab must have l \\+ u \\+ 1 = 2 rows"):
        linalg.solve_banded((0, 1), a, b)
    with pytest.raises(ArgumentError, match="l_and_u must be 0 or more"):
        linalg.solve_banded((-1, 3), a, b)
    with pytest.raises(ArgumentError, match="l_and_u must be a pair"):
        linalg.solve_banded(1, a, b)
    assert linalg.solve(fnp.array([[2]]), fnp.array([4])).dtype == np.float32
