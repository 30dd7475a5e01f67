"""Decompositions: they reproduce the matrix, have NumPy's values, and derivatives."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import DTypeError, ShapeError
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def sample(rng, shape, dtype):
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if dtype is complex else x


def hermitian(rng, n, dtype, *lead):
    a = sample(rng, (*lead, n, n), dtype)
    return a + np.conj(np.swapaxes(a, -1, -2))


def adjoint(x):
    return np.conj(np.swapaxes(np.asarray(x), -1, -2))


@pytest.mark.parametrize("dtype", [float, complex])
def test_cholesky(dtype, rng):
    a = hermitian(rng, 3, dtype, 2)
    a = a @ adjoint(a) + np.eye(3)
    for upper in (False, True):
        same_as_numpy(
            lambda a, u=upper: fnp.linalg.cholesky(a, upper=u),
            lambda a, u=upper: np.linalg.cholesky(a, upper=u),
            a,
            **TIGHT,
        )
        one = np.triu(a[0]) if upper else np.tril(a[0])
        same(
            fnp.linalg.cholesky(one, upper=upper, symmetrize_input=False),
            np.linalg.cholesky(a[0], upper=upper),
            **TIGHT,
        )
    check_grad(fnp.linalg.cholesky, a[0])
    assert np.isnan(fnp.linalg.cholesky(-np.eye(2))).any()


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 3)])
def test_qr(dtype, shape, rng):
    a = sample(rng, shape, dtype)
    for mode in ("reduced", "complete"):
        q, r = fnp.linalg.qr(a, mode)
        same(np.asarray(q) @ np.asarray(r), a, **TIGHT)
        assert [q.shape, r.shape] == [x.shape for x in np.linalg.qr(a, mode)]
    same(fnp.linalg.qr(a, "r"), np.asarray(fnp.linalg.qr(a).R), **TIGHT)
    if shape[-2] >= shape[-1]:
        check_grad(lambda a: tuple(fnp.linalg.qr(a)), a)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 3)])
def test_svd(dtype, shape, rng):
    a = sample(rng, shape, dtype)
    for full in (False, True):
        u, s, vh = fnp.linalg.svd(a, full_matrices=full)
        k = s.shape[-1]
        product = (np.asarray(u)[..., :k] * np.asarray(s)[..., None, :]) @ np.asarray(vh)[
            ..., :k, :
        ]
        same(product, a, **TIGHT)
        assert u.shape == np.linalg.svd(a, full).U.shape
    same_as_numpy(fnp.linalg.svdvals, np.linalg.svdvals, a, **TIGHT)
    same(fnp.linalg.svd(a, compute_uv=False), np.linalg.svdvals(a), **TIGHT)
    check_grad(fnp.linalg.svdvals, a)


@pytest.mark.parametrize("dtype", [float, complex])
def test_svd_of_hermitian_matrices(dtype, rng):
    a = hermitian(rng, 4, dtype, 2)
    u, s, vh = fnp.linalg.svd(a, hermitian=True)
    same((np.asarray(u) * np.asarray(s)[..., None, :]) @ np.asarray(vh), a, **TIGHT)
    same(s, np.linalg.svdvals(a), **TIGHT)
    same(fnp.linalg.svd(a, compute_uv=False, hermitian=True), np.linalg.svdvals(a), **TIGHT)


@pytest.mark.parametrize("dtype", [float, complex])
def test_eigh(dtype, rng):
    a = hermitian(rng, 4, dtype, 2)
    w, v = fnp.linalg.eigh(a)
    same(w, np.linalg.eigvalsh(a), **TIGHT)
    same(a @ np.asarray(v), np.asarray(v) * np.asarray(w)[..., None, :], **TIGHT)
    for uplo, triangle in (("L", np.tril), ("U", np.triu)):
        one = triangle(a[0])
        same(fnp.linalg.eigvalsh(one, uplo, symmetrize_input=False), w[0], **TIGHT)
        same(fnp.linalg.eigh(one, uplo, False).eigenvalues, w[0], **TIGHT)
    check_grad(fnp.linalg.eigvalsh, a[0])
    same_batched(fnp.linalg.eigvalsh, a)


@pytest.mark.parametrize("dtype", [float, complex])
def test_eig(dtype, rng):
    a = sample(rng, (2, 4, 4), dtype)
    w, v = fnp.linalg.eig(a)
    same(a @ np.asarray(v), np.asarray(v) * np.asarray(w)[..., None, :], **TIGHT)
    same(np.sort_complex(fnp.linalg.eigvals(a)), np.sort_complex(np.linalg.eigvals(a)), **TIGHT)
    check_grad(lambda a: fnp.sum(fnp.linalg.eigvals(a) ** 3), a[0])


def test_results_have_names_as_in_numpy():
    a = np.eye(2)
    for name in ("eig", "eigh", "qr", "svd", "slogdet"):
        ours, theirs = getattr(fnp.linalg, name)(a), getattr(np.linalg, name)(a)
        assert type(ours).__name__ == type(theirs).__name__
        assert ours._fields == theirs._fields


X = np.ones((2, 3))
ERRORS = [
    (lambda: fnp.linalg.cholesky(X), ShapeError, "cholesky: need square"),
    (lambda: fnp.linalg.qr(X, "raw"), ValueError, "mode must be"),
    (lambda: fnp.linalg.svd(X.astype(np.float16)), DTypeError, "svd.*: need float32"),
    (lambda: fnp.linalg.svd(X, hermitian=True), ShapeError, "svd: need square"),
    (lambda: fnp.linalg.eigh(np.eye(2), "M"), ValueError, "UPLO must be"),
    (lambda: fnp.linalg.svdvals([1.0]), TypeError, "svdvals: x is a list"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("name", ["svd", "svdvals", "eig", "eigvals", "eigh", "eigvalsh", "pinv"])
def test_matrices_with_nan_have_nan_and_the_others_of_a_stack_what_they_have(rng, name, dtype):
    x = rng.normal(size=(3, 4, 4)).astype(dtype)
    x[1, 2, 2] = np.nan
    f = getattr(fnp.linalg, name)
    for run in (f, fg.jit(f)):
        for got, want in zip(fg.tree.leaves(run(x)), fg.tree.leaves(run(x[::2])), strict=True):
            assert np.isnan(np.asarray(got)[1]).all()
            np.testing.assert_array_equal(np.asarray(got)[::2], np.asarray(want))
        assert all(np.isnan(np.asarray(out)).all() for out in fg.tree.leaves(run(x[1])))


@pytest.mark.parametrize("lower", [True, False])
def test_eigh_reads_one_triangle_only(rng, lower):
    x = rng.normal(size=(4, 4))
    read = np.tril(x) if lower else np.triu(x)
    hidden = read + np.where(read == 0, np.nan, 0)
    eigh = functools.partial(fg.lax.linalg.eigh, lower=lower, symmetrize_input=False)
    for f in (eigh, fg.jit(eigh)):
        for got, want in zip(f(hidden), f(read), strict=True):
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
