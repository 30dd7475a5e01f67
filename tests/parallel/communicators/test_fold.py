"""Native sums, maxima and minima of several arrays, against numpy in the same order."""

import ctypes
from functools import cache

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.rewrites.exchanges import DTYPES, OPS
from funcgrad.parallel.communicators.fold import write_folds
from tests.parallel.jobs import combined

KINDS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
         "bfloat16", "float16", "float32", "float64", "complex64", "complex128"]  # fmt: skip


@cache
def fold_function():
    module = ir.Module()
    write_folds(module, engine().target).linkage = "external"
    address = engine().compile(module, level=2).address("fold")
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    return ctypes.CFUNCTYPE(ctypes.c_int32, i64, i64, pointer, pointer, i64, i64)(address)


def fold(op, arrays, to):
    pointers = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
    numbers = OPS.index(op), DTYPES.index(to.dtype)
    return fold_function()(*numbers, to.ctypes.data, pointers, len(arrays), to.size)


def values(dtype, n, seed):
    x = (np.random.default_rng(seed).normal(size=n) * 9).astype("float32")
    with np.errstate(all="ignore"):
        return x.astype(fg.dtypes.canonical(dtype))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", KINDS)
def test_against_numpy(dtype, op):
    if dtype.startswith("complex") and op != "sum":
        pytest.skip("complex numbers have no order")
    for arrays, n in ((1, 5), (2, 1003), (3, 64), (5, 130)):
        xs = [values(dtype, n, r) for r in range(arrays)]
        to = np.zeros_like(xs[0])
        assert fold(op, xs, to) == 0
        np.testing.assert_array_equal(to, combined(op, xs))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_nan_and_infinity_are_passed_on(dtype, op):
    special = np.array([np.nan, np.inf, -np.inf, 1.0] * 40, "float32")
    xs = [np.roll(special, r).astype(fg.dtypes.canonical(dtype)) for r in range(2)]
    to = np.zeros_like(xs[0])
    fold(op, xs, to)
    np.testing.assert_array_equal(to.astype("float64"), combined(op, xs).astype("float64"))


def test_in_place():
    xs = [values("float32", 1000, r) for r in range(3)]
    want = combined("sum", xs)
    fold("sum", xs, xs[1])
    np.testing.assert_array_equal(xs[1], want)


def test_narrow_floats_are_rounded_once():
    xs = [np.array([x], "float16") for x in (2048, 1, 1)]
    to = np.zeros(1, "float16")
    fold("sum", xs, to)
    assert to[0] == 2050


def test_dtypes_without_sums():
    assert fold("sum", [], np.zeros(0, fg.dtypes.int4)) == 1
    assert fold("max", [], np.zeros(0, "complex64")) == 1
    assert fold("max", [], np.zeros(0, "float32")) == 0
