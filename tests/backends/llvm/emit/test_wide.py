"""Copies of pairs as copies of wider elements."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.emit.wide import widened
from funcgrad.backends.loops.ir import Buffer
from tests.backends.llvm.kernels_run import F32, F64, at, kernel, run_interpreted, run_native


def turned(m, n, dtype=F32, shift=0, scale=1):
    """out[j, i, k] = in[i, j, k] of rows that begin `shift` elements later."""
    size = 2 * m * n + shift
    x, o = Buffer("x", dtype, size, "in"), Buffer("o", dtype, size, "out")

    def body(b, j, i, k):
        value = b.load(x, at((2 * n, i), (2, j), (1, k), const=shift))
        value = value if scale == 1 else b.op("multiply", dtype, value, value)
        b.store(o, at((2 * m, j), (2, i), (1, k), const=shift), value)

    return kernel([x, o], [n, m, 2], body)


@pytest.mark.parametrize("dtype", ["float32", "int32", "int16", "int8", "float16", "bool"])
@pytest.mark.parametrize(("m", "n"), [(3, 5), (64, 40), (70, 129)])
def test_pairs_are_transposed(m, n, dtype, rng):
    dtype = np.dtype(dtype)
    k = turned(m, n, dtype)
    wide = widened(k)
    assert [a.size for a in wide.axes] == [n, m]
    assert {b.dtype.itemsize for b in wide.buffers} == {2 * dtype.itemsize}
    x = rng.integers(0, 2, 2 * m * n).astype(dtype)
    np.testing.assert_array_equal(run_native(k, [x])[0], run_interpreted(k, [x])[0])


def test_kernels_that_stay():
    for k in (turned(8, 9, F64), turned(8, 9, shift=1), turned(8, 9, scale=2)):
        assert widened(k) is k


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_complex_arrays_wherever_they_lie(order, rng):
    """Also where numbers begin in the middle of a word of 64 bits."""
    n = 33 * 20 * 18
    flat = rng.standard_normal(2 * n + 1).astype(np.float32)
    for first in (0, 1):
        x = flat[first : first + 2 * n].view(np.complex64).reshape(33, 20, 18)
        got = fg.jit(lambda x: fnp.transpose(x, order))(x)
        np.testing.assert_array_equal(np.asarray(got), x.transpose(order))
