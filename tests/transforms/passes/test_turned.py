"""Convolutions without the transposes around them."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.transforms.passes.simplify import simplify

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def names(f, *args):
    return [e.prim.name for e in simplify(fg.make_jaxpr(f)(*args).jaxpr).eqns]


@pytest.fixture
def arrays(rng):
    return [rng.standard_normal(s).astype("f4") for s in ((2, 9, 8, 6), (3, 2, 2, 9))]


def turned(x, w):
    """A convolution of images and a kernel whose channels come last, as ONNX has it."""
    x, w = fnp.transpose(x, FIRST), fnp.transpose(w, (3, 2, 0, 1))
    return lax.conv_general_dilated(x, w, (2, 1), [(1, 2), (0, 1)], feature_group_count=3)


def test_transposes_around_become_dimension_numbers(arrays):
    x, w = arrays

    def f(x, w):
        return fnp.transpose(turned(x, w), LAST)

    assert names(f, x, w) == ["conv_general_dilated"]
    np.testing.assert_allclose(fg.jit(f)(x, w), f(x, w), rtol=1e-5, atol=1e-5)
    (conv,) = simplify(fg.make_jaxpr(f)(x, w).jaxpr).eqns
    spec = (0, 3, 1, 2)
    assert conv.params["dimension_numbers"] == (spec, (3, 2, 0, 1), spec)


def test_in_loops_and_derivatives(arrays):
    x, w = arrays[0], np.zeros((3, 3, 6, 6), "f4") + arrays[1][:, :1, :1, :1]

    def f(x, w):
        def turn(_, x):
            y = lax.conv(fnp.transpose(x, FIRST), fnp.transpose(w, (3, 2, 0, 1)), (1, 1), "SAME")
            return fnp.tanh(fnp.transpose(y, LAST))

        return lax.fori_loop(0, 3, turn, x).sum()

    got, wanted = fg.jit(fg.grad(f, (0, 1)))(x, w), fg.grad(f, (0, 1))(x, w)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "f",
    [
        turned,  # nothing follows
        lambda x, w: fnp.transpose(turned(x, w), (0, 3, 2, 1)),  # the result in another order
        lambda x, w: (y := turned(x, w), fnp.transpose(y, LAST)),  # it is read elsewhere, too
    ],
)
def test_others_stay(arrays, f):
    x, w = arrays
    assert "transpose" in names(f, x, w)
    for got, wanted in zip(fg.tree.leaves(fg.jit(f)(x, w)), fg.tree.leaves(f(x, w)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
