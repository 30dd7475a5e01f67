"""Schur's decomposition by LAPACK, and without it."""

import numpy as np
import pytest

from funcgrad.ops.linalg import lapack
from tests.ops.linalg.test_decompositions import close, dagger, draw, dtypes_


@pytest.fixture(params=["LAPACK", "none"])
def schur(request, monkeypatch):
    if request.param == "none":
        monkeypatch.setattr(lapack, "_routine", lambda name: None)
    return lapack.schur


@dtypes_
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_schur(schur, dtype, n, rng):
    matrices = [draw(rng, (n, n), dtype), np.eye(n, dtype=dtype), np.eye(n, k=1, dtype=dtype)]
    for a in matrices:
        t, z = schur(a, True)
        assert t.dtype == z.dtype == dtype
        close(z @ t @ dagger(z), a, dtype)
        close(dagger(z) @ z, np.eye(n), dtype)
        below = np.diagonal(t, -1)
        assert not np.tril(t, -2).any()
        if np.iscomplexobj(t):
            assert not below.any()
        for i in np.flatnonzero(below):
            # Blocks have a pair of complex eigenvalues, an equal diagonal, and stand alone.
            close(t[i, i], t[i + 1, i + 1], dtype)
            assert t[i, i + 1] * t[i + 1, i] < 0
            assert not below[i + 1 : i + 2].any()


def test_lapack_is_found_where_numpy_has_one():
    assert lapack._routine("dgees") is not None
    assert lapack._routine("no such routine") is None
