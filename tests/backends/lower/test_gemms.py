"""What products of windows say of their convolution."""

import math

import pytest

import funcgrad as fg
from funcgrad.backends.program import GemmStep, KernelStep, walk
from funcgrad.ops.convolution.conv import third
from tests.backends.llvm.rewrites.test_convolution import CASES, gradients, sample


def windows_of(f, *args):
    """The products of a program that have windows."""
    steps = walk(fg.jit(f).lower(*args)._executable().program.steps)
    return [s for s in steps if isinstance(s, GemmStep) and s.windows is not None]


def check_sizes(c):
    """Windows reach to where the padding of images ends."""
    axes = zip(c.size, c.taps, c.places, c.strides, c.padding, c.dilation, strict=True)
    ones = (1,) * len(c.size)
    more = zip(c.phases or ones, c.holes or ones, strict=True)
    for (size, taps, places, stride, pad, dilation), (phases, hole) in zip(axes, more, strict=True):
        reach = (places - 1) * stride + (taps - 1) * dilation + phases
        assert (size - 1) * hole + 1 + sum(pad) == reach


def check(step):
    """A convolution's fields are those of one, and of the product as it lies in memory."""
    w, c = step.windows, step.convolution
    check_sizes(c)
    phases = c.phases or (1,) * len(c.size)
    results = c.images * math.prod((*c.places, *phases, *c.groups)) * c.features
    assert step.k == c.channels * math.prod(c.taps)
    assert step.m * step.n * math.prod(n for n, *_ in step.batch) == results
    rows = (step.m, step.n)[w.operand]
    assert rows == math.prod((c.images, *c.places)[i] for i in w.rows)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_fields_of_convolutions_and_their_gradients(case):
    x, w, conv = sample(case)
    for step in windows_of(conv, x, w):
        check(step)
    for step in windows_of(lambda x, w: gradients(conv, x, w), x, w):
        check(step)


def of_steps(f, *args):
    """The convolutions of a program's products and kernels over channels, None where they lack."""
    steps = [*walk(fg.jit(f).lower(*args)._executable().program.steps)]
    kernels = [s for s in steps if isinstance(s, KernelStep) and s.kernel.name[:8] == "channels"]
    products = [s.convolution for s in steps if isinstance(s, GemmStep)]
    return products + [s.params["convolution"] for s in kernels]


@pytest.mark.parametrize("case", CASES)
def test_each_step_of_a_convolution_says_so(case):
    x, w, conv = sample(case)
    ct = fg.numpy.ones_like(conv(x, w))
    back = {"result": lambda ct: conv(x, w), "images": lambda ct: fg.vjp(conv, x, w)[1](ct)[0]}
    back["kernel"] = lambda ct: fg.vjp(conv, x, w)[1](ct)[1]
    for made, f in back.items():
        for c in of_steps(f, ct):
            assert third(c.operands) == made
            check_sizes(c)


@pytest.mark.parametrize(
    ("lhs", "rhs", "pads", "kw"),
    [
        ((8, 32, 1, 1), (16, 32, 4, 4), (3, 3), {}),  # images of one place
        ((2, 4, 3, 3), (4, 4, 2, 2), (1, 1), {"lhs_dilation": (2, 2)}),  # patches, written out
        ((4, 16, 12, 12), (16, 1, 3, 3), (1, 1), {"feature_group_count": 16}),
    ],
)
def test_convolutions_that_read_no_windows_in_place(lhs, rhs, pads, kw):
    x, w = fg.numpy.ones(lhs), fg.numpy.ones(rhs)
    (c,) = of_steps(lambda x, w: fg.lax.conv_general_dilated(x, w, (1, 1), [pads] * 2, **kw), x, w)
    assert (c.images, c.size, c.taps, c.padding) == (lhs[0], lhs[2:], rhs[2:], (pads, pads))
    assert c.holes == kw.get("lhs_dilation", ())
    assert c.groups == (kw.get("feature_group_count", 1), 1)


def test_which_convolution():
    x, w = fg.numpy.ones((4, 16, 9, 11)), fg.numpy.ones((32, 8, 3, 3))

    def conv(x, w):
        return fg.lax.conv_general_dilated(
            x, w, (2, 1), [(1, 2), (0, 3)], rhs_dilation=(1, 2), feature_group_count=2
        )

    (step,) = windows_of(conv, x, w)
    c = step.convolution
    assert (c.images, c.channels, c.features, c.groups) == (4, 8, 16, (2, 1))
    assert (c.size, c.taps, c.strides, c.dilation) == ((9, 11), (3, 3), (2, 1), (1, 2))
    assert c.padding == ((1, 1), (0, 3)), "a line that no window reaches isn't read"
    assert (
        str(fg.jit(conv).lower(x, w)._executable().program).count(
            "; a convolution's result by windows of "
        )
        == 1
    )


def test_axes_along_which_nothing_moves_are_left_out():
    x, w = fg.numpy.ones((2, 16, 1, 19, 20)), fg.numpy.ones((16, 16, 1, 3, 3))
    (step,) = windows_of(lambda x, w: fg.lax.conv_general_dilated(x, w, (1,) * 3, "SAME"), x, w)
    assert step.convolution.taps == (3, 3)
    assert len(step.windows.steps) == 4


def test_other_products_have_none():
    x = fg.numpy.ones((64, 64))
    assert not windows_of(lambda x: x @ x, x)
