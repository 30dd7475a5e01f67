"""x.at[idx]: functions of elements selected several times, and negative indices that don't wrap."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same

X = np.linspace(-1, 1, 12).reshape(4, 3)
INDICES = [
    np.array([0, 2, 0, 0, -1]), (np.array([1, 1, -3]), np.array([2, 2, 2])),
    (slice(None), np.array([0, 0])), np.array([[0], [0]]), (np.array([3, 3]), None), 2,
    slice(1, 3), X > 0, [0, 0], np.zeros(0, int), (Ellipsis, np.array([1, 1, 1])),
]  # fmt: skip


def square(v):
    return v * v + 1


def expected(x, idx):
    """As often as an element is selected: by positions, one after the other."""
    flat = x.ravel().copy()
    for place in np.arange(x.size).reshape(x.shape)[idx].ravel():
        flat[place] = square(flat[place])
    return flat.reshape(x.shape)


@pytest.mark.parametrize("idx", INDICES, ids=str)
def test_functions_apply_as_often_as_elements_are_selected(idx):
    want = expected(X, idx)
    apply = lambda x: x.at[idx].apply(square)
    for run in (apply, jit(apply), lambda x: vmap(apply)(fnp.stack([x, x]))[1]):
        same(run(fnp.array(X)), want)
    check_grad(apply, X)
    if isinstance(idx, np.ndarray) and idx.dtype != bool:
        traced = lambda x, i: x.at[i].apply(square)
        same(jit(traced)(X, idx), want)
        same(vmap(traced)(np.stack([X, X]), np.stack([idx, idx]))[1], want)
        check_grad(lambda x: jit(traced)(x, idx), X)


def test_many_traced_indices_and_those_that_are_unique():
    i = np.arange(300) % 12
    want = X.ravel().copy()
    for place in i:
        want[place] = square(want[place]) / 2
    f = lambda x, i, **o: x.at[i].apply(lambda v: square(v) / 2, **o)
    same(jit(f)(X.ravel(), i), want, rtol=1e-5)
    once = lambda x, i: fnp.sum(f(x, i, unique_indices=True))
    x = np.linspace(-1, 1, 100)
    same(jit(grad(once))(x, np.arange(100)[::-1].copy()), x)


def test_derivatives_stay_finite_where_the_function_is_not_applied():
    x = fnp.array([4.0, 16.0, 0.0])
    for run in (lambda f: f, jit):
        f = run(lambda x, i: x.at[i].apply(lambda v: fnp.log(v)).sum())
        np.testing.assert_allclose(
            grad(f)(x, np.array([1, 1, 0])), [0.25, 1 / (16 * np.log(16)), 1], rtol=1e-6
        )


def test_scatter_apply():
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    at = np.array([[1], [3], [1], [9]])
    f = lambda x, i: lax.scatter_apply(x, i, square, numbers, update_shape=(4, 3), mode="drop")
    want = expected(X, np.array([1, 3, 1]))
    for run in (f, jit(f)):
        same(run(X, at), want)
    check_grad(lambda x: f(x, at), X)
    check_grad(lambda x: jit(f)(x, at), X)


@pytest.mark.parametrize("traced", [True, False])
def test_negative_indices_that_do_not_wrap(traced):
    x, at = np.arange(5.0), np.array([-1, 7, -9, 2])
    option = {"wrap_negative_indices": False}
    run = (lambda f: jit(f)(x, at)) if traced else (lambda f: f(fnp.array(x), fnp.array(at)))
    same(run(lambda x, i: x.at[i].get(mode="clip", **option)), np.array([0.0, 4, 0, 2]))
    same(run(lambda x, i: x.at[i].get(mode="fill", fill_value=9, **option)),
         np.array([9.0, 9, 9, 2]))  # fmt: skip
    same(run(lambda x, i: x.at[i].set(9.0, mode="drop", **option)), np.array([0.0, 1, 9, 3, 4]))
    same(run(lambda x, i: x.at[i].add(1.0, mode="clip", **option)), np.array([2.0, 1, 3, 3, 5]))
    same(run(lambda x, i: x.at[i].apply(square, mode="drop", **option)),
         np.array([0.0, 1, 5, 3, 4]))  # fmt: skip
    same(run(lambda x, i: fnp.take_along_axis(x, i, 0, "clip", **option)),
         np.array([0.0, 4, 0, 2]))  # fmt: skip
    same(run(lambda x, i: x.at[-1].get(mode="fill", fill_value=7, **option)), np.array(7.0))
    same(run(lambda x, i: x.at[-1].set(7.0, mode="clip", **option)), np.array([7.0, 1, 2, 3, 4]))
