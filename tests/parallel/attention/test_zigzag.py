"""The zigzag order, there and back."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.parallel import unzigzag, zigzag


@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_devices_have_an_early_and_a_late_part(devices, axis, rng):
    x = rng.normal(size=(20, 20, 20))
    got = zigzag(x, devices, axis)
    parts = np.split(x, 2 * devices, axis)
    for i, own in enumerate(np.split(np.asarray(got), devices, axis)):
        early, late = np.split(own, 2, axis)
        np.testing.assert_array_equal(early, parts[i])
        np.testing.assert_array_equal(late, parts[2 * devices - 1 - i])
    np.testing.assert_array_equal(unzigzag(got, devices, axis), x)


def test_trees_and_gradients(rng):
    x = rng.normal(size=(3, 8))
    found = zigzag({"a": x, "b": np.arange(8)[None]}, 2)
    np.testing.assert_array_equal(found["b"][0], [0, 1, 6, 7, 2, 3, 4, 5])
    weights = rng.normal(size=(3, 8))
    got = fg.grad(lambda x: fnp.sum(zigzag(x, 2) * weights))(x)
    np.testing.assert_allclose(got, unzigzag(weights, 2))


def test_bad_input():
    with pytest.raises(ShapeError, match=r"zigzag: axis 1 of shape \(2, 6\) must be divisible by"):
        zigzag(np.ones((2, 6)), 2)
    with pytest.raises(ShapeError, match=r"unzigzag: axis 2 is none of an array of shape \(2, 8\)"):
        unzigzag(np.ones((2, 8)), 2, axis=2)
    with pytest.raises(ArgumentError, match="devices must be a positive integer, got 0"):
        zigzag(np.ones((2, 8)), 0)
