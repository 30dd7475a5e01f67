"""Cubic curves against SciPy: ends, derivatives, axes, extrapolation, transforms, errors."""

import numpy as np
import pytest
from scipy import interpolate as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import interpolate

KINDS = [("CubicSpline", {"bc_type": b}) for b in ("not-a-knot", "natural", "clamped")]
KINDS += [("PchipInterpolator", {})]


@pytest.mark.parametrize(("name", "how"), KINDS)
@pytest.mark.parametrize("n", [2, 3, 4, 9])
@pytest.mark.parametrize("axis", [0, 1])
def test_values_are_scipys(name, how, n, axis, rng):
    x = np.arange(n) + rng.uniform(-0.3, 0.3, n)
    y = rng.standard_normal((n, n)).round(1)
    at = rng.uniform(x[0] - 0.5, x[-1] + 0.5, (2, 6))
    ours, theirs = getattr(interpolate, name), getattr(sp, name)
    for nu in range(4):
        want = theirs(x, y, axis=axis, **how)(at, nu)
        found = ours(x, y, axis, **how)(at, nu)
        np.testing.assert_allclose(found, want, rtol=1e-7, atol=1e-9)
    inside = ours(x, y, axis, extrapolate=False, **how)(at)
    want = theirs(x, y, axis=axis, extrapolate=False, **how)(at)
    np.testing.assert_allclose(inside, want, rtol=1e-7, atol=1e-9)


def test_hermite(rng):
    x, y, d = np.arange(4.0), rng.standard_normal(4), rng.standard_normal(4)
    at = rng.uniform(-1, 4, 9)
    want = sp.CubicHermiteSpline(x, y, d)(at)
    np.testing.assert_allclose(interpolate.CubicHermiteSpline(x, y, d)(at), want, atol=1e-10)


@pytest.mark.parametrize(("name", "how"), KINDS)
def test_transforms(name, how, rng):
    x, y, at = np.arange(6.0), rng.standard_normal(6), rng.uniform(0, 5, 7)

    def f(x, y, at):
        return getattr(interpolate, name)(x, y, **how)(at)

    want = f(x, y, at)
    np.testing.assert_allclose(fg.jit(f)(x, y, at), want, atol=1e-12)
    np.testing.assert_allclose(fg.vmap(f, (None, None, 0))(x, y, at), want, atol=1e-12)
    for i in range(3):
        h = 1e-6 * rng.standard_normal((x, y, at)[i].shape)
        ends = [
            f(*(v + (s * h if k == i else 0) for k, v in enumerate((x, y, at)))) for s in (1, -1)
        ]
        slope = (np.asarray(ends[0]) - np.asarray(ends[1])) / 2
        np.testing.assert_allclose(fg.jacrev(f, i)(x, y, at) @ h, slope, rtol=1e-4, atol=1e-11)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: interpolate.CubicSpline(x, x[1:]), "x must be a vector of at least 2 places"),
        (lambda x: interpolate.CubicSpline(x[:1], x[:1]), "at least 2 places"),
        (lambda x: interpolate.CubicSpline(x, x, bc_type="odd"), "bc_type must be not-a-knot"),
        (lambda x: interpolate.CubicHermiteSpline(x, x, x[1:]), "dydx must have y's shape"),
        (lambda x: interpolate.PchipInterpolator(x, x)(x, -1), "nu must be non-negative"),
    ],
)
def test_errors_say_what_was_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call(fnp.arange(4.0))
