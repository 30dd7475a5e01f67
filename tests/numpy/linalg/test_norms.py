"""Norms and condition numbers against NumPy; derivative zero at zero."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import ShapeError
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.derivatives.linear import jvp
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
VECTOR = [None, 0, 1, 2, 3, 2.5, 0.5, -1, -2, np.inf, -np.inf]
MATRIX = [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf]


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("order", VECTOR)
def test_vector_norms(order, dtype, rng):
    x = rng.standard_normal((3, 4)).astype(dtype)
    if dtype is complex:
        x = x + 1j * rng.standard_normal((3, 4))
    for axis, keepdims in ((0, False), (-1, True)):
        options = {"axis": axis, "keepdims": keepdims}
        same_as_numpy(
            lambda x, o=options: fnp.linalg.norm(x, order, **o),
            lambda x, o=options: np.linalg.norm(x, order, **o),
            x,
            **TIGHT,
        )
    same(fnp.linalg.norm(x[0], order), np.linalg.norm(x[0], order), **TIGHT)
    given = 2 if order is None else order
    for axis in (None, 0, (0, 1)):
        same(
            fnp.linalg.vector_norm(x, ord=given, axis=axis),
            np.linalg.vector_norm(x, ord=given, axis=axis),
            **TIGHT,
        )
    if order != 0:
        check_grad(lambda x: fnp.linalg.norm(x, order, axis=1), x)


@pytest.mark.parametrize("order", MATRIX)
@pytest.mark.parametrize("shape", [(2, 0), (0, 2), (0, 0), (3, 2, 0)])
def test_norms_of_matrices_without_elements(order, shape):
    """0 where that is the greatest or the sum of none; there is no least of none."""
    x, axis = np.ones(shape), (-2, -1)
    f = lambda x: fnp.linalg.norm(x, order, axis)
    rows, columns = shape[-2:]
    least = {-1: not columns, -np.inf: not rows, -2: True}.get(order, False)
    for norm in (f, jit(f)):
        if least:
            with pytest.raises((ValueError, IndexError)):
                norm(x)
        else:
            same(norm(x), np.zeros(shape[:-2]))


@pytest.mark.parametrize("order", MATRIX)
def test_matrix_norms(order, rng):
    x = rng.standard_normal((2, 3, 4))
    for axis, keepdims in (((0, 2), False), ((-1, 1), True)):
        options = {"axis": axis, "keepdims": keepdims}
        same_as_numpy(
            lambda x, o=options: fnp.linalg.norm(x, order, **o),
            lambda x, o=options: np.linalg.norm(x, order, **o),
            x,
            **TIGHT,
        )
    same(fnp.linalg.norm(x[0], order), np.linalg.norm(x[0], order), **TIGHT)
    if order is not None:
        same(fnp.linalg.matrix_norm(x, ord=order), np.linalg.matrix_norm(x, ord=order), **TIGHT)
    check_grad(lambda x: fnp.linalg.norm(x, order), x[0])
    same_batched(lambda x: fnp.linalg.norm(x, order), x)


def test_norm_of_all_elements(rng):
    x = rng.standard_normal((2, 3, 4))
    same(fnp.linalg.norm(x), np.linalg.norm(x), **TIGHT)
    same(fnp.linalg.norm(x, keepdims=True), np.linalg.norm(x, keepdims=True), **TIGHT)
    same(fnp.linalg.norm(np.float64(-3)), 3.0)
    assert fnp.linalg.norm(np.int32([3, 4])).dtype == np.float32
    assert fnp.linalg.norm(np.float16([3, 4])).dtype == np.float16


@pytest.mark.parametrize("order", [o for o in VECTOR if o != 0])
def test_the_derivative_at_zero_is_zero(order):
    f = lambda x: fnp.linalg.norm(x, order)
    for dtype in (np.float32, np.complex64):
        g = np.asarray(grad(f)(np.zeros(3, dtype)))
        assert (g == 0).all()
    assert float(jvp(f, (np.zeros(3),), (np.ones(3),))[1]) == 0
    assert np.isfinite(grad(f)(np.array([0.0, 2.0, 1.0]))).all()
    hessian = jit(lambda x: grad(lambda y: fnp.sum(grad(f)(y)))(x), backend="numpy")
    assert np.isfinite(hessian(np.zeros(3))).all()


@pytest.mark.parametrize("p", [None, 1, -1, 2, -2, np.inf, -np.inf, "fro"])
def test_cond(p, rng):
    x = rng.standard_normal((2, 3, 3))
    same_as_numpy(lambda x: fnp.linalg.cond(x, p), lambda x: np.linalg.cond(x, p), x, **TIGHT)
    check_grad(lambda x: fnp.linalg.cond(x, p), x[0])


def test_cond_of_special_matrices(rng):
    x = rng.standard_normal((2, 3))
    same(fnp.linalg.cond(x), np.linalg.cond(x), **TIGHT)
    assert fnp.linalg.cond(np.zeros((2, 2))) == np.inf
    assert np.isnan(fnp.linalg.cond(np.full((2, 2), np.nan), 1))


X = np.ones((2, 3, 4))
ERRORS = [
    (lambda: fnp.linalg.norm(X, 2), ShapeError, "must be a vector or a matrix"),
    (lambda: fnp.linalg.norm(X, axis=(0, 1, 2)), ShapeError, "one or two axes"),
    (lambda: fnp.linalg.norm(X[0], 3), ValueError, "order of a matrix norm"),
    (lambda: fnp.linalg.norm(X, "fro", axis=0), ValueError, "order of vector norms"),
    (lambda: fnp.linalg.matrix_norm(X[0, 0]), ShapeError, "need matrices"),
    (lambda: fnp.linalg.cond(X[0], 1), ShapeError, "cond: need square"),
    (lambda: fnp.linalg.norm([3.0, 4.0]), TypeError, "norm: x is a list"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_names_that_the_array_api_has_here(rng):
    a, b = rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3, 3))
    for name, args in (
        ("cross", (a, b)), ("outer", (a[0, 0], b[0, 0])), ("trace", (a,)), ("diagonal", (a,)),
        ("matmul", (a, b)), ("tensordot", (a, b.T)), ("vecdot", (a, b)), ("matrix_transpose", (a,)),
    ):  # fmt: skip
        same(getattr(fnp.linalg, name)(*args), getattr(np.linalg, name)(*args), **TIGHT)
    same(fnp.linalg.trace(a, offset=1), np.linalg.trace(a, offset=1))
    with pytest.raises(ShapeError, match="cross: need 3 components"):
        fnp.linalg.cross(np.ones(2), np.ones(2))
    with pytest.raises(ShapeError, match="outer: need vectors"):
        fnp.linalg.outer(a, b)
