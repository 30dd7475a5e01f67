"""ravel_pytree and back."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, tree
from funcgrad.flatten_util import ravel_pytree


def test_there_and_back():
    pytree = {"a": np.ones((2, 2)), "b": [3, fnp.ones(2, bool)], "c": None, "d": fnp.zeros((0, 3))}
    flat, unravel = ravel_pytree(pytree)
    assert flat.dtype == np.float64
    np.testing.assert_array_equal(flat, [1, 1, 1, 1, 3, 1, 1])
    back = fg.jit(unravel)(2 * flat)
    assert tree.structure(back) == tree.structure(pytree)
    assert [x.dtype.name for x in tree.leaves(back)] == ["float64", "int32", "bool", "float32"]
    np.testing.assert_array_equal(back["a"], np.full((2, 2), 2.0))


def test_derivatives_and_batches():
    params = {"w": fnp.ones((3, 2)), "b": fnp.ones(2)}
    flat, unravel = ravel_pytree(params)
    loss = lambda p: fnp.sum(p["w"] ** 2) + fnp.sum(p["b"] ** 3)
    grads = fg.grad(lambda v: loss(unravel(v)))(flat)
    np.testing.assert_allclose(grads, ravel_pytree(fg.grad(loss)(params))[0])
    assert fg.vmap(unravel)(fnp.stack([flat, flat]))["w"].shape == (2, 3, 2)


def test_nothing_and_one():
    flat, unravel = ravel_pytree([])
    assert (flat.shape, unravel(flat)) == ((0,), [])
    with fg.default_dtype("float64"):
        assert ravel_pytree([])[0].dtype == np.float64
    assert ravel_pytree(3)[0].tolist() == [3]


def test_other_vectors():
    flat, unravel = ravel_pytree({"a": fnp.ones(3)})
    with pytest.raises(errors.ShapeError, match=r"unravel: need a vector of shape \(3,\), got"):
        unravel(flat[:2])
    with pytest.raises(errors.DTypeError, match="unravel: need a vector of dtype float32, got"):
        unravel(flat.astype("float64"))
