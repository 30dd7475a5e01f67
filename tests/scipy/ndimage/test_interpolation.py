"""Arrays at coordinates against SciPy: orders, modes, dtypes, gradients, transforms, errors."""

import numpy as np
import pytest
from scipy import ndimage as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import ndimage

MODES = ["constant", "nearest", "wrap", "mirror", "reflect"]
PADS = {"nearest": "edge", "mirror": "reflect", "reflect": "symmetric"}


def expected(x, coordinates, order, mode, cval=0.0):
    """SciPy's values inside of the array that the mode extends: at its edges SciPy has others."""
    width = 2 * max(x.shape)
    pad = np.pad(
        x, width, PADS.get(mode, mode), **({"constant_values": cval} if mode == "constant" else {})
    )
    return sp.map_coordinates(pad, [c + width for c in coordinates], order=order)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (3, 2, 4)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "complex128"])
def test_map_coordinates(shape, mode, order, dtype, rng):
    x = rng.integers(0, 100, shape).astype(dtype)
    places = [rng.uniform(-0.75, 1.75, (2, 6)) * (n - 1) for n in shape]
    out = ndimage.map_coordinates(x, places, order, mode, cval=-1 if dtype != "uint8" else 1)
    assert out.dtype == dtype
    want = expected(x, places, order, mode, -1 if dtype != "uint8" else 1)
    exact = np.issubdtype(out.dtype, np.integer)
    np.testing.assert_allclose(out, want, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-4)


@pytest.mark.parametrize("order", [0, 1])
def test_halves_are_rounded_away_from_zero(order):
    x, places = np.arange(-3, 3), np.array([[0.5, 1.5, 2.5, 3.5]])
    found = ndimage.map_coordinates(x, places, order)
    np.testing.assert_array_equal(found, sp.map_coordinates(x, places, order=order))


def test_coordinates_of_integers_and_broadcast():
    x = np.arange(12.0).reshape(3, 4)
    rows, columns = np.array([[0], [2]]), np.array([1, 3])
    found = ndimage.map_coordinates(x, [rows, columns], order=1)
    np.testing.assert_array_equal(found, x[rows, columns])


def test_gradients_are_continuous():
    def loss(delta):
        x = fnp.arange(100.0)
        moved = ndimage.map_coordinates(x, [x + delta], order=1)
        return ((x - moved) ** 2)[10:-10].mean()

    np.testing.assert_allclose([fg.grad(loss)(0.5), fg.grad(loss)(1.0)], [1, 2], rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_map_coordinates_under_transforms(mode, rng):
    x, places = rng.standard_normal((3, 4)), rng.uniform(-1, 4, (5, 2, 6))

    def f(x, c):
        return ndimage.map_coordinates(x, list(c), 1, mode)

    want = np.stack([np.asarray(f(x, c)) for c in places])
    np.testing.assert_allclose(fg.jit(fg.vmap(f, (None, 0)))(x, places), want, atol=1e-12)
    weights = rng.standard_normal(6)
    value = fg.jit(lambda x, c: fnp.sum(f(x, c) * weights))
    h = 1e-6 * rng.standard_normal((2, 6))
    slope = (float(value(x, places[0] + h)) - float(value(x, places[0] - h))) / 2
    np.testing.assert_allclose(np.sum(fg.grad(value, 1)(x, places[0]) * h), slope, rtol=1e-4)
    np.testing.assert_allclose(fnp.sum(fg.grad(value)(x, places[0]) * x), value(x, places[0]))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", ["constant", "nearest"])
def test_transforms_of_the_plane_are_scipys(order, mode, rng):
    x = rng.standard_normal((6, 7))
    how = {"order": order, "mode": mode}
    of = {"order": order, "mode": "grid-constant" if mode == "constant" else mode}
    matrix = np.array([[0.9, 0.2], [-0.3, 1.1]])
    cases = [
        (ndimage.affine_transform, sp.affine_transform, (matrix, [0.3, -0.7]), {}),
        (ndimage.affine_transform, sp.affine_transform, (matrix, 0.3, (4, 9)), {}),
        (ndimage.affine_transform, sp.affine_transform, (np.array([1.3, 0.7]), 0.13), {}),
        (ndimage.affine_transform, sp.affine_transform, (np.c_[matrix, [0.4, 1.2]],), {}),
        (ndimage.shift, sp.shift, ((0.3, -1.2),), {}),
        (ndimage.zoom, sp.zoom, (1.7,), {}),
        (ndimage.zoom, sp.zoom, ((0.6, 2.0),), {"grid_mode": True}),
        (ndimage.rotate, sp.rotate, (31.0,), {}),
        (ndimage.rotate, sp.rotate, (-77.0, (0, 1), False), {}),
    ]
    for ours, theirs, args, kwargs in cases:
        want = theirs(x, *args, **kwargs, **of)
        np.testing.assert_allclose(ours(x, *args, **kwargs, **how), want, atol=1e-9)


def test_rotation_of_planes_of_a_volume(rng):
    x = rng.standard_normal((3, 5, 4))
    want = sp.rotate(x, 20, (2, 0), order=1, mode="nearest")
    np.testing.assert_allclose(ndimage.rotate(x, 20, (2, 0), mode="nearest"), want, atol=1e-9)


def test_angles_differentiate(rng):
    x = sp.gaussian_filter(rng.standard_normal((8, 8)), 1)

    @fg.jit
    def f(angle):
        return fnp.sum(ndimage.rotate(x, angle, reshape=False) ** 2)

    at = np.float64(12.0)
    slope = (float(f(at + 1e-5)) - float(f(at - 1e-5))) / 2e-5
    np.testing.assert_allclose(fg.grad(f)(at), slope, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: ndimage.map_coordinates(x, [x], 2), NotImplementedError, "requires order<=1"),
        (
            lambda x: ndimage.map_coordinates(x, [x], 1, mode="grid-wrap"),
            NotImplementedError,
            "does not yet support mode",
        ),
        (lambda x: ndimage.map_coordinates(x, [x, x], 1), ValueError, "sequence of length"),
        (lambda x: ndimage.map_coordinates(x, [x * 1j], 1), TypeError, "must be real"),
        (lambda x: ndimage.map_coordinates(x, 3, 1), TypeError, "coordinates must be a sequence"),
        (lambda x: ndimage.affine_transform(x, fnp.eye(3)), ValueError, "matrix must be of 1 rows"),
        (lambda x: ndimage.affine_transform(x, fnp.eye(1), 0, (2, 2)), ValueError, "output_shape"),
        (lambda x: ndimage.zoom(x, 0.0), ValueError, "leave nothing"),
        (lambda x: ndimage.rotate(x, 3.0, (0, 1, 2)), ValueError, "must be two axes"),
        (lambda x: ndimage.rotate(x, 3.0), ValueError, "axis 1 is out of range"),
    ],
)
def test_errors_say_what_was_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call(fnp.arange(5.0))
