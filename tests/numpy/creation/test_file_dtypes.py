"""Files of arrays whose dtypes .npy files don't know."""

import io

import ml_dtypes
import numpy as np
import pytest

import funcgrad.numpy as fnp

NAMES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float32", "bool",
         "complex64", "int16"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_dtypes_survive(name, shape):
    x = fnp.ones(shape, name) * fnp.asarray(2, name)
    file, several = io.BytesIO(), io.BytesIO()
    fnp.save(file, x)
    fnp.savez(several, x, y=x)
    for f in (file, several):
        f.seek(0)
    found = [fnp.load(file, allow_pickle=False), *fnp.load(several).values()]
    for y in found:
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        assert y.tolist() == x.tolist()


def test_numpy_reads_bytes_and_the_name():
    file = io.BytesIO()
    fnp.save(file, fnp.array([1.0, 2.0], "bfloat16"))
    file.seek(0)
    raw = np.load(file)
    assert raw.dtype.names == ("bfloat16",)
    assert raw.view(ml_dtypes.bfloat16).tolist() == [1.0, 2.0]
