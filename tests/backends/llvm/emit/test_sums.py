"""Long sums in blocks: their accuracy whatever the length, and sums that are exact in any order."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.emit.sums import sum_blocks
from funcgrad.backends.loops.ir import INDEX, Carry, Const, Loop, Value


def a_sum(size, dtype="float32", combine="add", body=()):
    """A loop that combines."""
    inside, out = Value(np.dtype(dtype)), Value(np.dtype(dtype))
    carry = Carry(inside, Const(0, inside.dtype), inside, out, combine)
    return Loop(Value(INDEX), size, body, (carry,), parallel=True)


def test_blocks():
    assert sum_blocks(a_sum(4096), 512) == []
    assert sum_blocks(a_sum(4097), 512) == [4096]
    assert sum_blocks(a_sum(300_000), 512) == [64 * 4096, 4096]
    assert sum_blocks(a_sum(3000), 128) == [512]
    assert sum_blocks(a_sum(3000, "float64"), 256) == [1024]
    assert sum_blocks(a_sum(100, body=(a_sum(9),)), 512) == [8]


def test_what_is_in_no_blocks():
    assert sum_blocks(a_sum(10**6, "int32"), 512) == []
    assert sum_blocks(a_sum(10**6, combine="maximum"), 512) == []
    assert sum_blocks(Loop(Value(INDEX), 10**6, (), (), parallel=True), 512) == []


@pytest.mark.parametrize("n", [1000, 10_000, 100_000, 1_000_000])
def test_rounding_does_not_grow_with_the_length(n):
    # Equal numbers: the errors of all additions into one sum go the same way.
    x = np.full((3, n), 0.1, np.float32)
    wanted = float(np.float32(0.1)) * n
    for f, many in ((lambda x: x.sum(), 3), (lambda x: x.sum(1), 1), (lambda x: (x * x).sum(1), 0)):
        got = np.asarray(fg.jit(f)(x), np.float64)
        np.testing.assert_allclose(got, wanted * many if many else wanted * np.float32(0.1),
                                   rtol=4e-6)  # fmt: skip


def test_loops_around_loops():
    # Of rows with gaps, neither loop is long by itself.
    x = np.full((2000, 100), 0.1, np.float32)
    got = float(fg.jit(lambda x: x[:, :64].sum())(x))
    np.testing.assert_allclose(got, float(np.float32(0.1)) * 2000 * 64, rtol=4e-6)


@pytest.mark.parametrize("n", [511, 513, 4096, 4097, 8191, 70_001])
def test_exact_sums_of_all_lengths(n):
    x = np.arange(2 * n, dtype=np.float32).reshape(2, n) % 7 - 3
    got, twice = fg.jit(lambda x: (x.sum(1), (2 * x).sum(1)))(x)
    np.testing.assert_array_equal(np.asarray(got), x.sum(1))
    np.testing.assert_array_equal(np.asarray(twice), 2 * x.sum(1))
    rows = fg.jit(lambda x: fnp.stack([x[0].sum(), x[1, ::-1].astype("float64").sum()]))(x)
    np.testing.assert_array_equal(np.asarray(rows), x.sum(1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_special_values(value):
    x = np.zeros(9000, np.float32)
    x[8500] = value
    np.testing.assert_array_equal(np.asarray(fg.jit(fnp.sum)(x)), np.float32(value))
    x[100] = -value
    np.testing.assert_array_equal(np.asarray(fg.jit(fnp.sum)(x)), x.sum())
