"""`check_grads` passes where derivatives are right, and fails where one is wrong."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.test_util import check_grads, check_jvp, check_vjp


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_right_derivatives_pass(dtype, rng):
    x = rng.standard_normal((2, 3)).astype(dtype)
    y = rng.standard_normal((3, 2)).astype(dtype)
    check_grads(lambda x, y: {"z": fnp.sin(x @ y)}, (x, y), order=2)


def test_integers_have_no_derivatives():
    check_grads(lambda x, n: x**n, (2.0, 3), order=2)


@fg.custom_jvp
def wrong(x):
    return fnp.sin(x)


wrong.defjvps(lambda t, out, x: t * fnp.sin(x))


@fg.custom_jvp
def wrong_later(x):
    return fnp.sin(x)


wrong_later.defjvps(lambda t, out, x: t * wrong(x + np.pi / 2))


@pytest.mark.parametrize("mode", ["fwd", "rev"])
def test_wrong_derivatives_fail(mode):
    with pytest.raises(AssertionError, match=f"{'jvp' if mode == 'fwd' else 'vjp'} of f"):
        check_grads(wrong, (1.0,), order=1, modes=[mode])
    check_grads(wrong_later, (1.0,), order=1, modes=[mode])
    with pytest.raises(AssertionError, match="of .* of f"):
        check_grads(wrong_later, (1.0,), order=2, modes=[mode])


def test_wrong_values_fail():
    with pytest.raises(AssertionError, match="the value"):
        check_jvp(fnp.sin, lambda p, t: fg.jvp(fnp.cos, p, t), (1.0,))
    with pytest.raises(AssertionError, match="the value"):
        check_vjp(fnp.sin, lambda x: fg.vjp(fnp.cos, x), (1.0,))


def test_modes_that_are_none():
    with pytest.raises(ValueError, match="modes are 'fwd' and 'rev', got 'both'"):
        check_grads(fnp.sin, (1.0,), 1, modes=["both"])


def test_tolerances_by_dtype():
    loose = {np.float32: 3.0, np.dtype("float64"): 1e-9}
    check_grads(wrong, (np.float32(1),), 1, atol=loose)
    with pytest.raises(AssertionError, match="of f"):
        check_grads(wrong, (np.float64(1),), 1, atol=loose)
    with pytest.raises(AssertionError, match="of f"):
        check_grads(wrong, (np.float32(1),), 1, atol={np.float64: 3.0})
