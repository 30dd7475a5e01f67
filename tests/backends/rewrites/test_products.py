"""Contractions and convolutions as products or sums, against their meaning."""

import ml_dtypes
import pytest

import funcgrad as fg
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.rewrites.normalize import normalize
from funcgrad.ops.base import transpose_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.convolution.conv import conv_general_dilated
from funcgrad.ops.shape import reshape_p
from tests.backends.checks import check, floats, hosts, integers, kernels

DOTS = [
    ((8, 16), (16, 12), (((1,), (0,)), ((), ()))),
    ((8, 16), (12, 16), (((1,), (1,)), ((), ()))),
    ((16, 8), (16, 12), (((0,), (0,)), ((), ()))),
    ((3, 8, 16), (3, 16, 12), (((2,), (1,)), ((0,), (0,)))),
    ((3, 4, 8, 16), (16, 12), (((3,), (0,)), ((), ()))),
    ((3, 4, 8, 16), (3, 4, 8, 12), (((0, 1, 2), (0, 1, 2)), ((), ()))),
    ((8, 3, 16), (3, 16, 8, 2), (((0, 2), (2, 1)), ((1,), (0,)))),
    ((2, 6, 3, 16), (2, 6, 3, 16), (((3,), (3,)), ((0, 2), (0, 2)))),
    ((64,), (64,), (((0,), (0,)), ((), ()))),
    ((64,), (64, 5), (((0,), (0,)), ((), ()))),
    ((5, 7), (3,), (((), ()), ((), ()))),
]


@pytest.mark.parametrize(("lhs", "rhs", "numbers"), DOTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", ml_dtypes.bfloat16], ids=str)
def test_products(lhs, rhs, numbers, dtype):
    x, y = (
        integers(*lhs, low=-2, high=3).astype(dtype),
        integers(*rhs, low=-2, high=3).astype(dtype),
    )
    params = {"dimension_numbers": numbers, "preferred_element_type": None}
    planned = check(lambda x, y: [dot_general_p.bind(x, y, **params)], x, y)
    assert not hosts(planned)


def test_products_read_views():
    def fun(x, w):
        x = reshape_p.bind(x, new_sizes=(2, 6, 4, 8))
        x = transpose_p.bind(x, permutation=(0, 2, 1, 3))
        w = transpose_p.bind(w, permutation=(1, 0))
        params = {"dimension_numbers": (((3,), (0,)), ((), ())), "preferred_element_type": None}
        return [dot_general_p.bind(x, w, **params)]

    assert kernels(check(fun, floats(2, 6, 32), floats(16, 8))) == 0


def test_a_transpose_of_a_product_is_written_by_it():
    jaxpr = fg.make_jaxpr(lambda a, b: (a @ b).T)(fg.numpy.ones((40, 30)), fg.numpy.ones((30, 20)))
    (product,) = normalize(jaxpr.jaxpr, CPU).eqns
    assert product.params["permutation"] == (1, 0)


CONVOLUTIONS = [
    {},
    {"window_strides": (2, 1), "padding": ((1, 2), (0, -1))},
    {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2), "padding": ((2, 1), (3, 0))},
    {"feature_group_count": 2},
    {"batch_group_count": 2},
]


@pytest.mark.parametrize("params", CONVOLUTIONS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_convolutions(params, layout, dtype):
    x = integers(2, 4, 7, 6, low=-2, high=3).astype(dtype)
    w = integers(6, 4 // params.get("feature_group_count", 1), 3, 2, low=-2, high=3).astype(dtype)
    numbers = (layout, "OIHW" if layout == "NCHW" else "HWIO", layout)
    if layout == "NHWC":
        x, w = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)
    params = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": numbers, **params}
    assert not hosts(check(lambda x, w: [conv_general_dilated(x, w, **params)], x, w))
