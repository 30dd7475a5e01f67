"""Rounding in every float dtype; its derivatives are zero or absent, and say so."""

import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.aval import Zero
from funcgrad.errors import DifferentiationError, DTypeError
from funcgrad.ops.elementwise.rounding import (
    RoundingMethod,
    ceil,
    floor,
    is_finite,
    nextafter,
    round,
)
from funcgrad.transforms.autodiff.jvp import jvp_flat
from tests.ops.rules import check_dims, check_vmap, zero_tangent

HALVES = np.array([-2.5, -1.5, -0.5, -0.25, 0.0, 0.25, 0.5, 1.5, 2.5, 3.0])


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_whole_numbers(dtype):
    x = HALVES.astype(dtype)
    wide = x.astype(np.float64)
    away = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    for got, expected in [
        (floor(x), np.floor(wide)),
        (ceil(x), np.ceil(wide)),
        (round(x), away),
        (round(x, RoundingMethod.TO_NEAREST_EVEN), np.rint(wide)),
        (round(x, 1), np.rint(wide)),
    ]:
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got).astype(np.float64), expected)


def test_rounding_is_exact_next_to_a_half():
    x = np.array([0.49999997, 8388609.0, -0.3, np.inf, np.nan], np.float32)
    got = np.asarray(round(x))
    np.testing.assert_array_equal(got, np.float32([0, 8388609, 0, np.inf, np.nan]))
    assert np.signbit(got[2])


def test_unknown_rounding_method():
    with pytest.raises(ValueError, match="7"):
        round(1.0, 7)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_neighbours_and_finiteness(dtype):
    one = np.ones(3, dtype)
    up = np.asarray(nextafter(one, np.full(3, 2, dtype))).astype(np.float64)
    np.testing.assert_array_equal(up, 1 + float(dtypes.finfo(dtype).eps))
    x = np.array([1.0, np.nan]).astype(dtype)
    assert is_finite(x).dtype == dtypes.BOOL
    assert np.asarray(is_finite(x)).tolist() == [True, False]
    assert not is_finite(np.float32(-np.inf)).item()


@pytest.mark.parametrize("op", [floor, ceil, round, is_finite])
def test_flat_ops_have_zero_tangents(op, rng):
    x = Array(HALVES)
    tangents = jvp_flat(lambda x: [op(x)], [x], [x])[1]
    assert type(tangents[0]) is Zero
    check_vmap(op, [HALVES], rng)
    check_dims(op, [HALVES])


def test_neighbours_have_no_derivative():
    with pytest.raises(DifferentiationError, match="nextafter.*stop_gradient"):
        nextafter.differentiate((np.ones(2), np.ones(2)), (np.ones(2), zero_tangent(1.0)), {})


@pytest.mark.parametrize("op", [floor, ceil, round, is_finite])
def test_only_floats_are_rounded(op):
    with pytest.raises(DTypeError, match="need floating-point numbers, got i32"):
        op(3)
