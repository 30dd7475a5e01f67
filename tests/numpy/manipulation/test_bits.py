"""Packing and unpacking of bits against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import DTypeError
from tests.numpy.compare import same_as_numpy, same_batched


@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_both_ways(order, axis, rng):
    for shape in ((3, 10), (8, 1), (2, 0)):
        bits = rng.integers(-1, 2, shape)
        same_as_numpy(
            lambda x: fnp.packbits(x, axis, order), lambda x: np.packbits(x, axis, order), bits
        )
        if not bits.size:
            continue
        raw = rng.integers(0, 256, shape).astype(np.uint8)
        for count in (None, 5, 100, -3):
            same_as_numpy(
                lambda x, n=count: fnp.unpackbits(x, axis, n, order),
                lambda x, n=count: np.unpackbits(x, axis, n, order),
                raw,
            )


def test_batched(rng):
    same_batched(fnp.packbits, rng.integers(0, 2, (2, 9)).astype(bool))


def test_errors():
    with pytest.raises(DTypeError, match="must be integers or bool"):
        fnp.packbits(np.ones(3))
    with pytest.raises(DTypeError, match="must be uint8"):
        fnp.unpackbits(np.ones(3, int))
    with pytest.raises(ValueError, match="bitorder"):
        fnp.packbits(np.ones(3, int), bitorder="middle")
