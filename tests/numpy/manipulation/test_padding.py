"""Every mode of pad against NumPy's."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ShapeError
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

MODES = [
    ("constant", {}),
    ("constant", {"constant_values": (3, 4)}),
    ("edge", {}),
    ("linear_ramp", {}),
    ("linear_ramp", {"end_values": (5, -4)}),
    ("maximum", {}),
    ("maximum", {"stat_length": 2}),
    ("minimum", {}),
    ("mean", {}),
    ("mean", {"stat_length": (2, 3)}),
    ("median", {}),
    ("reflect", {}),
    ("reflect", {"reflect_type": "odd"}),
    ("symmetric", {}),
    ("symmetric", {"reflect_type": "odd"}),
    ("wrap", {}),
]


@pytest.mark.parametrize(("mode", "options"), MODES)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
def test_modes(mode, options, dtype, rng):
    for shape in ((5,), (3, 4), (1,), (2, 1)):
        x = (rng.standard_normal(shape) * 10).astype(dtype)
        for width in (1, (2, 3), (7, 0), (0, 9)):
            same(fnp.pad(x, width, mode, **options), np.pad(x, width, mode, **options), rtol=1e-5)


@pytest.mark.parametrize(("mode", "options"), MODES)
def test_transforms(mode, options, rng):
    x = rng.standard_normal((3, 4))
    widths = ((1, 0), (2, 5))
    pad = lambda x: fnp.pad(x, widths, mode, **options)
    same_as_numpy(pad, lambda x: np.pad(x, widths, mode, **options), x)
    check_grad(pad, x)
    same_batched(pad, rng.standard_normal((2, 3, 4)))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_narrow_borders_are_slices_and_wide_ones_gathered(mode):
    def names(width):
        program = fg.make_jaxpr(lambda x: fnp.pad(x, width, mode))(fnp.arange(5.0)).jaxpr
        return {e.prim.name for e in program.eqns}

    assert "gather" not in names(2)
    assert names(29) >= {"gather"} or mode == "edge"


def test_widths():
    x = np.ones((2, 3))
    same(fnp.pad(x, {-1: (1, 2)}), np.pad(x, {-1: (1, 2)}))
    same(fnp.pad(x, [(1, 2)]), np.pad(x, [(1, 2)]))
    same(fnp.pad(x, np.array([[1, 2], [0, 1]])), np.pad(x, np.array([[1, 2], [0, 1]])))
    assert fnp.pad(x, 1, "empty").shape == (4, 5)
    assert fnp.pad(np.ones((0, 2)), 1).shape == (2, 4)


def test_values_for_each_end():
    x, values = np.ones((2, 2)), ((1, 2), (3, 4))
    same(
        fnp.pad(x, 1, constant_values=values),
        np.pad(x, 1, constant_values=values),
    )


def test_a_function_as_mode():
    def fill(vector, widths, axis, kwargs):
        return vector.at[: widths[0]].set(kwargs["low"]).at[vector.shape[0] - widths[1] :].set(9)

    def fill_in_place(vector, widths, axis, kwargs):
        vector[: widths[0]] = kwargs["low"]
        vector[vector.shape[0] - widths[1] :] = 9

    x = np.arange(6).reshape(2, 3)
    same(fnp.pad(x, (1, 2), fill, low=7), np.pad(x, (1, 2), fill_in_place, low=7))


ERRORS = [
    (lambda: fnp.pad(np.ones(2), 1, "bend"), ValueError, "mode must be one of"),
    (lambda: fnp.pad(np.ones(2), 1, "edge", constant_values=1), TypeError, "takes no constant"),
    (lambda: fnp.pad(np.ones(2), -1), ValueError, "must not be negative"),
    (lambda: fnp.pad(np.ones(2), (1, 2, 3)), ShapeError, "a pair for each of 1 axes"),
    (lambda: fnp.pad(np.ones(0), 1, "edge"), ShapeError, "nothing to extend"),
    (lambda: fnp.pad(np.ones(2), 1, "reflect", reflect_type="no"), ValueError, "'even' or 'odd'"),
    (lambda: fnp.pad([1, 2], 1), TypeError, "array is a list"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
