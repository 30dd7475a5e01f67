"""funcgrad.scipy.linalg.special_matrices against SciPy."""

import numpy as np
import pytest
import scipy.linalg

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError
from funcgrad.scipy import linalg
from tests.ops.rules import check_derivatives

BY_SIZE = [("hilbert", {}), ("invhilbert", {}), ("helmert", {}), ("helmert", {"full": True}),
           ("dft", {}), ("dft", {"scale": "n"}), ("dft", {"scale": "sqrtn"}),
           *((name, {"kind": kind}) for name in ("pascal", "invpascal")
             for kind in ("symmetric", "lower", "upper"))]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), BY_SIZE)
def test_matrices_of_a_size(name, options):
    for n in (1, 2, 3, 6):
        ours = getattr(linalg, name)(n, **options)
        theirs = getattr(scipy.linalg, name)(n, **options)
        assert ours.dtype == (np.complex64 if name == "dft" else np.float32)
        size = np.abs(theirs).max(initial=1)
        np.testing.assert_allclose(np.asarray(ours) / size, theirs.reshape(ours.shape) / size,
                                   rtol=2e-6, atol=1e-6)  # fmt: skip


def test_sizes_and_dtypes():
    np.testing.assert_array_equal(linalg.hadamard(8), scipy.linalg.hadamard(8))
    assert linalg.hadamard(2).dtype == np.int32
    assert linalg.hadamard(2, "float64").dtype == np.float64
    assert linalg.dft(3, dtype="complex128").dtype == np.complex128
    with fg.default_dtype("float64"):
        assert linalg.hilbert(2).dtype == np.float64
    for name in ("hilbert", "pascal", "dft"):
        assert getattr(linalg, name)(0).shape == (0, 0)


@pytest.mark.parametrize("kind", ["int32", "float32", "complex64"])
@pytest.mark.parametrize(
    "name", ["circulant", "fiedler", "toeplitz", "hankel", "companion", "fiedler_companion"]
)
def test_matrices_of_vectors(name, kind, rng):
    fun, oracle = getattr(linalg, name), getattr(scipy.linalg, name)
    for n in (2, 3, 4, 5, 6):
        x = (rng.normal(size=n) * 5 + 30 + (1j if kind[0] == "c" else 0)).astype(kind)
        np.testing.assert_allclose(fun(x), oracle(x), rtol=1e-5, atol=1e-6)
        stack = np.stack([x, x[::-1]])
        np.testing.assert_allclose(fun(stack)[1], oracle(x[::-1]), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(fg.jit(fun)(x), fun(x), rtol=1e-6)


@pytest.mark.parametrize("name", ["circulant", "toeplitz", "companion", "fiedler_companion"])
def test_derivatives(name, rng):
    check_derivatives(getattr(linalg, name), [rng.normal(size=4) + 3], rng)


@pytest.mark.parametrize("name", ["toeplitz", "hankel"])
def test_columns_and_rows(name, rng):
    fun, oracle = getattr(linalg, name), getattr(scipy.linalg, name)
    for m, n in ((1, 1), (3, 5), (4, 2)):
        c, r = rng.normal(size=m), rng.normal(size=n)
        np.testing.assert_allclose(fun(c, r), oracle(c, r))
    assert fun(np.ones((2, 1, 3)), np.ones((4, 0))).shape == (2, 4, 3, 0)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolution_matrix(mode, rng):
    for m in (1, 3, 4):
        a = rng.normal(size=m)
        for n in (1, 2, 5):
            ours = linalg.convolution_matrix(a, n, mode)
            np.testing.assert_allclose(ours, scipy.linalg.convolution_matrix(a, n, mode))
    assert linalg.convolution_matrix(np.ones((2, 3)), 2).shape == (2, 4, 2)


def test_leslie_and_block_diag(rng):
    f, s = rng.normal(size=(2, 4)), rng.normal(size=(2, 3))
    np.testing.assert_allclose(linalg.leslie(f, s)[1], scipy.linalg.leslie(f[1], s[1]))
    parts = [rng.normal(size=(2, 3)), rng.normal(size=2), np.float64(3), rng.normal(size=(1, 1))]
    np.testing.assert_allclose(linalg.block_diag(*parts), scipy.linalg.block_diag(*parts))
    assert linalg.block_diag().shape == (1, 0)
    assert linalg.block_diag(fnp.ones((2, 2)), 1).dtype == np.float32
    check_derivatives(linalg.block_diag, parts[:2], rng)
    for n in (1, 2):
        assert linalg.fiedler_companion(np.ones((3, n))).shape == (3, n - 1, n - 1)


def test_errors():
    ones = np.ones
    for fun, args, text in (
        (linalg.hadamard, (3,), "positive power of 2"),
        (linalg.helmert, (0,), "n must be a positive integer"),
        (linalg.dft, (4, "bad"), "scale must be"),
        (linalg.pascal, (3, "bad"), "Expected kind to be one of"),
        (linalg.hilbert, (-1,), "n must not be negative"),
        (linalg.leslie, (ones(1), ones(0)), "length of f along the last axis"),
        (linalg.leslie, (ones(3), ones(1)), "Incorrect lengths for f and s"),
        (linalg.companion, (ones(1),), "length of `a` along the last axis"),
        (linalg.fiedler_companion, (ones(0),), "nonzero"),
        (linalg.convolution_matrix, (ones(2), 0), "n must be a positive integer"),
        (linalg.convolution_matrix, (ones(2), 3, "bad"), "mode must be one of"),
        (linalg.convolution_matrix, (ones((2, 0)), 3), "must be at least 1"),
        (linalg.convolution_matrix, (1.0, 3), "must be at least 1-dimensional"),
        (linalg.hankel, (1.0,), "must be at least 1-dimensional"),
        (linalg.block_diag, (ones((1, 1, 1)),), "at most 2 dimensions"),
    ):
        with pytest.raises(ValueError, match=text):
            fun(*args)
    with pytest.raises(ArgumentError, match="dtype must be"):
        linalg.dft(4, dtype="float32")
    with pytest.raises(TypeError, match="toeplitz: c is a list"):
        linalg.toeplitz([1, 2])
