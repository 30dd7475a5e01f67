"""The small product within routines of matrices, by itself, against numpy."""

import ctypes

import numpy as np
import pytest

from funcgrad.backends.llvm.gemm.pack import FORMATS, Tile
from funcgrad.backends.llvm.matrix.functions import install
from funcgrad.backends.llvm.native.engine import engine

WORD, POINTER = ctypes.c_int64, ctypes.c_void_p
KIND = ctypes.CFUNCTYPE(
    None, WORD, WORD, WORD, POINTER, WORD, WORD, POINTER, WORD, WORD, POINTER, WORD, WORD
)


def strided(rng, dtype, rows, columns, turned):
    """Values within a larger block, whose other elements are NaN, and the view of them."""
    room = np.full((columns + 3, rows + 5) if turned else (rows + 3, columns + 5), np.nan, dtype)
    room = room.T if turned else room
    inside = room[1 : rows + 1, 2 : columns + 2]
    inside[...] = rng.standard_normal((rows, columns))
    return inside


def strides(x):
    return [s // x.itemsize for s in x.strides]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [0, 1, 7, 8, 16, 17, 33])
@pytest.mark.parametrize("n", [0, 1, 5, 16, 31, 32, 40, 100])
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
def test_products(m, n, turned, dtype, rng):
    if not Tile.of(engine().target, FORMATS[dtype]).masks:
        pytest.skip("this processor's routines multiply by gemm alone")
    product = KIND(install("product", dtype))
    for k in (0, 1, 9, 32, 70):
        for add in (0, 1):
            a, b = strided(rng, dtype, m, k, turned[0]), strided(rng, dtype, k, n, turned[1])
            c = strided(rng, dtype, m, n, False)
            if not add:
                c[...] = np.nan
            around = c.base.copy()
            want = (c if add else 0) + a.astype(float) @ b.astype(float)
            words = [(x.ctypes.data, *strides(x)) for x in (a, b)]
            product(m, n, k, *words[0], *words[1], c.ctypes.data, strides(c)[0], add)
            np.testing.assert_allclose(c, want, rtol=0, atol=2e-5 if dtype == "float32" else 1e-13)
            c[...] = around[1 : m + 1, 2 : n + 2]
            np.testing.assert_array_equal(c.base, around)
