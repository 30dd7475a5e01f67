"""Casts of floats of 8 bits and integers of 4: ml_dtypes' bits, and no step of the host's."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import dtypes, lax
from funcgrad.backends.program import HostStep, walk
from funcgrad.backends.rewrites.narrow import INTEGERS, loaded, stored
from tests.backends.cuda.simulated import planned

# All upper halves of float32, with lower ones that round each way.
UPPER = np.arange(1 << 16, dtype=np.uint32) << 16
BITS = np.concatenate([UPPER, UPPER | 1, UPPER | 0x8000, UPPER | 0xFFFF]).view(np.float32)


def same(got, want, dtype):
    """Equal codes, signs of NaN aside."""
    unknown = np.isnan(want.view(dtype).astype(np.float32))
    np.testing.assert_array_equal(got[~unknown], want[~unknown])
    assert np.isnan(got[unknown].view(dtype).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", dtypes.FLOAT8)
def test_floats_have_the_bits_of_ml_dtypes(dtype):
    with np.errstate(all="ignore"):
        same(stored(np, BITS, dtype), BITS.astype(dtype).view(np.uint8), dtype)
        codes = np.arange(256, dtype=np.uint8)
        got, want = loaded(np, codes, dtype), codes.view(dtype).astype(np.float32)
        # Doubles beside what is halfway between two floats of 8 bits become that in float32.
        x = BITS[np.isfinite(BITS)].astype(np.float64)
        for wide in (x * (1 + 2.0**-40), x * (1 - 2.0**-40), x):
            same(stored(np, wide, dtype), wide.astype(dtype).view(np.uint8), dtype)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("dtype", [*dtypes.FLOAT8[:3], *INTEGERS])
@pytest.mark.parametrize("other", ["float32", "bfloat16", "int32", "bool", "float8_e5m2"])
def test_there_and_back(dtype, other, rng):
    x = np.concatenate([rng.standard_normal(50) * 9, [0, -0.0, 1e9, -1e9]]).astype(np.float32)
    x = np.asarray(lax.convert_element_type(x, other))

    def f(x):
        narrow = lax.convert_element_type(x, dtype)
        return narrow, lax.convert_element_type(narrow, other)

    program = planned(f, x)
    assert not [s for s in walk(program.program.steps) if isinstance(s, HostStep)]
    for got, want in zip(program([x]), f(x), strict=True):
        np.testing.assert_array_equal(got.view(np.uint8), np.asarray(want).view(np.uint8))


@pytest.mark.parametrize(("source", "to"), [
    ("float8_e4m3fn", "uint8"), ("float64", "uint16"), ("uint8", "float8_e5m2"),
])  # fmt: skip
def test_bitcasts_are_copies(source, to, rng):
    x = np.asarray(fg.numpy.asarray(rng.standard_normal((5, 4))).astype(source))
    program = planned(lambda x: lax.bitcast_convert_type(x, to), x)
    assert not [s for s in walk(program.program.steps) if isinstance(s, HostStep)]
    np.testing.assert_array_equal(program([x])[0].view(np.uint8).ravel(), x.view(np.uint8).ravel())
