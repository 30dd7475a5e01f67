"""Convolutions of single channels as loops over images: interpreted and compiled, against their
definition."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.llvm.kernels import depthwise
from funcgrad.backends.program import KernelStep, walk
from funcgrad.ops.convolution.conv import conv_general_dilated
from tests.backends.checks import check, floats, hosts

ONE = (1, 1)
# lhs, rhs, keywords; the work is enough for kernels over channels.
CASES = {
    "plain": ((3, 16, 9, 11), (16, 1, 3, 3), {"padding": [ONE, ONE]}),
    "wide": ((2, 6, 5, 37), (6, 1, 3, 5), {"padding": [(0, 0), (1, 3)]}),
    "strided": ((2, 24, 17, 18), (24, 1, 3, 3), {"window_strides": (2, 2), "padding": [ONE, ONE]}),
    "strided apart": ((5, 24, 17, 18), (24, 1, 2, 2), {"window_strides": (3, 2)}),
    "dilated": ((2, 16, 15, 19), (16, 1, 3, 2),
                {"window_strides": (2, 1), "padding": [(-1, 2), (1, -2)], "rhs_dilation": (1, 3)}),
    "holes": ((2, 16, 7, 9), (16, 1, 3, 3), {"lhs_dilation": (2, 3), "padding": [(1, 2), (2, -1)]}),
    "holes, strided": ((2, 16, 9, 9), (16, 1, 3, 3),
                       {"lhs_dilation": (2, 3), "window_strides": (3, 2), "padding": [ONE, ONE]}),
    "several outputs": ((2, 8, 10, 11), (24, 1, 3, 3), {"feature_group_count": 8}),
    "several inputs": ((2, 24, 10, 11), (8, 3, 3, 3), {"feature_group_count": 8}),
    "one column": ((4, 64, 30, 1), (64, 1, 3, 1), {}),
    "line": ((2, 16, 130), (16, 1, 4), {"window_strides": (1,), "padding": [(3, 0)]}),
    "volume": ((2, 8, 5, 6, 7), (8, 1, 2, 3, 2), {"window_strides": (1, 2, 1), "padding": "SAME"}),
    "rows first": ((2, 9, 16, 11), (3, 3, 1, 16),
                   {"dimension_numbers": ("NHCW", "HWIO", "NHCW"), "padding": "SAME"}),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES)


def sample(case, dtype="float32"):
    """The operands of a case, and the convolution of them."""
    lhs, rhs, kw = CASES[case]
    strides = (1,) * (len(lhs) - 2)
    kw = {"window_strides": strides, "padding": "VALID", "feature_group_count": max(rhs), **kw}
    x, w = floats(*lhs, dtype=dtype), floats(*rhs, seed=1, dtype=dtype)
    return x, w.astype(dtype), lambda x, w: conv_general_dilated(x, w, **kw)


def gradients(conv, x, w):
    """The convolution, and its gradients for some cotangent."""
    y, back = fg.vjp(conv, x, w)
    return [y, *back(y * 0.5)]


def check_compiled(x, w, conv, dtype):
    """Compare a convolution and its gradients with those in float64."""
    got = fg.jit(lambda x, w: gradients(conv, x, w))(x, w)
    exact = gradients(conv, x.astype("float64"), w.astype("float64"))
    tolerance = {"bfloat16": 4e-2, "float32": 2e-5, "float64": 1e-12}[dtype]
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == dtype
        size = max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(np.asarray(a, "f8"), b, rtol=tolerance, atol=tolerance * size)


def written(f, *args):
    """The names of the kernels over channels of a function."""
    program = check(f, *args)
    assert not hosts(program)
    names = [s.kernel.name for s in walk(program.steps) if isinstance(s, KernelStep)]
    return [n for n in names if n.startswith("channels")]


@cases
def test_interpreted(case):
    x, w, conv = sample(case)
    assert written(lambda x, w: [conv(x, w)], x, w) == ["channels"]


def test_gradients_interpreted():
    x, w, conv = sample("strided")
    assert len(written(lambda x, w: gradients(conv, x, w), x, w)) == 3


@pytest.mark.sampled(12)
@cases
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_compiled(case, dtype):
    check_compiled(*sample(case, dtype), dtype)


@pytest.mark.parametrize("case", ["plain", "strided", "dilated", "line", "volume"])
def test_images_in_parts(case, monkeypatch):
    monkeypatch.setattr(depthwise, "PART", 128)
    x, w, conv = sample(case, "float64")
    f = lambda x, w: gradients(conv, x, w)
    written(f, x, w)
    for a, b in zip(fg.jit(f)(x, w), f(x, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("part", [128, 8192])
def test_infinities_stay_in_their_windows(part, monkeypatch):
    monkeypatch.setattr(depthwise, "PART", part)
    x, w, conv = sample("plain")
    x[0, 3, 4, 10] = x[1, 5, 8, 0] = np.inf
    x[2, 7, 0, 5] = np.nan

    def f(x, w):
        y, back = fg.vjp(conv, x, w)
        return [y, back(fg.numpy.ones_like(y))[1]]

    got, wanted = fg.jit(f)(x, w), f(x, w)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert np.isfinite(np.asarray(wanted[1])).sum() > np.isinf(np.asarray(wanted[1])).sum() > 0


def test_small_ones_and_those_that_mix_channels_are_not_written_so():
    x, w, conv = sample("plain")
    assert not written(lambda x, w: [conv(x, w)], x[:1, :, :4, :4], w)
    mixed = floats(32, 16, 3, 3)
    assert not written(lambda x, w: [conv_general_dilated(x, w, ONE, "VALID")], x, mixed)
