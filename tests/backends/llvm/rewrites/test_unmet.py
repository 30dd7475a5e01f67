"""Convolutions whose kernels meet padding, against those that multiply all of it."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.program import GemmStep
from funcgrad.ops.convolution.conv import conv_general_dilated
from tests.backends.checks import floats

# Shapes of the operand and of the kernel, strides, padding, dilations of both.
SINGLE = {
    "all elements": ((8, 16, 1, 1), (24, 16, 4, 4), (1, 1), ((3, 3), (3, 3)), (1, 1), (1, 1)),
    "the middle": ((8, 16, 1, 1), (24, 16, 3, 3), (1, 1), "SAME", (1, 1), (1, 1)),
    "zeros around": ((8, 16, 1, 1), (24, 16, 2, 3), (1, 1), ((4, 3), (5, 2)), (1, 1), (1, 1)),
    "strided": ((8, 16, 1, 1), (24, 16, 5, 5), (2, 3), ((4, 6), (5, 5)), (1, 1), (1, 1)),
    "apart": ((8, 16, 1, 1), (24, 16, 3, 4), (1, 1), ((4, 4), (6, 6)), (1, 1), (2, 3)),
    "apart, strided": ((8, 16, 1, 1), (24, 16, 4, 4), (3, 2), ((6, 9), (6, 10)), (1, 1), (2, 3)),
    "holes": ((8, 16, 1, 1), (24, 16, 3, 3), (1, 1), ((2, 2), (2, 2)), (2, 3), (1, 1)),
    "lines": ((8, 16, 1), (24, 16, 6), (1,), ((5, 2),), (1,), (1,)),
    "planes": ((8, 16, 1, 1, 1), (24, 16, 2, 3, 2), (1, 1, 1), ((1, 1),) * 3, (1,) * 3, (1,) * 3),
}
CUT = {
    "strided": ((8, 16, 2, 2), (24, 16, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), (1, 1)),
    "one side": ((8, 16, 1, 5), (24, 16, 3, 3), (1, 1), "SAME", (1, 1), (1, 1)),
    "high": ((8, 16, 3, 3), (24, 16, 2, 5), (1, 1), ((0, 0), (0, 4)), (1, 1), (1, 1)),
    "long": ((8, 16, 4), (24, 16, 9), (4,), ((9, 6),), (1,), (2,)),
    "holes": ((8, 16, 2, 2), (24, 16, 3, 5), (2, 2), ((2, 1), (2, 2)), (2, 4), (1, 1)),
}
CASES = {
    **{f"one place, {k}": v for k, v in SINGLE.items()},
    **{f"cut, {k}": v for k, v in CUT.items()},
}
FORMATS = [None, ("NHWC", "HWIO", "NHWC"), ("NHWC", "IHWO", "NCHW"), ("CHWN", "OIHW", "HWNC")]


def sample(case, dtype="float32", images=8):
    x, w, *params = CASES[case]
    return floats(images, *x[1:]).astype(dtype), floats(*w).astype(dtype), convolution(*params)


def convolution(strides, padding, holes, apart, **params):
    def conv(x, w):
        return conv_general_dilated(x, w, strides, padding, holes, apart, **params)

    return conv


def check(f, *args, tolerance=1e-5):
    with fg.disable_jit():
        wanted = f(*args)
    for got, want in zip(fg.jit(f)(*args), wanted, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        scale = max(1.0, float(np.abs(np.asarray(want, np.float64)).max()))
        np.testing.assert_allclose(
            np.asarray(got, np.float64),
            np.asarray(want, np.float64),
            rtol=0,
            atol=tolerance * scale,
        )


def all_of(conv):
    """A convolution and both its gradients."""

    def f(x, w):
        y, back = fg.vjp(conv, x, w)
        return (y, *back(fnp.cos(y)))

    return f


def products(f, *args):
    steps = fg.jit(f).lower(*args)._executable().program.steps
    return [s for s in steps if isinstance(s, GemmStep)]


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients(case):
    x, w, conv = sample(case)
    check(all_of(conv), x, w)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("bfloat16", 5e-2)])
@pytest.mark.parametrize("case", ["one place, zeros around", "cut, strided"])
def test_dtypes(case, dtype, tolerance):
    x, w, conv = sample(case, dtype)
    check(all_of(conv), x, w, tolerance=tolerance)


@pytest.mark.parametrize("case", ["one place, all elements", "one place, strided", "cut, high"])
def test_a_single_image(case):
    x, w, conv = sample(case, images=1)
    check(all_of(conv), x, w)


@pytest.mark.parametrize("numbers", FORMATS[1:])
@pytest.mark.parametrize("case", ["one place, zeros around", "one place, apart", "cut, one side"])
def test_orders_of_axes(case, numbers):
    x, w, _ = sample(case)
    x = x.transpose(["NCHW".index(c) for c in numbers[0]])
    w = w.transpose(["OIHW".index(c) for c in numbers[1]])
    check(all_of(convolution(*CASES[case][2:], dimension_numbers=numbers)), x, w)


@pytest.mark.parametrize("case", SINGLE)
def test_images_of_one_place_are_rows_of_one_product(case):
    x, w, conv = sample(f"one place, {case}")
    (product,) = products(conv, x, w)
    assert not product.batch
    assert product.k == 16


def test_what_meets_padding_is_not_multiplied():
    x, w, conv = sample("cut, strided")
    (product,) = products(conv, x, w)
    assert product.k == 16 * 4


def test_groups_stay_as_they_are():
    conv = convolution((1, 1), ((3, 3), (3, 3)), (1, 1), (1, 1), feature_group_count=2)
    check(all_of(conv), floats(8, 32, 1, 1), floats(24, 16, 4, 4))


def test_kernels_that_meet_nothing_give_zeros():
    conv = convolution((4, 4), ((2, 2), (2, 2)), (1, 1), (1, 1))
    x, w = floats(8, 16, 1, 1), floats(24, 16, 2, 2)
    assert not np.any(fg.jit(conv)(x, w))
    check(all_of(conv), x, w)


def test_kernels_of_more_axes_than_products_take():
    numbers = ("NABDEFGC", "ABDEFGIO", "NABDEFGC")
    conv = convolution((1,) * 6, ((1, 2),) * 6, (1,) * 6, (1,) * 6, dimension_numbers=numbers)
    check(lambda x, w: (conv(x, w),), floats(5, *(1,) * 6, 8), floats(*(3,) * 6, 8, 8))
