"""QR, singular value and eigenvalue decompositions, with their derivatives.

The derivative of an orthogonal (or eigenvector) factor is that factor times F ∘ (what the
perturbation is in its basis), with F[i, j] = 1 / (d[j] - d[i]) off the diagonal (Giles 2008;
Walter and Lehmann, "Algorithmic differentiation of linear algebra functions", 2010, for QR). Where
two values coincide the factor isn't unique, and that term is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DifferentiationError, within
from funcgrad.ops.arguments import integers
from funcgrad.ops.base import broadcast_p, full, sum_p
from funcgrad.ops.elementwise.arithmetic import abs as abs_
from funcgrad.ops.elementwise.arithmetic import complex as complex_
from funcgrad.ops.elementwise.arithmetic import conj, div, imag, mul, neg, real, sub
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import convert_element_type, select, stop_gradient
from funcgrad.ops.families import add
from funcgrad.ops.linalg import lapack
from funcgrad.ops.linalg.choices import EighImplementation, EigImplementation, SvdAlgorithm
from funcgrad.ops.linalg.condensed import column_order_p
from funcgrad.ops.linalg.matrices import (
    adjoint,
    as_columns,
    as_rows,
    check_matrices,
    decomposition,
    diagonal,
    eye_mask,
    from_triangle,
    hermitian_part,
    matmul,
    of_finite,
    tril,
)
from funcgrad.ops.linalg.triangular import solve, triangular_solve
from funcgrad.ops.reduce import argmax
from funcgrad.ops.shape import iota_p
from funcgrad.ops.slicing import concatenate_p, slice_p
from funcgrad.ops.sort import take_along_axis


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
    return _part(x, -1, start, stop)


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


def qr(x: Any, *, pivoting: bool = False, full_matrices: bool = True) -> tuple[Any, ...]:
    """Q (unitary columns) and R (upper triangular) with Q R = x.

    For matrices (m, n), Q is (m, m) and R (m, n); without `full_matrices` Q is (m, k) and R (k, n)
    with k = min(m, n), and only then are tall matrices differentiable. With `pivoting` there is a
    third result: the order of columns p, in which R's diagonal descends, with Q R = x[:, p].

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> q, r = lax.linalg.qr(np.float32([[0, 2], [-1, 3]]))
    >>> lax.abs(r)
    Array([[1., 3.],
           [0., 2.]], dtype=float32)
    """
    if not pivoting:
        q, r = qr_p.bind(x, full_matrices=bool(full_matrices))
        return q, r
    (order,) = column_order_p.bind(stop_gradient(x))
    rank, shape = aval_of(x).ndim, aval_of(x).shape
    columns = broadcast_p.bind(
        order, shape=shape, broadcast_dimensions=(*range(rank - 2), rank - 1)
    )
    q, r = qr_p.bind(take_along_axis(x, columns, rank - 1), full_matrices=bool(full_matrices))
    return q, r, order


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


@of_finite
def _svd_impl(xp, x, *, full_matrices, compute_uv):
    if lapack.has(xp, "gesdd", x):
        return lapack.svd(x, full_matrices, compute_uv)
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


def svd(
    x: Any,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> Any:
    """U, s and Vᴴ with U diag(s) Vᴴ = x, singular values descending; s alone without `compute_uv`.

    For matrices (m, n), U is (m, m) and Vᴴ (n, n); without `full_matrices` they are (m, k) and
    (k, n) with k = min(m, n), and only then are matrices that aren't square differentiable.
    `subset_by_index` keeps the values from its first index to before its second, with their
    vectors. `algorithm` has no effect.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> lax.linalg.svd(np.float32([[3, 0], [0, 4]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    out = svd_p.bind(x, full_matrices=bool(full_matrices), compute_uv=bool(compute_uv))
    if subset_by_index is None:
        return (out[1], out[0], out[2]) if compute_uv else out[0]
    if compute_uv and full_matrices:
        raise ValueError(within("svd: subset_by_index needs full_matrices=False"))
    start, stop = _subset("svd", subset_by_index, aval_of(out[0]).shape[-1])
    s = _part(out[0], -1, start, stop)
    if not compute_uv:
        return s
    return _part(out[1], -1, start, stop), s, _part(out[2], -2, start, stop)


def _subset(name: str, subset: Any, n: int) -> tuple[int, int]:
    bounds = integers(name, "subset_by_index", subset)
    start, stop = bounds if len(bounds) == 2 else (0, 0)
    if not 0 <= start < stop <= n:
        raise ValueError(
            within(f"{name}: subset_by_index must be 0 <= first < last <= {n}, got {subset}")
        )
    return start, stop


def _part(x: Any, axis: int, start: int, stop: int) -> Any:
    shape = aval_of(x).shape
    low, high = [0] * len(shape), list(shape)
    low[axis], high[axis] = start, stop
    return slice_p.bind(x, start_indices=tuple(low), limit_indices=tuple(high), strides=None)


# ---- eigh


def _eigh_abstract(x, *, lower, compute_vectors):
    check_matrices("eigh", x, square=True)
    w = ShapedArray(x.shape[:-1], dtypes.real_part(x.dtype))
    return [x.strong(), w] if compute_vectors else [w]


@of_finite
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


def eigh(
    x: Any,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: EighImplementation | None = None,
) -> tuple[Any, Any]:
    """Eigenvectors (as columns) and ascending eigenvalues of Hermitian matrices.

    `symmetrize_input` takes (x + xᴴ) / 2 first; else only the lower (or upper) triangle is read.
    A vector's sign, and the basis of a repeated eigenvalue's vectors, are any, and may differ
    where the function is compiled. A matrix that isn't finite has results of NaN.
    `subset_by_index` keeps the values from its first index to before its second, with their
    vectors. `sort_eigenvalues` and `implementation` have no effect.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> v, w = lax.linalg.eigh(np.float32([[2, 0], [0, 1]]))
    >>> w
    Array([1., 2.], dtype=float32)
    """
    check_matrices("eigh", aval_of(x), square=True)
    x = hermitian_part(x) if symmetrize_input else x
    v, w = eigh_p.bind(x, lower=bool(lower), compute_vectors=True)
    if subset_by_index is None:
        return v, w
    start, stop = _subset("eigh", subset_by_index, aval_of(w).shape[-1])
    return _part(v, -1, start, stop), _part(w, -1, start, stop)


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


@of_finite
def _eig_impl(xp, x, *, compute_left_eigenvectors, compute_right_eigenvectors):
    vectors = compute_left_eigenvectors or compute_right_eigenvectors
    if lapack.has(xp, "geev", x):
        w, *found = lapack.eig(x, vectors)
    else:
        kind = dtypes.to_complex(x.dtype)
        made = xp.linalg.eig(x) if vectors else [xp.linalg.eigvals(x)]
        w, *found = (part.astype(kind) for part in made)
    if not found:
        return [w]
    (right,) = found
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
    *left, w, v = _left_last(eig_p.bind(
        a,
        compute_left_eigenvectors=compute_left_eigenvectors,
        compute_right_eigenvectors=True,
    ))  # fmt: skip
    g = _like(g, v)
    dw, dv = _eigen_tangents(w, v, g)
    outs, changes = [w], [dw]
    if left:
        # Those of the adjoint, whose eigenvalues are the conjugate ones.
        outs, changes = [w, *left], [dw, _eigen_tangents(conj(w), left[0], adjoint(g))[1]]
    if compute_right_eigenvectors:
        outs, changes = [*outs, v], [*changes, dv]
    return outs, changes


def _left_last(parts: list) -> list:
    w, *vectors = parts
    return [*vectors[:-1], w, vectors[-1]]


def _eigen_tangents(w: Any, v: Any, g: Any) -> tuple[Any, Any]:
    """The changes of eigenvalues, and of eigenvectors that keep their norms and phases."""
    n = aval_of(v).shape[-1]
    inner = solve(v, matmul(g, v))
    gaps = _reciprocal(sub(as_rows(w, n), as_columns(w, n)))
    dv = matmul(v, mul(gaps, inner))
    return diagonal(inner), sub(dv, mul(v, as_rows(_gauge(v, dv), n)))


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
    x: Any,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = True,
    implementation: EigImplementation | None = None,
) -> list:
    """Eigenvalues, then left and right eigenvectors (columns, as asked for), of square matrices.

    All are complex. Vectors have norm 1 and a real largest component. Left ones (uᴴ x = w uᴴ) need
    distinct eigenvalues. `enable_eigvec_derivs` and `implementation` have no effect: vectors have
    derivatives.

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
