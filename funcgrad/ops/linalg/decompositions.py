"""QR, singular value and eigenvalue decompositions, with their derivatives.

The derivative of an orthogonal (or eigenvector) factor is that factor times F ∘ (what the
perturbation is in its basis), with F[i, j] = 1 / (d[j] - d[i]) off the diagonal (Giles 2008;
Walter and Lehmann, "Algorithmic differentiation of linear algebra functions", 2010, for QR). Where
two values coincide the factor isn't unique, and that term is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DifferentiationError, ShapeError
from funcgrad.ops.base import full, sum_p
from funcgrad.ops.elementwise.arithmetic import abs as abs_
from funcgrad.ops.elementwise.arithmetic import complex as complex_
from funcgrad.ops.elementwise.arithmetic import conj, div, imag, mul, neg, real, sub
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.families import add
from funcgrad.ops.linalg.matrices import (
    adjoint,
    as_columns,
    as_rows,
    check_matrices,
    decomposition,
    diagonal,
    eye_like,
    eye_mask,
    from_triangle,
    hermitian_part,
    matmul,
    tril,
)
from funcgrad.ops.linalg.triangular import solve, triangular_solve
from funcgrad.ops.reduce import argmax
from funcgrad.ops.shape import expand_dims, iota_p
from funcgrad.ops.slicing import concatenate_p, slice_p


def _reciprocal(x: Any) -> Any:
    """1 / x, and 0 where x is 0: the term of two equal values is left out."""
    dtype = aval_of(x).dtype
    zero, one = (full((), v, dtype) for v in (0, 1))
    none = eq(x, zero)
    return select(none, zero, div(one, select(none, one, x)))


def _like(x: Any, matrix: Any) -> Any:
    return convert_element_type(x, aval_of(matrix).dtype)


# ---- qr


def _qr_abstract(x, *, full_matrices):
    check_matrices("qr", x)
    *lead, m, n = x.shape
    k = m if full_matrices else min(m, n)
    return [x.update(shape=(*lead, m, k)), x.update(shape=(*lead, k, n))]


def _qr_impl(xp, x, *, full_matrices):
    q, r = xp.linalg.qr(x, mode="complete" if full_matrices else "reduced")
    return [q, r]


def _qr_jvp(primals, tangents, *, full_matrices):
    (a,), (g,) = primals, tangents
    *_, m, n = aval_of(a).shape
    if full_matrices and m > n:
        raise DifferentiationError(
            f"qr: with full_matrices=True the last columns of Q are not unique for {aval_of(a)}, "
            "so they have no derivative; use full_matrices=False"
        )
    q, r = qr_p.bind(a, full_matrices=full_matrices)
    if m >= n:
        return [q, r], list(_tall_qr_tangents(q, r, g))
    # The leading square block determines Q; the other columns are R₂ = Qᴴ A₂.
    dq, dr = _tall_qr_tangents(q, _columns(r, 0, m), _columns(g, 0, m))
    rest = sub(_columns(g, m, n), matmul(dq, _columns(r, m, n)))
    dr = concatenate_p.bind(dr, matmul(adjoint(q), rest), dimension=aval_of(a).ndim - 1)
    return [q, r], [dq, dr]


def _columns(x: Any, start: int, stop: int) -> Any:
    shape = aval_of(x).shape
    return slice_p.bind(
        x,
        start_indices=(*((0,) * (len(shape) - 1)), start),
        limit_indices=(*shape[:-1], stop),
        strides=None,
    )


def _tall_qr_tangents(q: Any, r: Any, g: Any) -> tuple[Any, Any]:
    g_rinv = triangular_solve(r, g)
    inner = matmul(adjoint(q), g_rinv)
    lower = tril(inner, -1)
    skew = sub(lower, adjoint(lower))
    if dtypes.is_complex(aval_of(inner).dtype):
        # R has a real diagonal: the imaginary part of the diagonal is Q's.
        skew = add(skew, _diagonal_part(sub(inner, _like(real(inner), inner))))
    rest = sub(inner, skew)
    return add(matmul(q, neg(rest)), g_rinv), matmul(rest, r)


def _diagonal_part(x: Any) -> Any:
    return select(eye_mask(x), x, full((), 0, aval_of(x).dtype))


qr_p: Primitive = decomposition(
    "qr", _qr_abstract, _qr_impl, _qr_jvp, lambda full_matrices: ("m! .", ". n!")
)


def qr(x: Any, *, full_matrices: bool = True) -> tuple[Any, Any]:
    """Q (unitary columns) and R (upper triangular) with Q R = x.

    For matrices (m, n), Q is (m, m) and R (m, n); without `full_matrices` Q is (m, k) and R (k, n)
    with k = min(m, n), and only then are tall matrices differentiable.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> q, r = lax.linalg.qr(np.float32([[0, 2], [-1, 3]]))
    >>> lax.abs(r)
    Array([[1., 3.],
           [0., 2.]], dtype=float32)
    """
    q, r = qr_p.bind(x, full_matrices=bool(full_matrices))
    return q, r


# ---- svd


def _svd_abstract(x, *, full_matrices, compute_uv):
    check_matrices("svd", x)
    *lead, m, n = x.shape
    k = min(m, n)
    s = ShapedArray((*lead, k), dtypes.real_part(x.dtype))
    if not compute_uv:
        return [s]
    u, v = (m, n) if full_matrices else (k, k)
    return [s, x.update(shape=(*lead, m, u)), x.update(shape=(*lead, v, n))]


def _of_finite(impl: Callable) -> Callable:
    """A decomposition that gives NaN for matrices with NaN or infinities, where NumPy's raises."""

    def run(xp: Any, x: Any, **params: Any) -> list[Any]:
        finite = xp.isfinite(x)
        if "lower" in params:  # what lies in the other triangle isn't read
            below = xp.tri(x.shape[-1], k=-1, dtype=bool)
            finite |= below.T if params["lower"] else below
        bad = ~finite.all((-2, -1))
        if not bad.any():
            return impl(xp, x, **params)
        outs = impl(xp, xp.where(bad[..., None, None], xp.zeros((), x.dtype), x), **params)
        for out in outs:
            out[bad] = np.nan
        return outs

    return run


@_of_finite
def _svd_impl(xp, x, *, full_matrices, compute_uv):
    if not compute_uv:
        return [xp.linalg.svd(x, compute_uv=False)]
    u, s, vh = xp.linalg.svd(x, full_matrices=full_matrices)
    return [s, u, vh]


def _svd_jvp(primals, tangents, *, full_matrices, compute_uv):
    (a,), (g,) = primals, tangents
    *_, m, n = aval_of(a).shape
    if compute_uv and full_matrices and m != n:
        raise DifferentiationError(
            f"svd: with full_matrices=True the last vectors are not unique for {aval_of(a)}, so "
            "they have no derivative; use full_matrices=False"
        )
    s, u, vh = svd_p.bind(a, full_matrices=False, compute_uv=True)
    k = min(m, n)
    uh, v = adjoint(u), adjoint(vh)
    inner = matmul(matmul(uh, g), v)
    ds = real(diagonal(inner)) if dtypes.is_complex(aval_of(a).dtype) else diagonal(inner)
    if not compute_uv:
        return [s], [ds]
    rows, columns = as_rows(s, k), as_columns(s, k)
    gaps = _like(_reciprocal(mul(add(rows, columns), sub(rows, columns))), a)
    rows, columns = _like(rows, a), _like(columns, a)
    by_right, by_left = mul(inner, rows), mul(inner, columns)
    # A complex pair of vectors may turn by one phase; half of it is given to each.
    phase = mul(mul(sub(inner, adjoint(inner)), 0.5), _reciprocal(rows))
    phase = _diagonal_part(phase)
    du = matmul(u, add(mul(gaps, add(by_right, adjoint(by_right))), phase))
    dv = matmul(v, mul(gaps, add(by_left, adjoint(by_left))))
    inverse = _reciprocal(s)
    if m > n:
        outside = matmul(g, v)
        outside = sub(outside, matmul(u, matmul(uh, outside)))
        du = add(du, mul(outside, _like(as_rows(inverse, m), a)))
    if n > m:
        outside = matmul(adjoint(g), u)
        outside = sub(outside, matmul(v, matmul(vh, outside)))
        dv = add(dv, mul(outside, _like(as_rows(inverse, n), a)))
    return [s, u, vh], [ds, du, adjoint(dv)]


def _svd_dce(used, eqn):
    if any(used[1:]):
        return eqn
    return eqn.replace(outs=eqn.outs[:1], params={**eqn.params, "compute_uv": False})


svd_p: Primitive = decomposition(
    "svd",
    _svd_abstract,
    _svd_impl,
    _svd_jvp,
    lambda full_matrices, compute_uv: (".", "m! .", ". n!") if compute_uv else (".",),
    _svd_dce,
)


def svd(x: Any, *, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """U, s and Vᴴ with U diag(s) Vᴴ = x, singular values descending; s alone without `compute_uv`.

    For matrices (m, n), U is (m, m) and Vᴴ (n, n); without `full_matrices` they are (m, k) and
    (k, n) with k = min(m, n), and only then are matrices that aren't square differentiable.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> lax.linalg.svd(np.float32([[3, 0], [0, 4]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    out = svd_p.bind(x, full_matrices=bool(full_matrices), compute_uv=bool(compute_uv))
    if not compute_uv:
        return out[0]
    s, u, vh = out
    return u, s, vh


# ---- eigh


def _eigh_abstract(x, *, lower, compute_vectors):
    check_matrices("eigh", x, square=True)
    w = ShapedArray(x.shape[:-1], dtypes.real_part(x.dtype))
    return [x.strong(), w] if compute_vectors else [w]


@_of_finite
def _eigh_impl(xp, x, *, lower, compute_vectors):
    uplo = "L" if lower else "U"
    if not compute_vectors:
        return [xp.linalg.eigvalsh(x, UPLO=uplo)]
    w, v = xp.linalg.eigh(x, UPLO=uplo)
    return [v, w]


def _eigh_jvp(primals, tangents, *, lower, compute_vectors):
    (a,), (g,) = primals, tangents
    v, w = eigh_p.bind(a, lower=lower, compute_vectors=True)
    n = aval_of(a).shape[-1]
    inner = matmul(matmul(adjoint(v), from_triangle(g, lower)), v)
    dw = real(diagonal(inner)) if dtypes.is_complex(aval_of(a).dtype) else diagonal(inner)
    if not compute_vectors:
        return [w], [dw]
    gaps = _like(_reciprocal(sub(as_rows(w, n), as_columns(w, n))), a)
    return [v, w], [matmul(v, mul(gaps, inner)), dw]


def _eigh_dce(used, eqn):
    if used[0]:
        return eqn
    return eqn.replace(outs=eqn.outs[1:], params={**eqn.params, "compute_vectors": False})


eigh_p: Primitive = decomposition(
    "eigh",
    _eigh_abstract,
    _eigh_impl,
    _eigh_jvp,
    lambda lower, compute_vectors: ("m! .", ".") if compute_vectors else (".",),
    _eigh_dce,
)


def eigh(x: Any, *, lower: bool = True, symmetrize_input: bool = True) -> tuple[Any, Any]:
    """Eigenvectors (as columns) and ascending eigenvalues of Hermitian matrices.

    `symmetrize_input` takes (x + xᴴ) / 2 first; else only the lower (or upper) triangle is read.
    A vector's sign, and the basis of a repeated eigenvalue's vectors, are any, and may differ
    where the function is compiled. A matrix that isn't finite has results of NaN.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> v, w = lax.linalg.eigh(np.float32([[2, 0], [0, 1]]))
    >>> w
    Array([1., 2.], dtype=float32)
    """
    check_matrices("eigh", aval_of(x), square=True)
    x = hermitian_part(x) if symmetrize_input else x
    v, w = eigh_p.bind(x, lower=bool(lower), compute_vectors=True)
    return v, w


def eigvalsh(x: Any, *, lower: bool = True, symmetrize_input: bool = True) -> Any:
    """The ascending eigenvalues of Hermitian matrices, without their vectors; see `eigh`.

    >>> import numpy as np
    >>> eigvalsh(np.float32([[2, 0], [0, 1]]))
    Array([1., 2.], dtype=float32)
    """
    check_matrices("eigvalsh", aval_of(x), square=True)
    x = hermitian_part(x) if symmetrize_input else x
    return eigh_p.bind(x, lower=bool(lower), compute_vectors=False)[0]


# ---- eig


def _eig_abstract(x, *, compute_left_eigenvectors, compute_right_eigenvectors):
    check_matrices("eig", x, square=True)
    dtype = dtypes.to_complex(x.dtype)
    vectors = ShapedArray(x.shape, dtype)
    n_vectors = compute_left_eigenvectors + compute_right_eigenvectors
    return [ShapedArray(x.shape[:-1], dtype), *[vectors] * n_vectors]


@_of_finite
def _eig_impl(xp, x, *, compute_left_eigenvectors, compute_right_eigenvectors):
    if not compute_left_eigenvectors and not compute_right_eigenvectors:
        return [xp.linalg.eigvals(x)]
    w, right = xp.linalg.eig(x)
    out = [w]
    if compute_left_eigenvectors:
        # The rows of the inverse, as they belong to the same eigenvalues in the same order.
        left = xp.conj(xp.swapaxes(xp.linalg.inv(right), -1, -2))
        if x.size:
            place = xp.argmax(abs(left), axis=-2)[..., None, :]
            left = left * xp.conj(xp.take_along_axis(left, place, axis=-2))
            left = left / xp.linalg.norm(left, axis=-2, keepdims=True)
        out.append(left)
    return [*out, right] if compute_right_eigenvectors else out


def _eig_jvp(primals, tangents, *, compute_left_eigenvectors, compute_right_eigenvectors):
    (a,), (g,) = primals, tangents
    if compute_left_eigenvectors:
        raise DifferentiationError(
            "eig: left eigenvectors have no derivative here; use compute_left_eigenvectors=False "
            "(they are the right eigenvectors of the conjugate-transposed matrix)"
        )
    w, v = eig_p.bind(a, compute_left_eigenvectors=False, compute_right_eigenvectors=True)
    n = aval_of(a).shape[-1]
    inner = solve(v, matmul(_like(g, v), v))
    dw = diagonal(inner)
    if not compute_right_eigenvectors:
        return [w], [dw]
    gaps = _reciprocal(sub(as_rows(w, n), as_columns(w, n)))
    dv = matmul(v, mul(gaps, inner))
    return [w, v], [dw, sub(dv, mul(v, as_rows(_gauge(v, dv), n)))]


def _gauge(v: Any, dv: Any) -> Any:
    """The part of dv along each v[:, j] that would change its norm, or the phase of its largest
    component, which is real."""
    rank = aval_of(v).ndim
    down = (rank - 2,)
    growth = real(sum_p.bind(mul(conj(v), dv), axes=down))
    largest = argmax(abs_(v), rank - 2, np.int32)
    rows = iota_p.bind(dtype=np.dtype(np.int32), shape=aval_of(v).shape, dimension=rank - 2)
    chosen = eq(rows, as_rows(largest, aval_of(v).shape[-2]))
    zero, one = (full((), c, aval_of(v).dtype) for c in (0, 1))
    turn = imag(sum_p.bind(select(chosen, div(dv, select(chosen, v, one)), zero), axes=down))
    return complex_(growth, turn)


eig_p: Primitive = decomposition(
    "eig",
    _eig_abstract,
    _eig_impl,
    _eig_jvp,
    lambda compute_left_eigenvectors, compute_right_eigenvectors: (
        ".",
        *["m! ."] * (compute_left_eigenvectors + compute_right_eigenvectors),
    ),
)


def eig(
    x: Any, *, compute_left_eigenvectors: bool = True, compute_right_eigenvectors: bool = True
) -> list:
    """Eigenvalues, then left and right eigenvectors (columns, as asked for), of square matrices.

    All are complex. Vectors have norm 1 and a real largest component. Left ones (uᴴ x = w uᴴ) need
    distinct eigenvalues, and have no derivative.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> w, vl, vr = lax.linalg.eig(np.float32([[2, 0], [0, 1]]))
    >>> w
    Array([2.+0.j, 1.+0.j], dtype=complex64)
    """
    return eig_p.bind(
        x,
        compute_left_eigenvectors=bool(compute_left_eigenvectors),
        compute_right_eigenvectors=bool(compute_right_eigenvectors),
    )


# ---- householder_product


def householder_product(a: Any, taus: Any) -> Any:
    """The first n columns of H₁ H₂ … Hₖ with Hᵢ = 1 - τᵢ vᵢ vᵢᴴ, as LAPACK stores a QR.

    a is (…, m, n) with m ≥ n ≥ k; vᵢ is column i of a below the diagonal, 1 on it, 0 above; taus is
    (…, k). Raises ShapeError for other shapes.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> lax.linalg.householder_product(np.float32([[5], [1]]), np.float32([1]))
    Array([[ 0.],
           [-1.]], dtype=float32)
    """
    x, t = aval_of(a), aval_of(taus)
    check_matrices("householder_product", x)
    *lead, m, n = x.shape
    k = t.shape[-1] if t.ndim else 0
    if m < n or k > n or t.shape != (*lead, k):
        raise ShapeError(
            f"householder_product: need a (…, m, n) and taus (…, k) with m >= n >= k, got a {x} "
            f"and taus {t}"
        )
    unit = add(tril(a, -1), eye_like(a))
    q = eye_like(a)
    for i in reversed(range(k)):
        v = _columns(unit, i, i + 1)
        tau = expand_dims(slice_p.bind(
            taus, start_indices=(*((0,) * len(lead)), i), limit_indices=(*lead, i + 1), strides=None
        ), (-1,))  # fmt: skip
        q = sub(q, matmul(matmul(v, tau), matmul(adjoint(v), q)))
    return q
