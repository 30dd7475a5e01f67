"""Condensed forms, against LAPACK's through SciPy."""

import numpy as np
import pytest
import scipy.linalg

from funcgrad.errors import DifferentiationError, DTypeError, ShapeError
from funcgrad.ops.linalg.condensed import hessenberg, tridiagonal
from tests.ops.linalg.test_decompositions import close, draw, dtypes_
from tests.ops.rules import check_vmap, jvp

LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}


@dtypes_
@pytest.mark.parametrize("n", [1, 2, 5])
def test_hessenberg(dtype, n, rng):
    a = draw(rng, (n, n), dtype)
    gehrd = getattr(scipy.linalg.lapack, f"{LETTERS[np.dtype(dtype).char]}gehrd")
    expected = gehrd(a)[:2]
    for ours, theirs in zip(hessenberg(a), expected, strict=True):
        assert ours.dtype == dtype
        close(np.asarray(ours), theirs, dtype)
    check_vmap(hessenberg, [a.astype(np.result_type(dtype, np.float64))], rng)


@dtypes_
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("lower", [True, False])
def test_tridiagonal(dtype, n, lower, rng):
    a = draw(rng, (n, n), dtype)
    letter = LETTERS[np.dtype(dtype).char]
    name = f"{letter}{'he' if np.iscomplexobj(a) else 'sy'}trd"
    *expected, _ = getattr(scipy.linalg.lapack, name)(a, lower=lower)
    for ours, theirs in zip(tridiagonal(a, lower=lower), expected, strict=True):
        close(np.asarray(ours), theirs, dtype)


def test_edges():
    empty = np.zeros((2, 0, 0), np.float32)
    assert [x.shape for x in tridiagonal(empty)] == [(2, 0, 0), (2, 0), (2, 0), (2, 0)]
    assert [x.shape for x in hessenberg(empty)] == [(2, 0, 0), (2, 0)]
    nan = np.full((3, 3), np.nan)
    assert all(np.isnan(np.asarray(x)).all() for x in (*hessenberg(nan), *tridiagonal(nan)))
    for fun in (hessenberg, tridiagonal):
        with pytest.raises(ShapeError, match=f"{fun.__name__}: need square"):
            fun(np.zeros((2, 3)))
        with pytest.raises(DTypeError, match=f"{fun.__name__}: need float32"):
            fun(np.zeros((2, 2), int))
        with pytest.raises(DifferentiationError, match=fun.__name__):
            jvp(fun, [np.eye(2)], [np.eye(2)])
