"""Running sums of long rows in parts: against NumPy, in both directions, and short rows abreast."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.llvm.rewrites import running
from funcgrad.backends.llvm.rewrites.running import running_p
from tests.backends.checks import check, floats, integers, program

OPS = ["cumsum", "cumprod", "cummax", "cummin"]
BOTH = pytest.mark.parametrize("reverse", [False, True])


@BOTH
@pytest.mark.parametrize("op", [*OPS, "cumlogsumexp"])
@pytest.mark.parametrize("shape", [(64,), (2, 72), (3, 1, 40), (263,), (8, 300), (2, 4, 257)])
def test_planned(op, shape, reverse, monkeypatch):
    monkeypatch.setattr(running, "LONG", 40)
    x = floats(*shape) if op != "cumprod" else 1 + floats(*shape) / 50
    axis = len(shape) - 1
    planned = check(lambda x: [getattr(lax, op)(x, axis=axis, reverse=reverse)], x)
    check(lambda x: [getattr(lax, op)(x + 1, axis=axis, reverse=reverse) * 2], x)
    cut = op in OPS and op != "cumprod" and shape in [(64,), (2, 72), (3, 1, 40)]
    assert (len(planned.steps) > 2) == cut


@pytest.mark.sampled(2)
@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
@pytest.mark.parametrize("op", ["cumsum", "cummax", "cummin", "cumprod"])
def test_long_rows(op, dtype, reverse, rng):
    x = rng.integers(-5, 6, 70_000).astype(dtype)
    if dtype == "float16":
        x /= 64
    how = {"cumsum": "add", "cummax": "maximum", "cummin": "minimum", "cumprod": "multiply"}[op]
    # Products of float32 are rounded at each element, all else is exact, or summed in more.
    once = dtype[0] == "f" and (op, dtype) != ("cumprod", "float32")
    wide = x.astype(np.float64) if once else x
    along = partial(getattr(np, how).accumulate, dtype=wide.dtype)
    wanted = along(wide[::-1])[::-1] if reverse else along(wide)
    got = np.asarray(fg.jit(lambda x: getattr(lax, op)(x, reverse=reverse))(x))
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, wanted.astype(dtype), rtol=1e-3 if dtype == "float16" else 0)


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_products_whose_parts_overflow_or_vanish(dtype, reverse):
    """0 stays 0, and what is large once is small again: no part is multiplied by itself."""
    x = np.ones(1 << 15, dtype)
    x[::4], x[2::4] = 64, 1 / 64
    x[5_000:9_000:4] = 1
    zero = x * 0 + 64
    zero[100] = zero[-100] = 0
    large = np.ones_like(x)
    large[:100], large[2_000:4_000], large[6_000:8_000] = np.inf, -64, 64
    for rows in (x, zero, large):
        with np.errstate(over="ignore"):
            wanted = lax.cumprod(rows, reverse=reverse)
        got = fg.jit(lambda x: lax.cumprod(x, reverse=reverse))(rows)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_nan_reaches_all_later_parts(rng):
    x = rng.standard_normal((3, 1 << 15)).astype(np.float32)
    x[1, 20_000] = np.nan
    for op, ufunc in ((lax.cummax, np.maximum), (lax.cummin, np.minimum), (lax.cumsum, np.add)):
        got = np.asarray(fg.jit(lambda x, op=op: op(x, axis=1))(x))
        wanted = ufunc.accumulate(x, axis=1)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))


@BOTH
@pytest.mark.parametrize("how", ["add", "multiply", "maximum", "minimum"])
def test_sums_that_begin_with_others(how, reverse):
    """What kernels do is what the rule for NumPy says, and that what is said here."""
    along = getattr(np, how).accumulate
    for x, before in (
        (1 + floats(3, 9) / 8, floats(3, seed=1)),
        (floats(2, 4, 40), np.array([[1, np.inf, -np.inf, np.nan], [0, 2, -2, 3]], np.float32)),
        (floats(8, 33, dtype="float16"), floats(8, seed=1)),
        (integers(4, 50, dtype="int8"), integers(4, seed=1, dtype="int8")),
    ):
        axis = x.ndim - 1
        params = {"how": how, "axis": axis, "reverse": reverse}
        check(lambda x, y, params=params: [running_p.bind(x, y, **params)], x, before)
        with np.errstate(over="ignore", invalid="ignore"):
            got = running_p.impl(np, x, before, **params)
            ends = [before[..., None], (x[..., ::-1] if reverse else x).astype(before.dtype)]
            wanted = along(np.concatenate(ends, -1), axis=axis, dtype=before.dtype)[..., 1:]
        wanted = wanted[..., ::-1] if reverse else wanted
        np.testing.assert_array_equal(got, wanted.astype(x.dtype))


def test_many_or_odd_rows_stay_whole():
    for shape in ((64, 1 << 15), (32771,)):
        assert (
            len(program(lambda x: [lax.cumsum(x, axis=x.ndim - 1)], floats(*shape))[2].steps) == 1
        )
