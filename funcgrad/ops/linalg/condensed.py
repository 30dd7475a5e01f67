"""Condensed forms of square matrices (Hessenberg, tridiagonal, Schur), and the order of columns
that QR with pivoting takes.

Reflections are LAPACK's: H = 1 - τ v vᴴ with v[0] = 1, and Hᴴ x = (β, 0, …) with a real β. What
differentiates them is written with more than ops, in `funcgrad.lax`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.ops.base import size_of
from funcgrad.ops.linalg import lapack
from funcgrad.ops.linalg.matrices import check_matrices, decomposition, of_finite


def _reflection(xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """v, τ and β of vectors x, the last axis."""
    first, rest = x[..., 0], xp.linalg.norm(x[..., 1:], axis=-1)
    none = (rest == 0) & (first.imag == 0)
    beta = -xp.copysign(xp.hypot(abs(first), rest), first.real)
    safe = xp.where(none, 1, beta)
    tau = xp.where(none, 0, (safe - first) / safe).astype(x.dtype)
    v = x / xp.where(none, 1, first - safe)[..., None]
    v[..., 1:] = xp.where(none[..., None], 0, v[..., 1:])
    v[..., 0] = 1
    return v, tau, xp.where(none, first.real, beta)


def _from_left(xp: Any, v: Any, tau: Any, a: Any) -> None:
    """a becomes Hᴴ a."""
    a -= (xp.conj(tau)[..., None] * v)[..., None] * xp.matmul(xp.conj(v)[..., None, :], a)


def _from_right(xp: Any, v: Any, tau: Any, a: Any) -> None:
    """a becomes a H."""
    a -= xp.matmul(a, v[..., None]) * (tau[..., None] * xp.conj(v))[..., None, :]


# ---- hessenberg


def _hessenberg_abstract(x):
    check_matrices("hessenberg", x, square=True)
    return [x.strong(), x.update(shape=(*x.shape[:-2], max(0, x.shape[-1] - 1))).strong()]


@of_finite
def _hessenberg_impl(xp, x):
    a, n = x.copy(), x.shape[-1]
    taus = xp.zeros((*x.shape[:-2], max(0, n - 1)), x.dtype)
    for i in range(n - 1):
        v, tau, beta = _reflection(xp, a[..., i + 1 :, i])
        taus[..., i] = tau
        _from_right(xp, v, tau, a[..., i + 1 :])
        _from_left(xp, v, tau, a[..., i + 1 :, i + 1 :])
        a[..., i + 1, i], a[..., i + 2 :, i] = beta, v[..., 1:]
    return [a, taus]


hessenberg_p: Primitive = decomposition(
    "hessenberg",
    _hessenberg_abstract,
    _hessenberg_impl,
    NoRule("reflections have no derivative here; funcgrad.scipy.linalg.hessenberg's result has"),
    lambda: ("m! n!", "."),
)


def hessenberg(a: Any) -> tuple[Any, Any]:
    """Reduce square matrices to Hessenberg form: (h, taus), as LAPACK's gehrd stores them.

    h holds the form in its upper triangle and the diagonal below; what is beneath, with `taus`,
    are the reflections whose product is Q (see `householder_product`): a = Q H Qᴴ.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> h, taus = lax.linalg.hessenberg(np.float32([[1, 2, 3], [4, 5, 6], [0, 7, 8]]))
    >>> h
    Array([[1., 2., 3.],
           [4., 5., 6.],
           [0., 7., 8.]], dtype=float32)
    """
    h, taus = hessenberg_p.bind(a)
    return h, taus


# ---- tridiagonal


def _tridiagonal_abstract(x, *, lower):
    check_matrices("tridiagonal", x, square=True)
    *lead, n = x.shape[:-1]
    real, fewer = dtypes.real_part(x.dtype), max(0, n - 1)
    line, beside = (ShapedArray((*lead, k), real) for k in (n, fewer))
    return [x.strong(), line, beside, ShapedArray((*lead, fewer), x.dtype)]


@of_finite
def _tridiagonal_impl(xp, x, *, lower):
    turn = slice(None, None, 1 if lower else -1)
    a, n = x[..., turn, turn].copy(), x.shape[-1]
    below = xp.tril(a, -1)
    line = xp.diagonal(a, axis1=-2, axis2=-1).real[..., None] * xp.eye(n, dtype=a.real.dtype)
    # The other triangle isn't read, and returned as it was given.
    full = below + xp.conj(xp.swapaxes(below, -1, -2)) + line
    beside = xp.zeros((*x.shape[:-2], max(0, n - 1)), a.real.dtype)
    taus = xp.zeros(beside.shape, a.dtype)
    for i in range(n - 1):
        v, tau, beta = _reflection(xp, full[..., i + 1 :, i])
        taus[..., i], beside[..., i] = tau, beta
        _from_right(xp, v, tau, full[..., i + 1 :, i + 1 :])
        _from_left(xp, v, tau, full[..., i + 1 :, i + 1 :])
        a[..., i + 1, i], a[..., i + 2 :, i] = beta, v[..., 1:]
    line = xp.diagonal(full, axis1=-2, axis2=-1).real.copy()
    at = xp.arange(n)
    a[..., at, at] = line
    return [a[..., turn, turn], *(part[..., turn] for part in (line, beside, taus))]


tridiagonal_p: Primitive = decomposition(
    "tridiagonal",
    _tridiagonal_abstract,
    _tridiagonal_impl,
    NoRule("reflections have no derivative here; eigh of the matrix has"),
    lambda lower: ("m! n!", ".", ".", "."),
)


def tridiagonal(a: Any, *, lower: bool = True) -> tuple[Any, Any, Any, Any]:
    """Reduce Hermitian matrices to tridiagonal form: (a, d, e, taus), as LAPACK's sytrd does.

    d is the form's diagonal and e the one beside it, both real; a and taus hold the reflections.
    Only the triangle that `lower` tells is read.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> lax.linalg.tridiagonal(np.float32([[1, 2, 0], [2, 3, 4], [0, 4, 5]]))[1:3]
    (Array([1., 3., 5.], dtype=float32), Array([2., 4.], dtype=float32))
    """
    a, d, e, taus = tridiagonal_p.bind(a, lower=bool(lower))
    return a, d, e, taus


# ---- schur


def _schur_abstract(x, *, compute_schur_vectors):
    check_matrices("schur", x, square=True)
    return [x.strong()] * (1 + compute_schur_vectors)


@of_finite
def _schur_impl(xp, x, *, compute_schur_vectors):
    host = x if xp is np else x.get()
    flat = host.reshape((size_of(x.shape[:-2]), *x.shape[-2:]))
    found = [lapack.schur(a, compute_schur_vectors) for a in flat]
    outs = [np.stack(part) if len(flat) else flat for part in zip(*found, strict=True)]
    outs = outs or [flat] * 2
    return [xp.asarray(out.reshape(x.shape)) for out in outs[: 1 + compute_schur_vectors]]


schur_p: Primitive = decomposition(
    "schur",
    _schur_abstract,
    _schur_impl,
    NoRule("this is the decomposition alone; funcgrad.lax.linalg.schur has a derivative"),
    lambda compute_schur_vectors: ("m! n!",) * (1 + compute_schur_vectors),
)


# ---- the order of columns


def _order_abstract(x):
    check_matrices("qr", x)
    return [ShapedArray((*x.shape[:-2], x.shape[-1]), np.dtype(np.int32))]


def _order_impl(xp, x):
    """At each step comes the column with the largest norm of what earlier ones leave of it."""
    *lead, m, n = x.shape
    a = x.reshape((size_of(lead), m, n)).copy()
    order = xp.tile(xp.arange(n, dtype=np.int32), (len(a), 1))
    rows = xp.arange(len(a))
    for i in range(min(m, n)):
        best = i + xp.argmax(xp.linalg.norm(a[:, i:, i:], axis=1), axis=1)
        held, place = a[rows, :, best], order[rows, best]
        a[rows, :, best], order[rows, best] = a[:, :, i], order[:, i]
        a[:, :, i], order[:, i] = held, place
        v, tau, _ = _reflection(xp, a[:, i:, i])
        _from_left(xp, v, tau, a[:, i:, i + 1 :])
    return [order.reshape((*lead, n))]


column_order_p: Primitive = decomposition(
    "column_order",
    _order_abstract,
    _order_impl,
    NoRule("its result are integers"),
    lambda: (".",),
)
