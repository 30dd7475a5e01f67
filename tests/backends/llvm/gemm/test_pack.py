"""Panels of what processors multiply best, and how long they are."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from funcgrad.backends.llvm.gemm import functions
from funcgrad.backends.llvm.gemm.pack import FORMATS, Tile
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.core.record import replace


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
def test_pairs_of_bfloat16_where_they_are_quick(cpu):
    """Widened numbers below the least normal one count, those of pairs are taken as 0."""
    host = engine().target
    if not host.has("avx512bf16"):
        pytest.skip("this processor has no products of pairs of bfloat16")
    target = engine(replace(host, cpu=cpu))
    address = functions.install("bfloat16", "float32", target)
    a, b = (
        np.full(s, x, ml_dtypes.bfloat16) for s, x in (((140, 150), 2.0**-130), ((150, 99), 0.5))
    )
    c = np.empty((140, 99), np.float32)
    call = functions._words(a, b, c, False)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(call))
    assert (c == (0 if cpu == "znver4" else 75 * 2.0**-130)).all()


def test_panels_of_float64_are_long_where_they_are_fetched_ahead():
    for cpu, depth in (("znver4", 384), ("sapphirerapids", 1024)):
        target = Target("x86_64-unknown-linux-gnu", cpu, "+avx512f")
        assert Tile.of(target, FORMATS["float64"]).kc == depth
