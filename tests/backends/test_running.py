"""Running sums of long rows in parts: against NumPy, in both directions, and short rows abreast."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends import running
from funcgrad.backends.running import OPS
from tests.backends.checks import check, floats, program

BOTH = pytest.mark.parametrize("reverse", [False, True])


@BOTH
@pytest.mark.parametrize("op", [*OPS, "cumlogsumexp"])
@pytest.mark.parametrize("shape", [(64,), (2, 72), (3, 1, 40), (67,), (8, 300), (2, 4, 257)])
def test_planned(op, shape, reverse, monkeypatch):
    monkeypatch.setattr(running, "LONG", 40)
    x = floats(*shape) if op != "cumprod" else 1 + floats(*shape) / 50
    axis = len(shape) - 1
    planned = check(lambda x: [getattr(lax, op)(x, axis=axis, reverse=reverse)], x)
    check(lambda x: [getattr(lax, op)(x + 1, axis=axis, reverse=reverse) * 2], x)
    cut = op in OPS and shape in [(64,), (2, 72), (3, 1, 40)]
    assert (len(planned.steps) > 2) == cut


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
@pytest.mark.parametrize("op", ["cumsum", "cummax", "cummin"])
def test_long_rows(op, dtype, reverse, rng):
    x = rng.integers(-5, 6, 70_000).astype(dtype)
    if dtype == "float16":
        x /= 64
    along = {"cumsum": np.add, "cummax": np.maximum, "cummin": np.minimum}[op].accumulate
    wide = x.astype(np.float64) if dtype[0] == "f" else x
    wanted = along(wide[::-1])[::-1] if reverse else along(wide)
    got = np.asarray(fg.jit(lambda x: getattr(lax, op)(x, reverse=reverse))(x))
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, wanted.astype(dtype), rtol=1e-3 if dtype == "float16" else 0)


def test_nan_reaches_all_later_parts(rng):
    x = rng.standard_normal((3, 1 << 15)).astype(np.float32)
    x[1, 20_000] = np.nan
    for op, ufunc in ((lax.cummax, np.maximum), (lax.cummin, np.minimum), (lax.cumsum, np.add)):
        got = np.asarray(fg.jit(lambda x, op=op: op(x, axis=1))(x))
        wanted = ufunc.accumulate(x, axis=1)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))


def test_many_or_odd_rows_stay_whole():
    for shape in ((64, 1 << 15), (32771,)):
        assert (
            len(program(lambda x: [lax.cumsum(x, axis=x.ndim - 1)], floats(*shape))[2].steps) == 1
        )
