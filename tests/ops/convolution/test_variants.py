"""Transposed convolutions, patches and unshared kernels against what they stand for."""

import itertools

import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.errors import ShapeError
from funcgrad.ops.convolution.conv import conv_general_dilated
from funcgrad.ops.convolution.variants import (
    conv,
    conv_general_dilated_local,
    conv_general_dilated_patches,
    conv_transpose,
    conv_with_general_padding,
)
from tests.ops.rules import check_derivatives, check_vmap, vjp


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_conv_transpose_is_the_gradient_of_conv(kernel, stride, rng):
    """With VALID padding, where the strides leave nothing over."""
    n = 4
    size = (n - 1) * stride + kernel
    numbers = ("NHC", "HIO", "NHC")
    w = rng.standard_normal((kernel, 2, 3))
    forward = lambda x: conv_general_dilated(
        x, Array(w), (stride,), "VALID", dimension_numbers=numbers
    )
    ct = rng.standard_normal((2, n, 3))
    (expected,) = vjp(forward, [Array(np.zeros((2, size, 2)))], [Array(ct)])
    got = np.asarray(conv_transpose(ct, w, (stride,), "VALID", transpose_kernel=True))
    np.testing.assert_allclose(got[:, :size], np.asarray(expected))
    np.testing.assert_array_equal(got[:, size:], 0)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("dilation", [1, 2])
def test_conv_transpose_same_multiplies_the_size(kernel, stride, dilation, rng):
    x, w = rng.standard_normal((1, 5, 2)), rng.standard_normal((kernel, 2, 3))
    got = conv_transpose(x, w, (stride,), "SAME", rhs_dilation=(dilation,))
    assert got.shape == (1, 5 * stride, 3)


def test_conv_transpose_layouts(rng):
    x, w = rng.standard_normal((1, 3, 4, 2)), rng.standard_normal((2, 3, 2, 5))
    plain = np.asarray(conv_transpose(x, w, (2, 3), [(1, 2), (0, 1)]))
    other = conv_transpose(
        np.moveaxis(x, -1, 1),
        np.moveaxis(w, (2, 3), (1, 0)),
        (2, 3),
        [(1, 2), (0, 1)],
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )
    np.testing.assert_allclose(np.moveaxis(np.asarray(other), 1, -1), plain)
    flat = conv_transpose(x[:, 0, 0], w[0, 0], (), "SAME")
    np.testing.assert_allclose(np.asarray(flat), x[:, 0, 0] @ w[0, 0])


def test_conv_and_general_padding(rng):
    x, w = rng.standard_normal((2, 3, 6)), rng.standard_normal((4, 3, 2))
    np.testing.assert_array_equal(
        np.asarray(conv(x, w, (2,), "SAME")), np.asarray(conv_general_dilated(x, w, (2,), "SAME"))
    )
    np.testing.assert_array_equal(
        np.asarray(conv_with_general_padding(x, w, (2,), [(1, 0)], (2,), (1,))),
        np.asarray(conv_general_dilated(x, w, (2,), [(1, 0)], (2,), (1,))),
    )


@pytest.mark.parametrize("spec", [None, ("NHWC", "HWIO", "NHWC")])
def test_patches(spec, rng):
    x = rng.standard_normal((2, 3, 5, 4))
    last = np.transpose(x, (0, 2, 3, 1)) if spec else x
    got = conv_general_dilated_patches(last, (2, 3), (2, 1), "VALID", dimension_numbers=spec)
    got = np.asarray(got)
    got = np.transpose(got, (0, 3, 1, 2)) if spec else got
    for i, j in itertools.product(range(2), range(2)):
        window = x[:, :, 2 * i : 2 * i + 2, j : j + 3]
        np.testing.assert_array_equal(got[:, :, i, j], window.reshape(2, -1))


@pytest.mark.parametrize("spec", [None, ("NHWC", "HWIO", "NHWC"), ("NCHW", "WHIO", "NWHC")])
def test_local_with_one_kernel_is_a_convolution(spec, rng):
    x = rng.standard_normal((2, 3, 5, 4))
    w = rng.standard_normal((6, 3, 2, 3))
    shared = np.asarray(conv_general_dilated(x, w, (2, 1), "VALID"))
    n_rows, n_columns = shared.shape[2:]
    local = np.broadcast_to(w.reshape(6, 18, 1, 1), (6, 18, n_rows, n_columns))
    spec = spec or ("NCHW", "OIHW", "NCHW")
    order = lambda v, old, new: np.transpose(v, [old.index(c) for c in new])
    spatial = tuple((2, 3)["HW".index(c)] for c in spec[1] if c in "HW")
    strides = tuple((2, 1)["HW".index(c)] for c in spec[1] if c in "HW")
    fun = lambda a, b: conv_general_dilated_local(
        a, b, strides, "VALID", spatial, dimension_numbers=spec
    )
    # Patches are flattened in the order of the kernel's spatial axes.
    if spec[1].index("W") < spec[1].index("H"):
        local = np.broadcast_to(
            np.swapaxes(w, 2, 3).reshape(6, 18, 1, 1), (6, 18, n_rows, n_columns)
        )
    args = [order(x, "NCHW", spec[0]), order(local, "OIHW", spec[1])]
    np.testing.assert_allclose(order(np.asarray(fun(*args)), spec[2], "NCHW"), shared)
    check_derivatives(fun, args, rng, order=1)
    check_vmap(fun, args, rng, size=2)


def test_errors():
    x = np.zeros((1, 2, 2, 2, 2, 1), np.float32)
    with pytest.raises(ShapeError, match="conv_transpose: dimension_numbers must be given"):
        conv_transpose(x, x, (1,) * 4, "SAME")
    with pytest.raises(ValueError, match="conv_transpose: padding must be"):
        conv_transpose(x[0, 0, 0], x[0, 0, 0], (1,), "FULL")
