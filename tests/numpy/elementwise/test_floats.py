"""Mantissas and exponents against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import same, same_as_numpy

NAN, INF = np.nan, np.inf
TOLERANCE = {np.dtype("float32"): 3e-6, np.dtype("float64"): 1e-12, np.dtype("float16"): 2e-3}


def test_frexp_of_all_kinds_of_floats():
    for dtype in (np.float16, np.float32, np.float64):
        tiny = np.finfo(dtype).smallest_subnormal
        x = np.array([tiny, -3 * tiny, np.finfo(dtype).max, 0.1, -0.0, INF], dtype)
        m, e = fnp.frexp(Array(x))
        want_m, want_e = np.frexp(x)
        same(m, want_m)
        assert np.asarray(e)[:5].tolist() == want_e[:5].tolist()


@pytest.mark.parametrize("dtype", [d for d in dtypes.FLOATS if d.itemsize == 1], ids=str)
def test_frexp_of_every_float8(dtype):
    x = np.arange(256).astype(np.uint8).view(dtype)
    finite = np.isfinite(x.astype(np.float32))
    m, e = fnp.frexp(Array(x[finite]))
    want_m, want_e = np.frexp(x[finite].astype(np.float32))
    same(np.asarray(m).astype(np.float32), want_m)
    assert np.asarray(e).tolist() == want_e.tolist()


def test_ldexp():
    x = np.array([1.0, 0.75, -1.5, 1e-300, 1e300])
    n = np.array([3, -2, 1023, 1000, -1060], np.int32)
    same_as_numpy(fnp.ldexp, np.ldexp, x, n)
    with pytest.raises(DTypeError, match="y must be integers"):
        fnp.ldexp(1.0, 2.0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint8", "uint32", "uint64"])
def test_ldexp_by_powers_of_any_size(dtype, kind):
    """Zeros, infinities and NaN stay what they are, and nothing wraps."""
    limits = np.iinfo(kind)
    powers = [
        0,
        1,
        30,
        120,
        500,
        2**31,
        2**40,
        limits.max,
        -1,
        -30,
        -120,
        -500,
        -(2**40),
        limits.min,
    ]
    n = np.array([p for p in powers if limits.min <= p <= limits.max], kind)
    x = np.array([0.0, -0.0, 1.0, -1.5, INF, -INF, NAN, np.finfo(dtype).max], dtype)[:, None]
    with np.errstate(all="ignore"):
        want = np.ldexp(x, np.clip(n.astype(object), -9999, 9999).astype(np.int32))
    for f in (fnp.ldexp, jit(fnp.ldexp), vmap(fnp.ldexp, (0, None))):
        got = np.asarray(f(Array(x), Array(n)))
        same(got, want, rtol=TOLERANCE[x.dtype])
        assert (np.signbit(got) == np.signbit(want))[want == want].all()
