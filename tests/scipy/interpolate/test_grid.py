"""`RegularGridInterpolator` against SciPy: methods, fills, axes, derivatives, errors."""

import numpy as np
import pytest
from scipy import interpolate as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy.interpolate import RegularGridInterpolator


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spaces", [((0.0, 10.0, 10),), ((-15.0, 20.0, 12), (3.0, 4.0, 24))])
@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("fill", [np.nan, 2.0, None])
@pytest.mark.parametrize("trailing", [(), (3,)])
def test_values_are_scipys(spaces, method, fill, trailing, rng):
    points = tuple(np.linspace(*s) for s in spaces)
    values = rng.standard_normal((*map(len, points), *trailing))
    at = np.stack([rng.uniform(a - 1, b + 1, (5, 7)) for a, b, _ in spaces], -1)
    want = sp.RegularGridInterpolator(points, values, method, False, fill)(at)
    ours = RegularGridInterpolator(points, values, method, False, fill)
    np.testing.assert_allclose(ours(at), want, atol=1e-10)
    np.testing.assert_allclose(fg.jit(ours)(at), want, atol=1e-10)
    np.testing.assert_allclose(fg.vmap(ours)(at), want, atol=1e-10)
    np.testing.assert_allclose(ours(tuple(np.moveaxis(at, -1, 0))), want, atol=1e-10)
    np.testing.assert_array_equal(
        ours(np.stack([p[:2] for p in points], -1), "nearest").shape[0], 2
    )


def test_derivatives(rng):
    points, values = (np.arange(4.0), np.arange(5.0)), rng.standard_normal((4, 5))
    at = rng.uniform(0.1, 2.9, (6, 2))
    f = lambda at, values: RegularGridInterpolator(points, values)(at)
    by_values = fg.jacrev(f, 1)(at, values)
    np.testing.assert_allclose(np.einsum("kij,ij->k", by_values, values), f(at, values))
    h = 1e-6 * rng.standard_normal(at.shape)
    slope = (np.asarray(f(at + h, values)) - np.asarray(f(at - h, values))) / 2
    _, found = fg.jvp(lambda at: f(at, values), (at,), (h,))
    np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (((np.ones(2),) * 2, np.ones(2)), "there are 2 point arrays, but values has 1 dimensions"),
        (((np.ones(3),), np.ones(2)), "there must be a point"),
        (((np.arange(2.0),), np.ones(2), "cubic"), "method 'cubic' is not defined"),
        (((np.arange(2.0),), np.ones(2), "linear", False, 1j), "fill_value must be either"),
    ],
)
def test_errors_say_what_was_wrong(args, words):
    with pytest.raises(ValueError, match=words):
        RegularGridInterpolator(*args)


def test_more_errors():
    f = RegularGridInterpolator((np.arange(2.0),) * 2, np.ones((2, 2)))
    with pytest.raises(ValueError, match="sample points xi have dimension"):
        f(fnp.ones((4, 3)))
    with pytest.raises(NotImplementedError, match="bounds_error takes no effect"):
        RegularGridInterpolator((np.arange(2.0),), np.ones(2), "linear", True)
