"""Formats to the bit: rounding, ties, zero points, packing, tables, exponents."""

import ml_dtypes
import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.optim.eight_bit import dynamic_map
from funcgrad.quantization import (
    formats,
    quantize_float8,
    quantize_int,
    quantize_mxfp4,
    quantize_nf4,
    sqnr,
)

RNG = np.random.default_rng(0)


def normal(*shape):
    return fnp.asarray(RNG.standard_normal(shape), "float32")


def test_zero_points_are_added_after_rounding():
    """At ties with odd zero points the two orders differ: round(0.5) + 1 = 1, round(1.5) = 2."""
    x = fnp.array([0.5, 1.5, 2.5, -0.5, -1.5])
    for z in (0.0, 1.0, 3.0, 127.0):
        got = formats.to_codes(x, np.float32(1), np.float32(z), -128, 127)
        np.testing.assert_array_equal(got, np.minimum(np.round(np.asarray(x)) + z, 127))


def test_division_is_a_division():
    """x · (1/s) rounds twice."""
    s = np.float32(0.1)
    x = fnp.asarray(np.arange(-127, 128, dtype=np.float32) * s * np.float32(1.5))
    got = formats.to_codes(x, s, np.float32(0), -127, 127)
    np.testing.assert_array_equal(got, np.clip(np.round(np.asarray(x) / s), -127, 127))


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_packing_is_undone(bits, axis):
    codes = fnp.asarray(RNG.integers(0, 2**bits, (8, 4, 12)), "uint8")
    packed = formats.pack(codes, bits, axis)
    assert packed.size == codes.size * bits // 8
    np.testing.assert_array_equal(formats.unpack(packed, bits, axis), codes)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(8, 0), (8, 16), (4, 0), (4, 32), (2, 32)])
def test_integers_against_numpy(bits, group, symmetric):
    w = normal(64, 6) + 0.5
    got = quantize_int(w, bits, group, symmetric=symmetric)
    x = np.asarray(w).reshape(-1, group or 64, 6)
    if symmetric:
        top = 2 ** (bits - 1) - 1
        s = np.abs(x).max(1, keepdims=True) / np.float32(top)
        want = np.clip(np.round(x / s), -top, top) * s
    else:
        top = 2**bits - 1
        low, high = np.minimum(x.min(1, keepdims=True), 0), np.maximum(x.max(1, keepdims=True), 0)
        s = (high - low) / np.float32(top)
        z = np.clip(0 - np.round(low / s), 0, top)
        want = (np.clip(np.round(x / s) + z, 0, top) - z) * s
    np.testing.assert_array_equal(got.dense(), want.reshape(64, 6))
    scales = got.scale.size * (4 if symmetric else 5)
    assert got.nbytes == 64 * 6 * bits // 8 + scales


def test_zeros_stay_zeros():
    for f in (quantize_int, quantize_nf4, quantize_float8, quantize_mxfp4):
        np.testing.assert_array_equal(f(fnp.zeros((64, 2))).dense(), np.zeros((64, 2)))
    asymmetric = quantize_int(fnp.array([[0.0], [3.0], [-0.7], [0.0]]), 4)
    np.testing.assert_array_equal(np.asarray(asymmetric.dense())[[0, 3]], 0)


def test_nf4():
    np.testing.assert_array_equal(
        formats.nearest(fnp.asarray(formats.NF4_TABLE), formats.NF4_TABLE), np.arange(16)
    )
    x = RNG.uniform(-1, 1, 1000).astype(np.float32)
    got = formats.nearest(fnp.asarray(x), formats.NF4_TABLE)
    np.testing.assert_array_equal(got, np.abs(x[:, None] - formats.NF4_TABLE).argmin(1))
    w = quantize_nf4(normal(1024, 1024))
    assert w.nbytes == 1024**2 // 2 + 1024**2 // 64 + 4 * (1024**2 // 64 // 256) + 4
    assert w.bits == pytest.approx(4.127, abs=5e-4)
    assert quantize_nf4(normal(64, 4), double_quant=False).bits == 4.5


def test_the_nearest_of_a_long_table():
    table = dynamic_map(signed=True)
    x = RNG.uniform(-1, 1, 500).astype(np.float32)
    got = np.asarray(formats.nearest(fnp.asarray(x), table))
    np.testing.assert_array_equal(np.abs(x - table[got]), np.abs(x[:, None] - table).min(1))


def test_float8_and_e2m1_against_ml_dtypes():
    x = np.concatenate([RNG.standard_normal(2000) * 3, np.arange(-8, 8, 0.125)]).astype(np.float32)
    want = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    got = formats.to_float8(fnp.asarray(x), "float8_e4m3fn")
    np.testing.assert_array_equal(np.asarray(got), want)
    want = np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(formats.from_e2m1(formats.to_e2m1(fnp.asarray(x))), want)


def test_shared_exponents():
    amax = np.array([0.0, 1e-40, 0.99, 1.0, 1.99, 2.0, 7.9, 3e38], np.float32)
    got = np.asarray(formats.shared_exponent(fnp.asarray(amax), 2)).astype(int) - 127
    want = [-127, -127, -3, -2, -2, -1, 0, 125]
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(
        formats.power_of_two(fnp.array([0, 1, 127, 254], "uint8")),
        np.float32([2.0**-127, 2.0**-126, 1, 2.0**127]),
    )


@pytest.mark.parametrize(
    ("encode", "least", "most"),
    [
        (lambda w: quantize_int(w), 38, 45),
        (lambda w: quantize_int(w, axes=(-1, -2)), 37, 41),
        (lambda w: quantize_int(w, 4, 128, symmetric=True), 18, 20),
        (lambda w: quantize_int(w, 4, 32, symmetric=True), 19.5, 21),
        (lambda w: quantize_int(w, 4, 32), 21, 22.5),
        (lambda w: quantize_nf4(w), 20.4, 21),
        (lambda w: quantize_nf4(w, double_quant=False), 20.4, 21),
        (lambda w: quantize_float8(w), 31, 32),
        (lambda w: quantize_float8(w, "float8_e5m2", "tensor"), 25, 26),
        (lambda w: quantize_mxfp4(w), 18.4, 19.2),
    ],
)
def test_signal_to_noise(encode, least, most):
    w = normal(512, 128)
    assert least <= sqnr(w, encode(w).dense()) <= most


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: quantize_int(fnp.ones((6, 2)), 4, 4), ShapeError, "groups of 4 don't divide"),
        (lambda: quantize_int(fnp.ones((5, 2)), 4), ShapeError, "2 codes are a byte"),
        (lambda: quantize_int(fnp.ones((6, 2)), 3), ArgumentError, "bits must be 8, 4 or 2, got 3"),
        (lambda: quantize_int(fnp.ones((4, 2), "int32")), DTypeError, "need an array of floats"),
        (lambda: quantize_nf4(fnp.ones((60, 2))), ShapeError, "groups of 64 don't divide"),
        (lambda: quantize_mxfp4(fnp.ones((60, 2))), ShapeError, "groups of 32 don't divide"),
        (lambda: quantize_float8(fnp.ones((6, 2)), "int8"), DTypeError, "one of float8"),
        (lambda: quantize_float8(fnp.ones((6, 2)), per="col"), ArgumentError, "'row' or 'tensor'"),
    ],
)
def test_bad_arguments(call, error, words):
    with pytest.raises(error, match=words):
        call()
