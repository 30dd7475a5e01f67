"""choose, select and piecewise against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import ConcretizationError, OutOfBoundsError
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.derivatives.linear import jvp
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

X = np.linspace(-2, 2, 6)
OURS = {np.square: fnp.square, np.cos: fnp.cos}


@pytest.mark.parametrize("mode", ["wrap", "clip"])
def test_choose(mode):
    choices = [np.arange(3.0), np.arange(3.0)[:, None] * 10, np.float64(7)]
    a = np.array([[0, 5, -1]])
    same_as_numpy(
        lambda a: fnp.choose(a, choices, mode=mode), lambda a: np.choose(a, choices, mode=mode), a
    )


def test_choose_of_known_numbers():
    choices = np.arange(6.0).reshape(2, 3)
    a = np.array([1, 0, 1])
    same(fnp.choose(a, choices), np.choose(a, choices))
    with pytest.raises(OutOfBoundsError, match="a must be from 0 to 1"):
        fnp.choose(a + 1, choices)
    with pytest.raises(ConcretizationError, match="mode='clip'"):
        jit(lambda a: fnp.choose(a, choices), backend="numpy")(a)


def test_select():
    f = lambda xp: lambda x: xp.select([x < -1, x > 1, x > 0], [x, x * x, -x], 9)
    same_as_numpy(f(fnp), f(np), X)
    check_grad(f(fnp), X)
    same_batched(f(fnp), X.reshape(2, 3))
    same(fnp.select([X < 0], [np.float32(1)], np.int32(2)), np.where(X < 0, 1, 2), dtype=False)
    with pytest.raises(ValueError, match="1 conditions and 2 choices"):
        fnp.select([X < 0], [X, X])


def test_piecewise():
    for conditions in ([X < 0, X > 1], [X < 0, X >= -1]):
        for functions in ([np.square, 3.0], [np.square, lambda x: -x, np.cos]):
            ours = [
                fnp.square if f is np.square else fnp.cos if f is np.cos else f for f in functions
            ]
            same(fnp.piecewise(X, conditions, ours), np.piecewise(X, conditions, functions))
    same(fnp.piecewise(X, X > 0, [1]), np.piecewise(X, X > 0, [1]))
    same(
        fnp.piecewise(np.int32([1, 5]), [np.array([True, False])], [2.7, lambda x, b: x * b], 3),
        np.piecewise(np.int32([1, 5]), [np.array([True, False])], [2.7, lambda x, b: x * b], 3),
    )
    with pytest.raises(ValueError, match="need 1 or 2 functions, got 3"):
        fnp.piecewise(X, [X > 0], [1, 2, 3])


def test_piecewise_keeps_nan_out_of_derivatives():
    f = lambda x: fnp.sum(fnp.piecewise(x, [x > 0], [fnp.log, lambda x: x * 0]))
    x = np.float64([0.0, -1.0, 2.0])
    same(grad(f)(x), [0.0, 0.0, 0.5])
    same(jvp(f, (x,), (np.ones(3),))[1], np.float64(0.5))
    check_grad(lambda x: fnp.piecewise(x, [x > 0], [fnp.sin]), X)


@pytest.mark.parametrize("transformed", [grad, lambda f: jit(grad(f))])
def test_piecewise_keeps_nan_out_of_what_functions_close_over(transformed):
    x = np.float64([-1.0, 0.0, 2.0])
    log = lambda w: fnp.sum(fnp.piecewise(x, [x > 0], [lambda e: fnp.log(e) * w, lambda e: e * w]))
    same(transformed(log)(np.float64(3)), np.log(2.0) - 1.0)
    root = lambda w: fnp.sum(fnp.piecewise(x, [x > 3], [lambda e: fnp.sqrt(w) * e, lambda e: e]))
    same(transformed(root)(np.float64(0)), np.float64(0))
    same(vmap(transformed(root))(np.float64([0, 1])), np.float64([0, 0]))


def test_piecewise_functions_get_one_element():
    shapes = []
    fnp.piecewise(X.reshape(2, 3), [X.reshape(2, 3) > 0], [lambda e: shapes.append(e.shape) or e])
    assert set(shapes) == {()}
    assert fnp.piecewise(X[:0], [X[:0] > 0], [fnp.sin]).shape == (0,)
