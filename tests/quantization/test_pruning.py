"""Pruning: masks, their derivatives, and the compressed form."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad import quantization as q
from funcgrad.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(0)


def normal(*shape):
    return fnp.asarray(RNG.standard_normal(shape), "float32")


@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_two_of_each_four_are_left(axis):
    w = normal(4, 8, 12)
    mask = np.moveaxis(np.asarray(q.mask_2_4(w, axis)), axis, -1).reshape(-1, 4)
    np.testing.assert_array_equal(mask.sum(1), 2)
    fours = np.abs(np.moveaxis(np.asarray(w), axis, -1).reshape(-1, 4))
    assert (np.where(mask, fours, np.inf).min(1) >= np.where(mask, 0, fours).max(1)).all()


def test_of_equal_ones_the_first_are_left():
    mask = q.mask_2_4(fnp.ones(4), -1)
    np.testing.assert_array_equal(mask, [True, True, False, False])
    np.testing.assert_array_equal(q.mask_2_4(fnp.zeros(4), -1), mask)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_compressed(axis, dtype):
    w = (normal(16, 8) * 20).astype(dtype)
    values, places = q.compress_2_4(w, axis)
    want = fnp.where(q.mask_2_4(w, axis), w, fnp.zeros((), dtype))
    np.testing.assert_array_equal(q.expand_2_4(values, places, axis), want)
    size = w.dtype.itemsize
    assert values.nbytes + places.nbytes == 128 * (size / 2 + 1 / 8)


def test_magnitudes():
    w = normal(10, 10)
    for sparsity in (0.0, 0.33, 0.9):
        mask = np.asarray(q.mask_magnitude(w, sparsity))
        assert mask.sum() == 100 - int(100 * sparsity)
    assert np.abs(np.asarray(w))[mask].min() >= np.abs(np.asarray(w))[~mask].max()


def test_derivatives_go_straight_through_and_what_is_left_out_decays():
    w, x = normal(8, 3), normal(5, 8)
    pf, pw = q.prune(lambda p, x: x @ p, w, decay=0.1)
    mask = np.asarray(q.mask_2_4(w))
    np.testing.assert_array_equal(pf(pw, x), x @ np.where(mask, w, 0))
    got = fg.grad(lambda p: fnp.sum(pf(p, x)))(pw).w
    whole = np.asarray(fg.grad(lambda w: fnp.sum(x @ w))(w))
    np.testing.assert_allclose(got, whole + 0.1 * np.where(mask, 0, w), rtol=1e-6)


def test_stacks_and_axes_of_the_program():
    params = {"w": normal(3, 8, 8), "o": normal(5, 8), "b": normal(8)}
    f = lambda p, x: (
        lax.scan(lambda h, w: (fnp.tanh(h @ w), None), x + p["b"], p["w"])[0] @ p["o"].T
    )
    x = normal(2, 8)
    pf, pparams = q.prune(f, params, inputs=(x,))
    assert (pparams["w"].axis, pparams["o"].axis) == (-2, -1)
    want = f(q.dequantize(pparams), x)
    np.testing.assert_allclose(fg.jit(pf)(pparams, x), want, rtol=1e-5, atol=1e-6)
    assert int((np.asarray(pparams["o"].dense()) == 0).sum()) == 20
    pf, pparams = q.prune(f, params, "w", 0.75)
    assert int(pparams["w"].mask.sum()) == 48
    assert pf(pparams, x).shape == (2, 5)


def test_what_is_refused():
    f, params = lambda p, x: x @ p["w"], {"w": normal(6, 4)}
    with pytest.raises(ShapeError, match="prune: the parameter w of shape .* a multiple of four"):
        q.prune(f, params, "w")
    with pytest.raises(ArgumentError, match="prune: the rule 'v' matches none"):
        q.prune(f, params, "v")
    with pytest.raises(ArgumentError, match=r"sparsity must be in \[0, 1\), got 1"):
        q.prune(f, params, "w", 1)
    with pytest.raises(ShapeError, match="must be a multiple of four"):
        q.mask_2_4(params["w"])
    with pytest.raises(ShapeError, match="must be a multiple of eight"):
        q.compress_2_4(normal(4, 4))
