"""Kernels of running sums: of rows side by side, in vectors and not, against eager operations."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.backends.llvm.kernels import running
from tests.backends.checks import as_eager

HOW = pytest.mark.parametrize("how", ["cumsum", "cumprod", "cummax", "cummin"])
BOTH = pytest.mark.parametrize("reverse", [False, True])
# Rows that have vectors; whose last block has some columns; or that have none, for their number or
# for their length.
SHAPES = [(16, 32), (2, 3, 16, 47), (8, 31), (4, 32), (6, 100), (1, 300)]


@pytest.fixture(autouse=True)
def vectors_of_few(monkeypatch):
    monkeypatch.setattr(running, "LEAST", 0)


def along(how, reverse):
    return lambda x: getattr(lax, how)(x, axis=x.ndim - 1, reverse=reverse)


@pytest.mark.sampled(6)
@HOW
@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_side_by_side(how, reverse, shape, rng):
    x = rng.integers(-3, 4, shape).astype("float32")
    x[..., 0, 0] = np.nan if how.startswith("cumm") else x[..., 0, 0]
    as_eager(along(how, reverse), x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("how", "reverse"), [("cumsum", False), ("cumprod", True), ("cummin", True)]
)
@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint16", "int32", "int64"])
def test_dtypes(how, reverse, dtype, rng):
    for shape in ((16, 70), (3, 8, 33)):
        as_eager(along(how, reverse), rng.integers(-2, 3, shape).astype(dtype))


def test_special_values_stay_in_their_rows(rng):
    """As NumPy has them, that adds up row by row and in order."""
    x = rng.standard_normal((32, 50), "f")
    x[3, 7], x[5, 2], x[5, 9], x[30, 49] = np.nan, np.inf, -np.inf, np.inf
    x[9, 20:23] = 3e38, 3e38, -3e38
    with np.errstate(all="ignore"):
        wanted = np.cumsum(x, 1)
    np.testing.assert_array_equal(np.asarray(fg.jit(lambda x: fnp.cumsum(x, 1))(x)), wanted)


def test_log_sums(rng):
    x = rng.standard_normal((16, 40), "f") * 30
    x[:, :3], x[4, 20] = -np.inf, np.nan
    f = along("cumlogsumexp", False)
    np.testing.assert_allclose(fg.jit(f)(x), f(fnp.asarray(x)), rtol=2e-6)


def test_of_what_is_computed_and_in_place(rng):
    """Elements that are made as they are read, views, and memory that is given away."""
    x = rng.integers(-4, 5, (48, 32)).astype("float32")
    as_eager(lambda x: fnp.cumsum(x * 2 + 1, 1), x)
    as_eager(lambda x: fnp.cumsum(x.T, 1), x)
    as_eager(lambda x: fnp.cumsum(x[::3, 1:], 1), x)
    as_eager(lambda x: lax.cummax(fnp.pad(x, 1), axis=1) - 1, x)
    given = fg.jit(lambda x: fnp.cumsum(x, 1), donate_argnums=0)
    np.testing.assert_array_equal(np.asarray(given(fnp.asarray(x))), np.cumsum(x, 1))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [*dtypes.SIGNED, *dtypes.UNSIGNED, *dtypes.FLOATS], ids=str)
@pytest.mark.parametrize("how", ["cumsum", "cumprod"])
def test_take_no_memory_beside_the_result(how, dtype):
    """Also of narrow numbers: in a dtype that is asked for nothing wider is made on the way."""
    n = 1 << 20
    along = fg.jit(lambda x: getattr(fnp, how)(x, dtype=dtype))
    memory = along.lower(fg.ShapeDtypeStruct((n,), dtype)).compile().memory_analysis()
    assert memory["temp_size_in_bytes"] + memory["scratch_size_in_bytes"] <= n * dtype.itemsize // 8
    x = np.arange(200).astype(np.int8).astype(dtype)
    eager = getattr(fnp, how)(x, dtype=dtype)
    if not dtypes.is_inexact(dtype):
        np.testing.assert_array_equal(along(x), eager)
