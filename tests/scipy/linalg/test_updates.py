"""What funcgrad.lax.linalg has beyond factorizations: tridiagonal systems, products, updates."""

import numpy as np
import pytest

from funcgrad.errors import ArgumentError
from funcgrad.lax import linalg
from tests.ops.rules import check_derivatives, check_vmap
from tests.scipy.linalg.test_condensed import KINDS, WIDE, draw, near
from tests.scipy.linalg.test_factorizations import positive


def dense(dl, d, du):
    return np.diag(d) + np.diag(dl[1:], -1) + np.diag(du[:-1], 1)


@KINDS
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("perturb", [True, False])
def test_tridiagonal_solve(kind, n, perturb, rng):
    dl, d, du = draw(rng, (3, 2, n), kind) + np.array([0, 3, 0], kind)[:, None, None]
    b = draw(rng, (2, n, 3), kind)
    x = linalg.tridiagonal_solve(dl, d, du, b, perturb_singular=perturb)
    assert x.dtype == kind
    for i in range(2):
        near(dense(dl[i], d[i], du[i]) @ np.asarray(x[i]), b[i], kind)


def test_rows_are_swapped():
    for d in ([0.0, 0, 1], [0.0, 2, 1], [1.0, 1, 0]):
        dl, d, du = np.array([0.0, 1, 3]), np.array(d), np.array([1.0, 1, 0])
        b = np.arange(3.0)[:, None]
        near(dense(dl, d, du) @ np.asarray(linalg.tridiagonal_solve(dl, d, du, b)), b)
    zero = np.zeros(3)
    x = linalg.tridiagonal_solve(zero, zero, zero, b)
    assert not np.isfinite(np.asarray(x)).all()
    x = linalg.tridiagonal_solve(zero, zero, zero + 1, b + 1, perturb_singular=True)
    assert np.isfinite(np.asarray(x)).all()


@WIDE
def test_tridiagonal_derivatives(kind, rng):
    args = [draw(rng, (4,), kind), draw(rng, (4,), kind) + 4, draw(rng, (4,), kind),
            draw(rng, (4, 2), kind)]  # fmt: skip
    check_derivatives(linalg.tridiagonal_solve, args, rng, tol=1e-4)
    check_vmap(linalg.tridiagonal_solve, args, rng)


@WIDE
def test_products_and_updates(kind, rng):
    a, c = draw(rng, (2, 4, 3), kind), np.stack([np.eye(4, dtype=kind)] * 2)
    near(linalg.symmetric_product(a, c, alpha=2.0, beta=0.5),
         2 * a @ np.swapaxes(a, -1, -2) + 0.5 * c)  # fmt: skip
    p, w = positive(rng, 4, kind), draw(rng, (4,), kind)
    r = np.linalg.cholesky(p).conj().T
    found = np.asarray(linalg.cholesky_update(r, w))
    near(found, np.linalg.cholesky(p + np.outer(w, w.conj())).conj().T)
    check_derivatives(linalg.cholesky_update, [r, w], rng, tol=1e-4)
    u, h, _, done = linalg.qdwh(a[0])
    near(np.asarray(u) @ np.asarray(h), a[0])
    assert bool(done)


def test_errors():
    d, b = np.ones(3), np.ones((3, 1))
    with pytest.raises(TypeError, match="all diagonal arguments have the same shape"):
        linalg.tridiagonal_solve(d, d, d[1:], b)
    with pytest.raises(TypeError, match="leading ndim-1 dimensions of b"):
        linalg.tridiagonal_solve(d, d, d, d)
    with pytest.raises(ArgumentError, match="one floating-point dtype"):
        linalg.tridiagonal_solve(d, d, d, b.astype(np.float32))
    with pytest.raises(ArgumentError, match="symmetric_product: need a"):
        linalg.symmetric_product(b, b)
    with pytest.raises(ArgumentError, match="cholesky_update: need R"):
        linalg.cholesky_update(np.eye(2), d)
    with pytest.raises(AttributeError, match="nothing"):
        linalg.nothing  # noqa: B018
