"""Small decompositions as loops, against the host's: batches, pivots, NaN, singular matrices."""

import itertools

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from tests.backends.checks import check, hosts

SHAPES = [(3, 3), (1, 1), (5, 4, 4), (33, 8, 8), (2, 3, 6, 4), (20, 4, 7), (17, 32, 32)]
FLOATS = ["float32", "float64"]


def compiled(f, *args):
    """The results of f without a step on the host, and of f as it is."""
    found = fg.jit(f).lower(*args).compile()
    assert "host" not in found.as_text("loops")
    pairs = zip(fg.tree.leaves(found(*args)), fg.tree.leaves(f(*args)), strict=True)
    return [(np.asarray(a), np.asarray(b)) for a, b in pairs]


def agree(f, *args, tol=1e-3):
    for got, wanted in compiled(f, *args):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=tol, atol=tol)


def definite(rng, shape, dtype):
    x = rng.standard_normal(shape)
    return (x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_lu(shape, dtype, rng):
    x = rng.standard_normal(shape).astype(dtype)
    (factors, wanted), *places = compiled(lax.linalg.lu, x)
    np.testing.assert_allclose(factors, wanted, rtol=2e-3, atol=2e-3)
    for got, order in places:
        np.testing.assert_array_equal(got, order)


@pytest.mark.parametrize("values", [[0, 1, -1, 2, -2], [0, 1, -1, np.nan, np.inf, -0.0]])
def test_lu_of_singular_matrices_and_ties(values, rng):
    x = rng.choice(np.float32(values), (64, 4, 4))
    with np.errstate(all="ignore"):
        agree(lax.linalg.lu, x, tol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[-1] == s[-2]])
@pytest.mark.parametrize("dtype", FLOATS)
def test_cholesky(shape, dtype, rng):
    agree(lax.linalg.cholesky, definite(rng, shape, dtype))


def test_cholesky_of_what_is_not_definite_is_nan(rng):
    x = definite(rng, (40, 4, 4), np.float32)
    x[::3] -= 100 * np.eye(4, dtype=np.float32)
    x[1, 2, 2] = np.nan
    ((got, _),) = compiled(lax.linalg.cholesky, x)
    bad = np.isnan(got).any((-1, -2))
    np.testing.assert_array_equal(bad, [i % 3 == 0 or i == 1 for i in range(40)])
    lower = np.tril(np.ones((4, 4), bool))
    assert np.isnan(got[bad][:, lower]).all()
    assert (got[:, ~lower] == 0).all()


@pytest.mark.parametrize("shape", [(3, 3), (18, 5, 5)])
def test_cholesky_reads_the_lower_triangle(shape, rng):
    x = definite(rng, shape, np.float32)
    x[..., 0, 1] = np.nan
    agree(lambda x: lax.linalg.cholesky(x, symmetrize_input=False), x)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=4)))
@pytest.mark.parametrize("shape", [(4, 4), (18, 6, 6)])
def test_triangular_solve(flags, shape, rng):
    names = ("left_side", "lower", "transpose_a", "unit_diagonal")
    params = dict(zip(names, flags, strict=True))
    n = shape[-1]
    a = np.float32(rng.standard_normal(shape) * 0.3 + 2 * np.eye(n))
    b = np.float32(rng.standard_normal((*shape[:-2], n, 3)))
    b = b if params["left_side"] else np.ascontiguousarray(np.swapaxes(b, -1, -2))
    agree(lambda a, b: lax.linalg.triangular_solve(a, b, **params), a, b)


def test_a_zero_on_the_diagonal_gives_infinity():
    a = np.float32([[0, 0], [1, 1]])
    agree(lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), a, a + 1)


@pytest.mark.parametrize("f", [fg.numpy.linalg.det, fg.numpy.linalg.inv])
def test_gradients(f, rng):
    x = definite(rng, (3, 4, 4), np.float64)
    gradient = fg.grad(lambda x: f(x).sum())
    np.testing.assert_allclose(fg.jit(gradient)(x), gradient(x), rtol=1e-9)


@pytest.mark.parametrize("shape", [(3, 3), (17, 2, 2), (2, 9, 5)])
def test_the_loops_mean_the_same(shape, rng):
    x = rng.standard_normal(shape)
    assert not hosts(check(lambda x: list(lax.linalg.lu(x)), x))
    n = min(shape[-2:])
    a = x[..., :n, :n] + 2 * np.eye(n)
    assert not hosts(check(lambda a: [lax.linalg.triangular_solve(a, a, lower=True)], a))
    a = a @ np.swapaxes(a, -1, -2)
    assert not hosts(check(lambda a: [lax.linalg.cholesky(a)], a))


@pytest.mark.parametrize("shape", [(33, 33), (2, 40, 8)])
def test_large_matrices_are_the_hosts(shape):
    x = np.ones(shape, np.float32)
    assert "host lu" in fg.jit(lax.linalg.lu).lower(x).as_text("loops")


@pytest.mark.parametrize("shape", [(0, 3, 3), (0, 0), (3, 0, 0)])
def test_no_elements(shape):
    x = np.zeros(shape, np.float32)
    for got, wanted in zip(fg.jit(lax.linalg.lu)(x), lax.linalg.lu(x), strict=True):
        np.testing.assert_array_equal(got, wanted)
