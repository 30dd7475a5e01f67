"""What tells programs apart: the types that arguments are traced with."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "complex64")


def mixed(arrays, scalar):
    """All ways of meeting a scalar: operators, choices, joins, and the scalar alone."""
    met = [(a * scalar, fnp.where(a == 0, a, scalar), fnp.stack([a[0], scalar])) for a in arrays]
    return met, fnp.append(arrays[0], scalar), fnp.sin(scalar), -scalar


@pytest.mark.parametrize("scalar", [np.float64(2), np.int64(2), np.complex128(2), np.float32(2)])
def test_scalars_of_numpy_are_what_they_are_without_jit(scalar):
    arrays = [fnp.ones(2, dtype) for dtype in DTYPES]
    want = fg.tree.map(lambda x: fnp.asarray(x).dtype, mixed(arrays, scalar))
    got = fg.tree.map(lambda x: x.dtype, fg.jit(mixed)(arrays, scalar))
    assert got == want


def test_they_are_told_from_numbers_and_arrays():
    f = fg.jit(lambda x, s: x * s)
    x = fnp.ones(2)
    for _ in range(3):  # the third time the program is called natively
        got = [f(x, s).dtype for s in (2.0, np.float64(2), np.asarray(2.0), np.float32(2))]
        assert got == ["float32", "float32", "float64", "float32"]
    assert f.lower(x, np.float64(2)).compile()(x, np.float64(3)).tolist() == [3.0, 3.0]
