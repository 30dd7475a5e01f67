"""Arithmetic of sparse arrays against NumPy's of dense ones."""

import operator

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import sparse
from funcgrad.errors import ArgumentError, ShapeError, SparseEfficiencyError
from funcgrad.test_util import check_grads
from tests.sparse.samples import assert_same, awkward, dense, matrices


@pytest.fixture(params=["bcoo", "bcsr", "awkward", "padded"])
def pair(request, rng):
    """A dense matrix and the sparse one, in each format."""
    x = dense(rng)
    return x, matrices(x, rng)[request.param]


@pytest.mark.parametrize("op", [operator.mul, operator.truediv])
def test_with_dense_operands(op, pair, rng):
    x, m = pair
    for shape in ((), (6,), (5, 1), (1, 6), (5, 6)):
        y = fnp.array(rng.uniform(1, 2, shape), "float32")
        got = op(m, y)
        assert type(got) is type(m)
        assert_same(got, op(x, np.asarray(y)))
        if op is operator.mul:
            assert_same(y * m, x * np.asarray(y))
    assert_same(op(m, 3), op(x, 3))
    for shape in ((2, 5, 6), (4,)):
        with pytest.raises(ShapeError, match="must broadcast to"):
            op(m, fnp.ones(shape))


def test_sums(pair, rng):
    x, m = pair
    y = fnp.array(rng.standard_normal((5, 6)), "float32")
    assert_same(m + y, x + y)
    assert_same(y - m, y - x)
    assert_same(fg.jit(operator.sub)(m, y), x - y)
    assert_same(m + m, x + x)
    assert_same(m - m, x - x)
    other = sparse.BCOO.fromdense(dense(rng))
    for op in (operator.add, operator.sub, operator.mul):
        assert isinstance(op(m, other), sparse.BCOO)
        assert_same(op(m, other), op(x, np.asarray(other.todense())))
        assert_same(fg.jit(op)(other, m), op(np.asarray(other.todense()), x))
    with pytest.raises(ShapeError, match="must have one shape"):
        m + fnp.ones(6)
    with pytest.raises(ShapeError, match="must have one shape"):
        m + sparse.eye(2)


def test_products_of_sparse_arrays_broadcast(rng):
    x, row = dense(rng), dense(rng, (1, 6))
    got = sparse.BCOO.fromdense(x) * sparse.BCOO.fromdense(row)
    assert_same(got, x * row)
    assert_same(sparse.BCOO.fromdense(row[0]) * awkward(x, rng), x * row)
    assert_same(sparse.empty((2, 3)) * sparse.empty((2, 3)), np.zeros((2, 3)))
    with pytest.raises(ShapeError, match="don't broadcast"):
        sparse.eye(2) * sparse.eye(3)
    with pytest.raises(ShapeError, match="as many batch and dense axes"):
        sparse.BCOO.fromdense(x, n_batch=1) * sparse.BCOO.fromdense(x)


def test_batches_and_dense_axes(rng):
    x = dense(rng, (2, 3, 4))
    for n_batch, n_dense in ((1, 0), (2, 0), (0, 1), (1, 1)):
        m = sparse.BCOO.fromdense(x, n_batch=n_batch, n_dense=n_dense)
        for shape in ((4,), (3, 1), (2, 1, 1), (2, 3, 4)):
            y = rng.standard_normal(shape).astype("f")
            assert_same(m * fnp.array(y), x * y)
        assert_same(m + fnp.array(x), x + x)
        assert_same(m * m.sort_indices(), x * x)
        assert_same(m + m * 2, 3 * x)


def test_functions_of_elements(pair):
    x, m = pair
    assert_same(-m, -x)
    assert_same(+m, x)
    assert_same(abs(m), abs(x))
    assert_same(m**2, x**2)
    assert_same(m**1, x)
    assert m.astype("float64").dtype == np.float64
    assert_same((m * 3).astype("int32"), (x * 3).astype("int32"))


def test_what_would_be_dense_is_refused(pair):
    x, m = pair
    for wrong, words in (
        (lambda: m + 1, "add: the result of .* would be dense; add to .data"),
        (lambda: 1 / m, "divide: the result of .* would be dense"),
        (lambda: m**0, "power with the exponent 0"),
        (lambda: m**-1, "power with the exponent -1"),
        (lambda: m == 0, "== of a sparse array"),
        (lambda: m > fnp.ones((5, 6)), "> of a sparse array"),
    ):
        with pytest.raises(SparseEfficiencyError, match=words):
            wrong()
    with pytest.raises(ArgumentError, match="need a BCOO"):
        sparse.bcoo_multiply_dense(fnp.array(x), m)


def test_derivatives(pair, rng):
    _, m = pair
    (data, *places), static = m.tree_flatten()
    of = lambda data: type(m).tree_unflatten(static, (data, *places))
    data = fnp.nan_to_num(data).astype("float64")
    y = fnp.array(rng.standard_normal((5, 6)))
    check_grads(lambda d, y: (of(d) * y).sum() ** 2, (data, y), order=2)
    check_grads(lambda d, y: fnp.sin(of(d) + y), (data, y), order=2)
    check_grads(lambda d: fnp.sin((of(d) * of(d)).todense()), (data,), order=2)
