"""Reductions that are cut in two steps, against NumPy."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.ops.base import sum_p
from tests.backends.checks import check, integers


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1 << 17,), (1 << 12, 40), (3, 1 << 15), (7, 9001)])
def test_large_reductions_are_split(shape):
    x = integers(*shape, dtype="float32")
    for axes in [(0,), tuple(range(len(shape))), (len(shape) - 1,)]:
        check(lambda x, axes=axes: [sum_p.bind(x, axes=axes)], x, exact=True)


TALL = {
    "vector and matrix": lambda v, a: v @ a,
    "row and matrix": lambda v, a: v[None] @ a,
    "matrix, turned, and vector": lambda v, a: a.T @ v,
    "matrix, turned, and column": lambda v, a: a.T @ v[:, None],
    "sum": lambda v, a: a.sum(0),
    "maximum": lambda v, a: a.max(0),
    "sum of both axes' halves": lambda v, a: (a * v[:, None]).reshape(-1, 2, 1024).sum((0, 1)),
}


@pytest.mark.parametrize("name", TALL)
@pytest.mark.parametrize("rows", [4096, 4098])
def test_rows_of_tall_matrices_are_reduced_in_parts(name, rows, rng):
    v = rng.standard_normal(rows)
    a = rng.standard_normal((rows, 1024))
    got = fg.jit(TALL[name])(fg.numpy.asarray(v), fg.numpy.asarray(a))
    wanted = TALL[name](v, a)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
