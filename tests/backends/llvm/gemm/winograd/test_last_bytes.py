"""Products of 3×3 windows of int8 by tiles, against sums of products: to the last bit."""

import numpy as np
import pytest

from funcgrad.core.record import replace
from tests.backends.llvm.gemm.winograd.test_first import sums
from tests.backends.llvm.gemm.winograd.test_last import run, step_of

# As in `test_first`.
SHAPES = [
    (2, 64, 64, 16, 16, (1, 1, 1, 1)),
    (3, 32, 33, 17, 19, (1, 1, 1, 1)),
    (2, 32, 41, 11, 26, (2, 2, 2, 2)),
    (1, 96, 40, 15, 17, (0, 0, 0, 0)),
    (2, 288, 40, 12, 12, (1, 0, 0, 1)),
]
WAYS = [
    (True, False, False, 0),
    (False, True, False, 0),
    (False, False, True, 1),
    (True, True, True, 1),
]  # fmt: skip


def images(shape, lows, highs, seed=0):
    """Images and a kernel, features first, with elements of these bounds."""
    n, channels, features, height, width, (top, bottom, left, right) = shape
    rng = np.random.default_rng(seed)
    sizes = (n, channels, height + 2 - top - bottom, width + 2 - left - right)
    kernel = (features, channels, 3, 3)
    return [
        rng.integers(low, high, size, np.int8, endpoint=True)
        for low, high, size in zip(lows, highs, (sizes, kernel), strict=True)
    ]


def product(shape, *way):
    return replace(step_of(shape, "int8", *way), out=np.dtype(np.int32))


# The last one has no instruction for pairs of 16 bits that fill its registers.
@pytest.mark.sampled(2)
@pytest.mark.parametrize("cpu", ["host", "x86-64", "haswell", "sandybridge"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results(shape, cpu):
    x, w = images(shape, (-128, -128), (127, 127))
    for way in WAYS:
        got = run(product(shape, *way), shape, w, x, cpu)
        np.testing.assert_array_equal(got, sums(shape, w, x, way[1]))


@pytest.mark.parametrize("bounds", [(-128, -128), (127, 127), (-128, 127), (127, -128)])
def test_extremes(bounds):
    """The largest sums that there are, of all points."""
    for shape in (SHAPES[4], SHAPES[1]):
        x, w = images(shape, bounds, bounds)
        np.testing.assert_array_equal(run(product(shape), shape, w, x), sums(shape, w, x))


def test_the_most_channels():
    """4 times their sums are within int32."""
    shape = (1, 3616, 16, 40, 40, (0, 0, 0, 0))
    x, w = images(shape, (-128, -128), (-128, -128))
    got = run(product(shape), shape, w, x)
    assert (got == 9 * 3616 << 14).all()
