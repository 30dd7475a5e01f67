"""Products of reflections, against LAPACK's through SciPy."""

import numpy as np
import pytest
import scipy.linalg

from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.linalg.reflections import householder_product, ormqr
from tests.ops.linalg.test_decompositions import close, dagger, draw, inexact
from tests.ops.rules import check_derivatives, check_vmap


@inexact
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 4, 2)])
def test_householder_product(dtype, shape, rng):
    a = draw(rng, shape, dtype)
    flat = a.reshape(-1, *shape[-2:])
    parts = [scipy.linalg.qr(x, mode="raw")[0] for x in flat]
    raw = np.stack([p[0] for p in parts]).reshape(shape)
    taus = np.stack([p[1] for p in parts]).reshape(*shape[:-2], -1)
    q = np.asarray(householder_product(raw, taus))
    expected = np.stack([scipy.linalg.qr(x, mode="economic")[0] for x in flat]).reshape(shape)
    close(q, expected)
    check_derivatives(householder_product, [raw, taus], rng, order=1, tol=1e-4)


def explicit(a, taus):
    """The product of reflections, one after another."""
    m = a.shape[-2]
    q = np.eye(m, dtype=a.dtype)
    for i, tau in enumerate(taus):
        v = np.where(np.arange(m) > i, a[:, i], 0)
        v[i] = 1
        q = q @ (np.eye(m) - tau * np.outer(v, v.conj()))
    return q


@inexact
@pytest.mark.parametrize(("shape", "k"), [((4, 3), 3), ((4, 3), 1), ((3, 4), 3), ((3, 3), 0)])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_ormqr(dtype, shape, k, left, transpose, rng):
    # Any τ will do, zero as well; the product need not be unitary.
    a, taus, m = draw(rng, shape, dtype), draw(rng, (k,), dtype), shape[0]
    taus[:1] = 0
    c = draw(rng, (m, 2) if left else (2, m), dtype)
    q = explicit(a, taus)
    q = dagger(q) if transpose else q
    fun = lambda *args: ormqr(*args, left=left, transpose=transpose)
    close(fun(a, taus, c), q @ c if left else c @ q)
    check_derivatives(fun, [a, taus, c], rng, tol=1e-4)
    check_vmap(fun, [a, taus, c], rng)


def test_errors():
    a = np.zeros((3, 2), np.float32)
    with pytest.raises(ShapeError, match="householder_product: need a"):
        householder_product(a.T, a[:1, 0])
    with pytest.raises(DTypeError, match="a and taus must have one dtype"):
        householder_product(a, np.zeros(2))
    with pytest.raises(ShapeError, match="ormqr: c must have 3 rows"):
        ormqr(a, a[0], a[:2])
    with pytest.raises(ShapeError, match="ormqr: c must have the leading axes of a"):
        ormqr(a, a[0], a[None])
