"""Gradients of max and min pooling as loops: interpreted and compiled, against their definition."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.llvm.kernels import selections
from tests.backends.checks import check, floats, hosts

# shape, window, strides, padding, base dilation, window dilation
CASES = {
    "apart": ((2, 3, 8, 6), (1, 1, 2, 2), (1, 1, 2, 2), None, None, None),
    "overlapping": ((2, 3, 9, 19), (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0),) * 2 + ((1, 1),) * 2,
                    None, None),
    "every position": ((2, 7, 18, 3), (1, 3, 3, 1), (1, 1, 1, 1),
                       ((0, 0), (1, 1), (2, 0), (0, 0)), None, None),
    "cut off": ((3, 9, 11), (1, 2, 3), (1, 3, 2), ((0, 0), (-2, 1), (2, -3)), None, None),
    "dilated": ((2, 9, 20), (1, 2, 3), (1, 2, 1), ((0, 0), (1, 2), (0, 1)), (1, 2, 1), (1, 3, 4)),
    "all axes": ((5, 12), (2, 3), (1, 3), None, None, None),
    "gaps": ((2, 3, 17), (1, 1, 2), (1, 1, 5), None, None, None),
    "features last": ((3, 9, 11, 8), (1, 2, 2, 1), (1, 2, 2, 1), None, None, None),
    "overlapping, features last": ((2, 19, 9, 5), (1, 3, 3, 1), (1, 2, 2, 1),
                                   ((0, 0), (1, 1), (1, 1), (0, 0)), None, None),
    "cut off, features last": ((2, 9, 14, 4), (1, 2, 3, 1), (1, 3, 2, 1),
                               ((0, 0), (-2, 1), (2, -3), (0, 0)), None, None),
    "dilated, features last": ((9, 20, 2, 8), (2, 3, 1, 1), (2, 1, 1, 1),
                               ((1, 2), (0, 1), (0, 0), (0, 0)), None, (3, 4, 1, 1)),
    "holes, features last": ((2, 9, 8), (1, 3, 1), (1, 2, 1), None, (1, 2, 1), None),
    "lines, features last": ((1, 70, 8), (1, 3, 1), (1, 1, 1), None, None, None),
    "one window, features last": ((2, 7, 8, 16), (1, 7, 8, 1), (1, 1, 1, 1), None, None, None),
    "large, features last": ((1, 40, 20, 72), (1, 2, 5, 1), (1, 1, 3, 1),
                             ((0, 0), (1, 0), (2, 2), (0, 0)), None, None),
    "far apart, features last": ((2, 30, 30, 8), (1, 3, 3, 1), (1, 27, 27, 1), None, None, None),
    "volumes, features last": ((2, 5, 4, 6, 4), (1, 2, 3, 2, 1), (1, 2, 1, 2, 1), None, None, None),
    "no window": ((2, 3, 4), (1, 1, 5), (1, 1, 1), None, None, None),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES)


def sample(case, greatest=True, dtype="float32"):
    """An operand with ties and NaN, and the gradient of pooling it, of some cotangent."""
    shape, window, strides, padding, base, dilation = CASES[case]
    x = np.round(floats(*shape) * 2)
    x.flat[::17] = np.nan
    x.flat[5::23] = np.inf

    def pool(x):
        init, combine = (-np.inf, lax.max) if greatest else (np.inf, lax.min)
        return lax.reduce_window(
            x, init, combine, window, strides, padding or ((0, 0),) * len(shape), base, dilation
        )

    def gradient(x):
        y, back = fg.vjp(pool, x)
        seed = fg.numpy.arange(y.size, dtype="float32") % 7 - 2
        return back(seed.reshape(y.shape).astype(y.dtype))[0]

    return x.astype(dtype), gradient


@cases
def test_interpreted(case):
    x, gradient = sample(case)
    program = check(lambda x: [gradient(x)], x)
    assert bool(hosts(program)) == (case == "no window")


@pytest.mark.sampled(12)
@cases
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("greatest", [True, False])
def test_compiled(case, greatest, dtype):
    x, gradient = sample(case, greatest, dtype)
    got, wanted = fg.jit(gradient)(x), gradient(x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got, "f8"), np.asarray(wanted, "f8"))


def test_large_windows_are_the_hosts(monkeypatch):
    x, gradient = sample("overlapping")
    for limit in ("MAX_TAPS", "MAX_IMAGE"):
        with monkeypatch.context() as m:
            m.setattr(selections, limit, 4)
            assert hosts(check(lambda x: [gradient(x)], x))


# shape, window: all of some axes
WHOLE = {
    "images": ((3, 5, 7, 7), (1, 1, 7, 7)),
    "images of features": ((2, 7, 7, 3), (1, 7, 7, 1)),
    "lines": ((4, 3, 1, 9), (1, 1, 1, 9)),
    "all axes": ((4, 6), (4, 6)),
    "axes apart": ((4, 3, 5), (4, 1, 5)),
    "few": ((2, 3, 2, 2), (1, 1, 2, 2)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("greatest", [True, False])
@pytest.mark.parametrize("whole", WHOLE)
def test_whole_images(monkeypatch, whole, greatest, dtype):
    shape, window = WHOLE[whole]
    monkeypatch.setitem(CASES, "whole", (shape, window, (1,) * len(shape), None, None, None))
    x, gradient = sample("whole", greatest, dtype)
    program = check(lambda x: [gradient(x)], x)
    assert not hosts(program)
    got, wanted = fg.jit(gradient)(x), gradient(x)
    np.testing.assert_array_equal(np.asarray(got, "f8"), np.asarray(wanted, "f8"))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))
