"""Casts of floats of 8 bits by tables are those of ml_dtypes, bit for bit."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.ops.elementwise.float8 import by_table


def bits_of_floats(dtype, n):
    """Random bits: all exponents, denormals, infinities and NaN among them."""
    raw = np.random.default_rng(5).integers(0, 256, n * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype)


@pytest.mark.parametrize("wide", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("narrow", dtypes.FLOAT8, ids=str)
def test_casts_are_those_of_ml_dtypes(narrow, wide):
    wide = dtypes.canonical(wide)
    with np.errstate(all="ignore"):
        x = bits_of_floats(wide, 100_000)
        np.testing.assert_array_equal(by_table(x, narrow).view("u1"), x.astype(narrow).view("u1"))
        y = np.arange(2048).astype(np.uint8).view(narrow)
        got = by_table(y, wide)
        assert got.dtype == wide
        np.testing.assert_array_equal(got.astype("f4"), y.astype("f4"))


def test_other_layouts_and_dtypes():
    narrow = dtypes.FLOAT8[0]
    x = np.linspace(-500, 500, 60_000, dtype="float32").reshape(200, 300)
    for view in (x.T, x[::2, ::3], x[:, ::-1]):
        np.testing.assert_array_equal(
            by_table(view, narrow).view("u1"), view.astype(narrow).view("u1")
        )
    assert by_table(x[0, :5], narrow) is None
    assert by_table(x.astype(float), narrow) is None  # which would be rounded twice
    got = fg.jit(lambda v: fnp.astype(fnp.astype(v, narrow), "float32"))(x)
    np.testing.assert_array_equal(got, x.astype(narrow).astype("float32"))
