"""Complex systems as real ones of twice the size, and what is made of LU decompositions."""

import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.complex_matrices import lu_parts_p
from funcgrad.core.aval import ShapedArray
from tests.backends.checks import hosts, program


def numbers(rng, *shape):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


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
