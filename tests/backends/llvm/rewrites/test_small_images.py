"""Convolutions of many small images, against those of each image."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.program import GemmStep
from funcgrad.ops.convolution.conv import conv_general_dilated
from tests.backends.checks import floats

# Shapes of the operand and of the kernel, strides, padding, dilations of both.
CASES = {
    "3×3": ((9, 8, 4, 4), (16, 8, 3, 3), (1, 1), "SAME", (1, 1), (1, 1)),
    "3×3 of 36 places": ((8, 16, 6, 6), (16, 16, 3, 3), (1, 1), "SAME", (1, 1), (1, 1)),
    "lines": ((20, 16, 9), (8, 16, 4), (2,), ((1, 2),), (1,), (1,)),
    "strided": ((8, 8, 5, 5), (24, 8, 3, 3), (2, 2), ((1, 1), (0, 2)), (1, 1), (1, 1)),
    "holes": ((10, 16, 2, 3), (8, 16, 4, 4), (1, 1), ((2, 2), (2, 2)), (2, 2), (1, 1)),
    "apart": ((8, 8, 5, 6), (16, 8, 2, 2), (1, 1), "VALID", (1, 1), (2, 3)),
    "planes": ((8, 8, 3, 3, 3), (16, 8, 2, 2, 2), (1, 1, 1), "VALID", (1, 1, 1), (1, 1, 1)),
    "1×1": ((12, 32, 3, 2), (16, 32, 1, 1), (1, 1), "VALID", (1, 1), (1, 1)),
}


def sample(case, dtype="float32"):
    x, w, *params = CASES[case]
    return floats(*x).astype(dtype), floats(*w).astype(dtype), convolution(*params)


def convolution(strides, padding, holes, apart):
    def conv(x, w):
        return conv_general_dilated(x, w, strides, padding, holes, apart)

    return conv


def products(f, *args):
    steps = fg.jit(f).lower(*args)._executable().program.steps
    return [s for s in steps if isinstance(s, GemmStep)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_results(case, dtype, threads):
    x, w, conv = sample(case, dtype)
    one = fg.jit(conv)
    wanted = np.concatenate([one(x[i : i + 1], w) for i in range(len(x))])
    got = one(x, w)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    x, w, conv = sample(case)

    def loss(x, w):
        return fnp.sum(fnp.tanh(conv(x, w)))

    got = fg.jit(fg.grad(loss, argnums=(0, 1)))(x, w)
    for a, b in zip(got, fg.grad(loss, argnums=(0, 1))(x, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max())


@pytest.mark.parametrize("case", ["lines", "strided", "apart", "planes", "1×1"])
def test_all_images_are_rows_of_one_product(case):
    (product,) = products(sample(case)[2], *sample(case)[:2])
    assert not product.batch
    assert {product.m, product.n} >= {CASES[case][1][0]}


def test_others_stay_as_they_are():
    """Few images, many places, a single one; groups, features last, narrow floats."""
    conv = convolution((1, 1), "VALID", (1, 1), (1, 1))
    w = floats(16, 32, 2, 2)
    for shape in ((7, 32, 4, 4), (16, 32, 9, 9)):
        (product,) = products(conv, floats(*shape), w)
        assert product.batch
    (whole,) = products(conv, floats(20, 32, 2, 2), w)
    assert {whole.m, whole.n, whole.k} == {16, 20, 128}

    def steps(x, w, **params):
        def f(x, w):
            return conv_general_dilated(x, w, (1, 1), "VALID", **params)

        return fg.jit(f).lower(x, w)._executable().program.steps

    last = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    assert len(steps(floats(16, 3, 3, 32), floats(2, 2, 32, 16), **last)) == 1
    groups = steps(floats(16, 32, 3, 3), floats(16, 16, 2, 2), feature_group_count=2)
    assert all(s.batch for s in groups if isinstance(s, GemmStep))


def test_infinities_and_nans_stay_where_they_are():
    x, w, conv = sample("3×3")
    x[0, 1, 0, 0], x[3, 2, 3, 3], w[5, 3, 0, 0] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        got, wanted = (np.asarray(f(x, w)) for f in (fg.jit(conv), conv))
    for which in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(which(got), which(wanted))


# Images, channels, features, side: the gradient of a 3×3 kernel, and whether it is turned.
GRADIENTS = [(8, 32, 16, 6, True), (20, 40, 24, 5, True), (9, 33, 10, 14, True),
             (8, 16, 32, 6, False), (7, 32, 16, 6, False), (8, 32, 16, 15, False),
             (8, 64, 96, 6, False)]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", GRADIENTS)
def test_gradients_of_kernels(sizes, dtype, threads):
    n, channels, features, side, turned = sizes
    x = floats(n, channels, side, side).astype(dtype)
    w = floats(features, channels, 3, 3).astype(dtype)
    ct = floats(n, features, side, side).astype(dtype)
    conv = convolution((1, 1), "SAME", (1, 1), (1, 1))

    def gradient(x, ct):
        return fg.vjp(lambda w: conv(x, w), w)[1](ct)[0]

    steps = fg.jit(gradient).lower(x, ct)._executable().program.steps
    assert (len(steps) > 2) == turned
    got, wanted = fg.jit(gradient)(x, ct), gradient(x, ct)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
