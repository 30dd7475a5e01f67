"""Complex systems as real ones of twice the size, and what is made of LU decompositions."""

import functools
import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.rewrites.complex_matrices import lu_parts_p
from funcgrad.core.aval import ShapedArray
from tests.backends.checks import hosts, program


def numbers(rng, *shape):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=5)))
@pytest.mark.parametrize(("lead", "n", "columns"), [((), 1, 1), ((), 40, 3), ((2, 3), 5, 4)])
def test_triangular_solve(lead, n, columns, flags, rng):
    names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
    params = dict(zip(names, flags, strict=True))
    a = numbers(rng, *lead, n, n) / n + 2 * np.eye(n, dtype=np.complex64)
    unread = np.full((n, n), np.nan, np.complex64)
    a = np.tril(a) + np.triu(unread, 1) if params["lower"] else np.triu(a) + np.tril(unread, -1)
    b = numbers(rng, *lead, n, columns)
    b = b if params["left_side"] else b.swapaxes(-1, -2)

    def solve(a, b):
        return lax.linalg.triangular_solve(a, b, **params)

    assert "on_complex" not in hosts(program(lambda a, b: [solve(a, b)], a, b)[2])
    got, wanted = np.asarray(fg.jit(solve)(a, b)), np.asarray(solve(a, b))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("n", [4, 40])
def test_solutions_inverses_and_determinants(n, rng):
    a, b = numbers(rng, n, n), numbers(rng, n)
    x = np.asarray(fg.jit(fnp.linalg.solve)(a, b))
    np.testing.assert_allclose(a @ x, b, atol=1e-3)
    np.testing.assert_allclose(np.asarray(fg.jit(fnp.linalg.inv)(a)) @ a, np.eye(n), atol=1e-3)
    got, wanted = fg.jit(fnp.linalg.slogdet)(a), np.linalg.slogdet(a)
    np.testing.assert_allclose(np.asarray(got.sign), wanted.sign, rtol=1e-3)
    np.testing.assert_allclose(np.asarray(got.logabsdet), wanted.logabsdet, rtol=1e-3)


@pytest.mark.parametrize("scale", [2.0**-130, 2.0**-70, 2.0**70, 2.0**120])
def test_matrices_far_from_one(scale, rng):
    """Whose squares, or reciprocals, are no numbers, in each way to solve with them."""
    a = (numbers(rng, 4, 4) + 4 * np.eye(4)).astype(np.complex64)
    b = numbers(rng, 4, 2)
    small, right = (x * np.float32(scale) for x in (a, b))

    def solve(a, b):
        return fnp.linalg.solve(a, b)

    def triangle(a, b):
        return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)

    for f in (solve, triangle):
        wanted = np.asarray(f(a, b))
        for run in (f, fg.jit(f), lambda a, b, f=f: fg.jvp(f, (a, b), (0 * a, 0 * b))[0]):
            np.testing.assert_allclose(np.asarray(run(small, right)), wanted, rtol=0, atol=1e-3)


def test_a_diagonal_of_numbers_far_from_each_other():
    """Quotients of the matrix by its diagonal overflow; those of solutions don't."""
    a = np.array([[1, 1j], [0, 1e-20]], np.complex64) * np.complex64(1e-20j)
    x = np.array([[0.5], [2j]], np.complex64) * np.float32(1e10)
    solve = functools.partial(lax.linalg.triangular_solve, left_side=True)
    for f in (solve, fg.jit(solve)):
        np.testing.assert_allclose(np.asarray(f(a, a @ x)), x, rtol=1e-4)


def test_singular_matrices_have_no_finite_solution():
    a = np.array([[1, 1j], [1j, -1]], np.complex64)
    assert not np.isfinite(np.asarray(fg.jit(fnp.linalg.inv)(a))).any()


def test_gradient(rng):
    a = numbers(rng, 6, 6)
    grad = fg.grad(lambda a: fnp.linalg.slogdet(a)[1])
    np.testing.assert_allclose(np.asarray(fg.jit(grad)(a)), np.linalg.inv(a).T, atol=1e-4)


def test_parts_on_numpy(rng):
    a = numbers(rng, 7, 5)
    re, im, pivots, order = lu_parts_p.impl(np, a.real, a.imag)
    wanted = lax.linalg.lu(a)
    np.testing.assert_array_equal(re + 1j * im, np.asarray(wanted[0]))
    np.testing.assert_array_equal(pivots, np.asarray(wanted[1]))
    np.testing.assert_array_equal(order, np.asarray(wanted[2]))
    part = ShapedArray((7, 5), np.dtype(np.float32))
    assert [x.shape for x in lu_parts_p.abstract(part, part)] == [(7, 5), (7, 5), (5,), (7,)]
