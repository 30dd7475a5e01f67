"""Singular values and eigenvalues by generated code that calls LAPACK."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.host_steps import host_steps
from funcgrad.backends.llvm.runtime import pool
from funcgrad.ops.linalg import lapack
from tests.backends.checks import program

WAYS = [{}, {"full_matrices": False}, {"compute_uv": False}]
ways = pytest.mark.parametrize("options", WAYS)
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


def run(x, options):
    """The result of a compiled decomposition of which nothing runs in Python."""

    def fun(x):
        out = fnp.linalg.svd(x, **options)
        return list(out) if options.get("compute_uv", True) else [out]

    assert not host_steps(program(fun, x)[2].steps)
    return [np.asarray(v) for v in fg.jit(fun)(x)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@ways
@pytest.mark.parametrize(
    "shape", [(1, 1), (8, 8), (40, 3), (3, 40), (70, 50), (5, 7, 4), (2, 3, 4, 4), (2, 150, 130)]
)
def test_singular_values(shape, options, dtype, rng):
    pool.set_num_threads(1 + shape[-1] % 3)
    x = rng.standard_normal(shape).astype(dtype)
    found = run(x, options)
    s = found[0 if len(found) == 1 else 1]
    exact = np.linalg.svd(x.astype(float), compute_uv=False)
    tolerance = TOLERANCE[dtype] * exact.max()
    np.testing.assert_allclose(s, exact, atol=tolerance, rtol=0)
    if len(found) > 1:
        u, s, vh = found
        k = s.shape[-1]
        again = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
        np.testing.assert_allclose(again, x, atol=tolerance, rtol=0)
        for q in (np.swapaxes(u, -1, -2) @ u, vh @ np.swapaxes(vh, -1, -2)):
            np.testing.assert_allclose(q, np.broadcast_to(np.eye(q.shape[-1]), q.shape),
                                       atol=20 * TOLERANCE[dtype])  # fmt: skip
    # Evaluated, it is the same, signs of vectors as well.
    eager = fnp.linalg.svd(fnp.asarray(x), **options)
    for got, wanted in zip(found, eager if len(found) > 1 else [eager], strict=True):
        np.testing.assert_allclose(got, wanted, atol=100 * tolerance)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (40, 40), (2, 3, 5, 5), (2, 130, 130)])
def test_eigenvalues(shape, dtype, rng):
    x = rng.standard_normal(shape).astype(dtype)
    assert not host_steps(program(lambda x: [fnp.linalg.eigvals(x)], x)[2].steps)
    found = np.asarray(fg.jit(fnp.linalg.eigvals)(x))
    assert found.dtype == np.result_type(dtype, np.complex64)
    np.testing.assert_allclose(found, fnp.linalg.eigvals(fnp.asarray(x)),
                               atol=1e3 * TOLERANCE[dtype])  # fmt: skip
    if len(shape) > 2:
        x[1, ..., 0, 0] = np.inf
        got = np.asarray(fg.jit(fnp.linalg.eigvals)(x))
        assert np.isnan(got[1]).all()
        np.testing.assert_array_equal(got[0], found[0])


@ways
def test_what_is_not_finite_stays_in_its_matrix(options, rng):
    x = rng.standard_normal((5, 6, 4))
    clean = run(x, options)
    x[1, 2, 3], x[3, 5, 0] = np.nan, np.inf
    for got, before in zip(run(x, options), clean, strict=True):
        assert np.isnan(got[[1, 3]]).all()
        np.testing.assert_array_equal(got[[0, 2, 4]], before[[0, 2, 4]])


def test_without_lapack_the_host_runs_it(monkeypatch, rng):
    monkeypatch.setattr(lapack, "address", lambda name: None)
    x = rng.standard_normal((3, 9, 5))
    assert host_steps(program(lambda x: [fnp.linalg.svd(x, compute_uv=False)], x)[2].steps)
