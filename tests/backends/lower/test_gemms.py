"""What products of windows say of their convolution."""

import math

import pytest

import funcgrad as fg
from funcgrad.backends.program import GemmStep, walk
from funcgrad.ops.convolution.conv import third
from tests.backends.llvm.rewrites.test_convolution import CASES, gradients, sample


def windows_of(f, *args):
    """The products of a program that have windows."""
    steps = walk(fg.jit(f).lower(*args)._executable().program.steps)
    return [s for s in steps if isinstance(s, GemmStep) and s.windows is not None]


def check(step):
    """A convolution's fields are those of one, and of the product as it lies in memory."""
    w, c = step.windows, step.windows.convolution
    axes = zip(c.size, c.taps, c.places, c.strides, c.padding, c.dilation, strict=True)
    phases = c.phases or (1,) * len(c.size)
    for (size, taps, places, stride, pad, dilation), more in zip(axes, phases, strict=True):
        reach = (places - 1) * stride + (taps - 1) * dilation + more
        assert size + sum(pad) == reach
    results = c.images * math.prod((*c.places, *phases, *c.groups)) * c.features
    assert step.k == c.channels * math.prod(c.taps)
    assert step.m * step.n * math.prod(n for n, *_ in step.batch) == results
    rows = (step.m, step.n)[w.operand]
    assert rows == math.prod((c.images, *c.places)[i] for i in w.rows)


@pytest.mark.parametrize("case", CASES)
def test_fields_of_convolutions_and_their_gradients(case):
    x, w, conv = sample(case)
    for step in windows_of(conv, x, w):
        check(step)
    for step in windows_of(lambda x, w: gradients(conv, x, w), x, w):
        check(step)


def test_which_convolution():
    x, w = fg.numpy.ones((4, 16, 9, 11)), fg.numpy.ones((32, 8, 3, 3))

    def conv(x, w):
        return fg.lax.conv_general_dilated(
            x, w, (2, 1), [(1, 2), (0, 3)], rhs_dilation=(1, 2), feature_group_count=2
        )

    (step,) = windows_of(conv, x, w)
    c = step.windows.convolution
    assert (c.images, c.channels, c.features, c.groups) == (4, 8, 16, (2, 1))
    assert (c.size, c.taps, c.strides, c.dilation) == ((9, 11), (3, 3), (2, 1), (1, 2))
    assert c.padding == ((1, 1), (0, 3)), "a line that no window reaches isn't read"
    assert str(fg.jit(conv).lower(x, w)._executable().program).count("; result by windows of ") == 1


@pytest.mark.parametrize("case", CASES)
def test_which_array_a_product_makes(case):
    x, w, conv = sample(case)
    fits = {"result": conv, "images": fg.vjp(lambda x: conv(x, w), x)[1]}
    fits["kernel"] = fg.vjp(lambda w: conv(x, w), w)[1]
    ct = fg.numpy.ones_like(conv(x, w))
    for made, args in ("result", (x, w)), ("images", (ct,)), ("kernel", (ct,)):
        for step in windows_of(fits[made], *args):
            assert third(step.windows.convolution.operands) == made


def test_axes_along_which_nothing_moves_are_left_out():
    x, w = fg.numpy.ones((2, 16, 1, 19, 20)), fg.numpy.ones((16, 16, 1, 3, 3))
    (step,) = windows_of(lambda x, w: fg.lax.conv_general_dilated(x, w, (1,) * 3, "SAME"), x, w)
    assert step.windows.convolution.taps == (3, 3)
    assert len(step.windows.steps) == 4


def test_other_products_have_none():
    x = fg.numpy.ones((64, 64))
    assert not windows_of(lambda x: x @ x, x)
