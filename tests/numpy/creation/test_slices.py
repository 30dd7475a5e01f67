"""mgrid, ogrid, r_ and c_ against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import ShapeError
from tests.numpy.compare import same

V, M = np.array([1.0, 2.0]), np.ones((2, 2))


@pytest.mark.parametrize("name", ["mgrid", "ogrid"])
def test_grids(name):
    ours, theirs = getattr(fnp, name), getattr(np, name)
    for key in (np.s_[0:3], np.s_[0:3, 1:4], np.s_[:2, 0:1:3j, 5:0:-2], np.s_[-1:1:5j]):
        a, b = ours[key], theirs[key]
        same(list(a) if isinstance(b, tuple) else a, list(b) if isinstance(b, tuple) else b,
             dtype=False)  # fmt: skip
    assert fnp.mgrid[0:3].dtype == np.int32
    assert fnp.mgrid[()].shape == np.mgrid[()].shape
    assert fnp.ogrid[()] == np.ogrid[()]


KEYS = [
    np.s_[0:3, 7, V],
    np.s_[V],
    np.s_["-1", M, M],
    np.s_["0,2", V, V],
    np.s_["1,2,0", V, V],
    np.s_["0,3,1", V, V],
    np.s_["-1,2", 0:2, V],
    np.s_[0:1:5j],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_joins(key):
    same(fnp.r_[key], np.r_[key], dtype=False)


def test_columns():
    same(fnp.c_[V, M], np.c_[V, M])
    same(fnp.c_[0:2, V], np.c_[0:2, V])
    same(fnp.r_[[1, 2], 3], np.r_[[1, 2], 3], dtype=False)
    assert fnp.s_[1:, ...] == (slice(1, None), ...)
    assert repr(fnp.r_) == "r_"


def test_errors():
    with pytest.raises(ValueError, match="r_: 'c' must be 'axis'"):
        fnp.r_["c", V]
    with pytest.raises(ShapeError, match="nothing to join"):
        fnp.c_["0"]
