"""Schur's decomposition by LAPACK, and without it."""

import numpy as np
import pytest

from funcgrad.ops.linalg import lapack
from funcgrad.ops.linalg.decompositions import eig, svd
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


@dtypes_
@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (2, 4), (2, 3, 6, 4), (3, 1, 1)])
def test_svd_in_the_operands_precision(dtype, shape, rng):
    a = draw(rng, shape, dtype)
    s = lapack.svd(a, False, False)[0]
    close(s, np.linalg.svd(a, compute_uv=False), dtype)
    for full in (True, False):
        s, u, vh = lapack.svd(a, full, True)
        k = s.shape[-1]
        assert u.dtype == vh.dtype == dtype
        close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, dtype)


@dtypes_
@pytest.mark.parametrize("shape", [(6, 6), (1, 1), (2, 3, 5, 5)])
def test_eig_in_the_operands_precision(dtype, shape, rng):
    a = draw(rng, shape, dtype)
    w, v = lapack.eig(a, True)
    assert w.dtype == v.dtype == np.result_type(dtype, np.complex64)
    close(a @ v, v * w[..., None, :], dtype)
    close(np.linalg.norm(v, axis=-2), np.ones(w.shape), dtype)
    close(lapack.eig(a, False)[0], w, dtype)


def test_what_is_used_is_asked_for(monkeypatch, rng):
    a = rng.normal(size=(4, 4))
    found = [svd(a, compute_uv=False), eig(a)[0]]
    monkeypatch.setattr(lapack, "_routine", lambda name: None)
    assert not lapack.has(np, "gesdd", a)
    assert lapack.address("dgesdd") is None
    for ours, theirs in zip(found, [svd(a, compute_uv=False), eig(a)[0]], strict=True):
        close(np.asarray(ours), np.asarray(theirs))
