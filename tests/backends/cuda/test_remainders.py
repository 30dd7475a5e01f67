"""fmod in exact steps, against NumPy's at special values and many magnitudes."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from tests.backends.cuda.simulated import simulated


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fmod_is_exact(dtype, rng):
    info = np.finfo(dtype)
    special = [0, 1, 1.5, 3, info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan]
    special = np.array([*special, *(-v for v in special)], dtype)
    a, b = (v.ravel() for v in np.meshgrid(special, special))
    many = [rng.standard_normal(2000) * 2.0 ** rng.integers(-30, 30, 2000) for _ in range(2)]
    a, b = (np.concatenate([x, y.astype(dtype)]) for x, y in zip((a, b), many, strict=True))
    with np.errstate(invalid="ignore"):
        want = np.fmod(a, b)
    got = np.asarray(simulated(fnp.fmod)(a, b))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[want == 0], np.signbit(want)[want == 0])
