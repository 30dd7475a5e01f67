"""Triangular matrices: solving with them, and factoring into them (Cholesky, LU).

Substitution and elimination are written in blocks, so that most of the work is matrix products.
Derivatives follow Giles, "Collected matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008); all leading axes are batch axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.arguments import integer
from funcgrad.ops.base import batch_front, broadcast_p, is_linear, move_axis, size_of
from funcgrad.ops.elementwise.arithmetic import conj, mul, sub
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import NOT_LINEAR, add
from funcgrad.ops.folds import is_away
from funcgrad.ops.linalg.matrices import (
    check_matrices,
    decomposition,
    eye_like,
    eye_mask,
    from_triangle,
    hermitian_part,
    matmul,
    swapped,
    tril,
    triu,
)
from funcgrad.ops.shape import expand_dims, reshape_p, squeeze
from funcgrad.ops.slicing import pad_p, slice_p
from funcgrad.ops.sort import take_along_axis

# Blocks of this size are substituted and eliminated row by row.
BLOCK = 32

# ---- triangular_solve


def _quotients(xp: Any, x: Any, divisor: Any) -> Any:
    """x / divisor. NumPy's complex division takes a reciprocal, so a power of 2 brings divisors
    near 1 first."""
    if x.dtype.kind != "c":
        return x / divisor
    size = xp.maximum(abs(divisor.real), abs(divisor.imag))
    far = size.dtype.type(2.0 ** (int(dtypes.finfo(size.dtype).maxexp) // 2))
    scale = xp.where(size < 1 / far, far, xp.where(size > far, 1 / far, 1))
    return (x * scale) / (divisor * scale)


def _solve_lower(xp: Any, a: Any, b: Any, unit_diagonal: bool) -> Any:
    """a⁻¹ b for lower triangular a; half by half, the halves joined by a product."""
    n = a.shape[-1]
    if n <= BLOCK:
        x = b.copy()
        for i in range(n):
            if i:
                x[..., i, :] -= xp.matmul(a[..., i : i + 1, :i], x[..., :i, :])[..., 0, :]
            if not unit_diagonal:
                x[..., i, :] = _quotients(xp, x[..., i, :], a[..., i, i, None])
        return x
    h = n // 2
    top = _solve_lower(xp, a[..., :h, :h], b[..., :h, :], unit_diagonal)
    rest = b[..., h:, :] - xp.matmul(a[..., h:, :h], top)
    bottom = _solve_lower(xp, a[..., h:, h:], rest, unit_diagonal)
    return xp.concatenate([top, bottom], axis=-2)


def _triangular_abstract(a, b, *, left_side, **params):
    check_matrices("triangular_solve", a, square=True)
    if a.dtype != b.dtype:
        raise DTypeError(f"triangular_solve: operands must have one dtype, got a {a} and b {b}")
    n = a.shape[-1]
    same_batch = a.ndim == b.ndim and a.shape[:-2] == b.shape[:-2]
    if not same_batch or b.shape[-2 if left_side else -1] != n:
        side = "rows" if left_side else "columns"
        raise ShapeError(
            f"triangular_solve: b must have the leading axes of a and {n} {side} "
            f"(left_side={left_side}), got a {a} and b {b}"
        )
    return b


def _triangular_impl(xp, a, b, *, left_side, lower, transpose_a, conjugate_a, unit_diagonal):
    if conjugate_a:
        a = xp.conj(a)
    if not left_side:
        # x op(a) = b says the same as op(a)ᵀ xᵀ = bᵀ.
        b, transpose_a = xp.swapaxes(b, -1, -2), not transpose_a
    if transpose_a:
        a, lower = xp.swapaxes(a, -1, -2), not lower
    if lower:
        x = _solve_lower(xp, a, b, unit_diagonal)
    else:
        flipped = xp.ascontiguousarray(a[..., ::-1, ::-1])
        x = _solve_lower(xp, flipped, b[..., ::-1, :], unit_diagonal)[..., ::-1, :]
    return x if left_side else xp.swapaxes(x, -1, -2)


def _triangular_jvp(primals, tangents, **params):
    (a, b), (g_a, g_b) = primals, tangents
    x = triangular_solve_p.bind(a, b, **params)
    right: Any = g_b
    if type(g_a) is not Zero:
        strict = 1 if params["unit_diagonal"] else 0
        part = tril(g_a, -strict) if params["lower"] else triu(g_a, strict)
        part = conj(part) if params["conjugate_a"] else part
        part = swapped(part) if params["transpose_a"] else part
        moved = matmul(part, x) if params["left_side"] else matmul(x, part)
        right = mul(moved, -1) if type(g_b) is Zero else sub(g_b, moved)
    if type(right) is Zero:
        return x, Zero(aval_of(x).tangent())
    return x, triangular_solve_p.bind(a, right, **params)


def _triangular_transpose(ct, a, b, *, transpose_a, **params):
    assert is_linear(b), "triangular_solve is linear in b alone"
    return [None, triangular_solve_p.bind(a, ct, transpose_a=not transpose_a, **params)]


def _triangular_batch(axis, args, dims, **params):
    (a, b), (ad, bd) = args, dims
    rank = aval_of(a).ndim
    if ad is None:
        # The lanes of b are further columns (rows) of one system.
        at = rank - 1 if params["left_side"] else rank - 2
        b = move_axis(b, bd, at)
        shape = aval_of(b).shape
        merged = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
        x = triangular_solve_p.bind(a, reshape_p.bind(b, new_sizes=merged), **params)
        return reshape_p.bind(x, new_sizes=shape), at
    a, b = batch_front(a, ad, axis.size), batch_front(b, bd, axis.size)
    return triangular_solve_p.bind(a, b, **params), 0


def _triangular_dims(a, b, *, left_side, **params):
    lead = " ".join(f"b{i}" for i in range(a.ndim - 2))
    own = f"{lead} n! k" if left_side else f"{lead} k n!"
    return f"{lead} n! m!, {own} -> {own}"


triangular_solve_p: Primitive = Primitive(
    name="triangular_solve",
    abstract=_triangular_abstract,
    impl=_triangular_impl,
    jvp=_triangular_jvp,
    transpose=_triangular_transpose,
    batch=_triangular_batch,
    dims=_triangular_dims,
)


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """x with op(a) x = b (if `left_side`) or x op(a) = b, for triangular a.

    Only the lower or upper triangle of a is read, without the diagonal if `unit_diagonal`; op
    transposes and conjugates as said. b may lack the axis that a system doesn't need (a vector).
    Raises ShapeError where shapes don't fit; a zero on the diagonal gives inf or NaN.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> a, b = np.float32([[2, 0], [1, 4]]), np.float32([[2], [9]])
    >>> lax.linalg.triangular_solve(a, b, left_side=True, lower=True)
    Array([[1.],
           [2.]], dtype=float32)
    """
    vector = aval_of(b).ndim == aval_of(a).ndim - 1
    place = (-1,) if left_side else (-2,)
    x = triangular_solve_p.bind(
        a,
        expand_dims(b, place) if vector else b,
        left_side=bool(left_side),
        lower=bool(lower),
        transpose_a=bool(transpose_a),
        conjugate_a=bool(conjugate_a) and aval_of(a).dtype.kind == "c",
        unit_diagonal=bool(unit_diagonal),
    )
    return squeeze(x, place) if vector else x


# ---- cholesky


def _cholesky_abstract(x):
    check_matrices("cholesky", x, square=True)
    return x


def _cholesky_impl(xp, x):
    if is_away(x):
        # CuPy raises nothing: what isn't positive definite shows in the factor.
        factor = xp.linalg.cholesky(x)
        positive = (xp.diagonal(factor, axis1=-2, axis2=-1).real > 0).all(axis=-1)
        none = xp.tril(xp.full(x.shape, np.nan, x.dtype))
        return xp.where(positive[..., None, None], factor, none)
    try:
        return xp.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        if x.ndim > 2:
            parts = [_cholesky_impl(xp, m) for m in x.reshape((-1, *x.shape[-2:]))]
            return xp.stack(parts).reshape(x.shape)
        return xp.tril(xp.full(x.shape, np.nan, x.dtype))


def _cholesky_jvp(primals, tangents):
    """dL = L Φ(L⁻¹ dA L⁻ᴴ), where Φ takes the lower triangle and half of the diagonal."""
    (a,), (g,) = primals, tangents
    low = cholesky_p.bind(a)
    inner = triangular_solve(
        low, from_triangle(g, lower=True), lower=True, transpose_a=True, conjugate_a=True
    )
    inner = triangular_solve(low, inner, left_side=True, lower=True)
    half = select(eye_mask(inner), mul(inner, 0.5), inner)
    return low, matmul(low, tril(half))


def _cholesky_batch(axis, args, dims):
    return cholesky_p.bind(move_axis(args[0], dims[0], 0)), 0


def _cholesky_dims(x):
    lead = " ".join(f"b{i}" for i in range(x.ndim - 2))
    return f"{lead} m! n! -> {lead} m! n!"


cholesky_p: Primitive = Primitive(
    name="cholesky",
    abstract=_cholesky_abstract,
    impl=_cholesky_impl,
    jvp=_cholesky_jvp,
    transpose=NOT_LINEAR,
    batch=_cholesky_batch,
    dims=_cholesky_dims,
)


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Any:
    """The lower triangular L with L Lᴴ = x, for Hermitian positive definite matrices.

    `symmetrize_input` takes (x + xᴴ) / 2 first; else only the lower triangle is read. A matrix
    that isn't positive definite gives NaN.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> lax.linalg.cholesky(np.float32([[4, 2], [2, 5]]))
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    check_matrices("cholesky", aval_of(x), square=True)
    return cholesky_p.bind(hermitian_part(x) if symmetrize_input else x)


# ---- lu


def _lu_abstract(x):
    check_matrices("lu", x)
    *lead, m, n = x.shape
    integer = np.dtype(np.int32)
    pivots = ShapedArray((*lead, min(m, n)), integer)
    return [x.strong(), pivots, ShapedArray((*lead, m), integer)]


def _magnitude(x: Any) -> Any:
    """What LAPACK compares when it looks for a pivot."""
    return abs(x.real) + abs(x.imag) if x.dtype.kind == "c" else abs(x)


def _lu_impl(xp, x):
    """Elimination with partial pivoting: columns within a block, products between blocks."""
    *lead, m, n = x.shape
    a = x.reshape((size_of(lead), m, n)).copy()
    k, rows = min(m, n), xp.arange(len(a))
    pivots = xp.empty((len(a), k), np.int32)
    order = xp.tile(xp.arange(m, dtype=np.int32), (len(a), 1))
    for start in range(0, k, BLOCK):
        end = min(start + BLOCK, k)
        for j in range(start, end):
            pivots[:, j] = best = j + xp.argmax(_magnitude(a[:, j:, j]), axis=1)
            for rows_of in (a, order):
                held = rows_of[rows, best]
                rows_of[rows, best] = rows_of[:, j]
                rows_of[:, j] = held
            divisor = a[:, j, j]
            divisor = xp.where(divisor == 0, 1, divisor)[:, None]
            a[:, j + 1 :, j] = _quotients(xp, a[:, j + 1 :, j], divisor)
            below = a[:, j + 1 :, j, None] * a[:, j, None, j + 1 : end]
            a[:, j + 1 :, j + 1 : end] -= below
        if end < n:
            block = a[:, start:end, start:end]
            a[:, start:end, end:] = _solve_lower(xp, block, a[:, start:end, end:], True)
            a[:, end:, end:] -= xp.matmul(a[:, end:, start:end], a[:, start:end, end:])
    return [a.reshape(x.shape), pivots.reshape((*lead, k)), order.reshape((*lead, m))]


def _lu_jvp(primals, tangents):
    """dL = L tril(M, -1) and dU = triu(M) U with M = L⁻¹ P dA U⁻¹, L and U filled up to squares."""
    (a,), (g,) = primals, tangents
    lu_, pivots, order = lu_p.bind(a)
    *lead, m, n = aval_of(a).shape
    k, rank = min(m, n), len(lead) + 2
    wide = broadcast_p.bind(order, shape=(*lead, m, n), broadcast_dimensions=tuple(range(rank - 1)))
    permuted = take_along_axis(g, wide, rank - 2)
    low = _square(tril(_corner(lu_, m, k), -1), m, 0)
    low = add(low, eye_like(low))
    up = _square(triu(_corner(lu_, k, n)), n, k)
    inner = triangular_solve(low, permuted, left_side=True, lower=True, unit_diagonal=True)
    inner = triangular_solve(up, inner)
    tangent = add(matmul(low, tril(inner, -1)), matmul(triu(inner), up))
    zeros = [Zero(aval_of(v).tangent()) for v in (pivots, order)]
    return [lu_, pivots, order], [tangent, *zeros]


def _corner(x: Any, m: int, n: int) -> Any:
    shape = aval_of(x).shape
    limits = (*shape[:-2], m, n)
    return slice_p.bind(x, start_indices=(0,) * len(shape), limit_indices=limits, strides=None)


def _square(x: Any, n: int, eye_from: int) -> Any:
    """x filled with zeros to n × n, and with ones on the diagonal from `eye_from` on."""
    aval = aval_of(x)
    *lead, rows, columns = aval.shape
    config = (*((0, 0, 0) for _ in lead), (0, n - rows, 0), (0, n - columns, 0))
    zero = np.zeros((), aval.dtype)
    wide = pad_p.bind(x, zero, padding_config=config)
    if not 0 < eye_from < n:
        return wide
    fill = n - eye_from
    small = np.eye(fill, dtype=aval.dtype)
    ones = broadcast_p.bind(
        small, shape=(*lead, fill, fill), broadcast_dimensions=(len(lead), len(lead) + 1)
    )
    place = (*((0, 0, 0) for _ in lead), (eye_from, 0, 0), (eye_from, 0, 0))
    return add(wide, pad_p.bind(ones, zero, padding_config=place))


lu_p: Primitive = decomposition("lu", _lu_abstract, _lu_impl, _lu_jvp, lambda: ("m! n!", ".", "m!"))


def lu(x: Any) -> tuple[Any, Any, Any]:
    """The LU decomposition with partial pivoting: (lu, pivots, permutation).

    L (with ones on its diagonal, not stored) and U share `lu`, and L U = x[permutation]. Row j was
    swapped with row pivots[j], in turn. A singular matrix has a zero on U's diagonal.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> factors, pivots, permutation = lax.linalg.lu(np.float32([[1, 2], [2, 8]]))
    >>> factors
    Array([[ 2. ,  8. ],
           [ 0.5, -2. ]], dtype=float32)
    >>> permutation
    Array([1, 0], dtype=int32)
    """
    factors, pivots, permutation = lu_p.bind(x)
    return factors, pivots, permutation


def _permutation_abstract(pivots, *, permutation_size):
    if not pivots.ndim or pivots.dtype != np.int32:
        raise DTypeError(f"lu_pivots_to_permutation: need pivots (…, k) of int32, got {pivots}")
    if permutation_size < pivots.shape[-1]:
        raise ShapeError(
            f"lu_pivots_to_permutation: permutation_size {permutation_size} is less than the "
            f"number of pivots in {pivots}"
        )
    return pivots.update(shape=(*pivots.shape[:-1], permutation_size))


def _permutation_impl(xp, pivots, *, permutation_size):
    *lead, k = pivots.shape
    flat = pivots.reshape((size_of(lead), k))
    rows = xp.arange(len(flat))
    order = xp.tile(xp.arange(permutation_size, dtype=np.int32), (len(flat), 1))
    for j in range(k):
        held = order[rows, flat[:, j]]
        order[rows, flat[:, j]] = order[:, j]
        order[:, j] = held
    return order.reshape((*lead, permutation_size))


def _permutation_batch(axis, args, dims, **params):
    return lu_pivots_to_permutation_p.bind(move_axis(args[0], dims[0], 0), **params), 0


def _permutation_dims(pivots, *, permutation_size):
    lead = " ".join(f"b{i}" for i in range(pivots.ndim - 1))
    return f"{lead} k! -> {lead} ."


lu_pivots_to_permutation_p: Primitive = Primitive(
    name="lu_pivots_to_permutation",
    abstract=_permutation_abstract,
    impl=_permutation_impl,
    jvp=NoRule("its operand and result are integers"),
    transpose=NoRule("its operand and result are integers"),
    batch=_permutation_batch,
    dims=_permutation_dims,
)


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Any:
    """The order of rows after swapping row j with row pivots[j], for each j in turn.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> lax.linalg.lu_pivots_to_permutation(np.int32([2, 2, 2]), 3)
    Array([2, 0, 1], dtype=int32)
    """
    size = integer("permutation_size", permutation_size)
    return lu_pivots_to_permutation_p.bind(pivots, permutation_size=size)


def solve(a: Any, b: Any) -> Any:
    """a⁻¹ b for square matrices a and matrices b, by LU decomposition.

    >>> import numpy as np
    >>> solve(np.float32([[1, 2], [2, 8]]), np.float32([[5], [18]]))
    Array([[1.],
           [2.]], dtype=float32)
    """
    factors, _, order = lu(a)
    rank = aval_of(b).ndim
    wide = broadcast_p.bind(
        order, shape=aval_of(b).shape, broadcast_dimensions=tuple(range(rank - 1))
    )
    x = take_along_axis(b, wide, rank - 2)
    x = triangular_solve(factors, x, left_side=True, lower=True, unit_diagonal=True)
    return triangular_solve(factors, x, left_side=True)
