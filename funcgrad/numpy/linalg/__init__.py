"""Linear algebra: `funcgrad.numpy.linalg`, as `numpy.linalg` and the array API have it.

Matrices are the last two axes; leading axes are batch.

- `factors`: Cholesky, QR, singular values, eigenvalues
- `norms`: norms of vectors and matrices
- `solvers`: determinants, inverses and solutions of linear equations
"""

from __future__ import annotations

from typing import Any

from funcgrad.errors import ShapeError
from funcgrad.numpy import contraction
from funcgrad.numpy._util import as_array, integer
from funcgrad.numpy.contraction import matmul, tensordot, vecdot
from funcgrad.numpy.creation import diagonals
from funcgrad.numpy.linalg.factors import (
    EighResult,
    EigResult,
    QRResult,
    SVDResult,
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    qr,
    svd,
    svdvals,
)
from funcgrad.numpy.linalg.norms import cond, matrix_norm, norm, vector_norm
from funcgrad.numpy.linalg.solvers import (
    SlogdetResult,
    det,
    inv,
    lstsq,
    matrix_power,
    matrix_rank,
    multi_dot,
    pinv,
    slogdet,
    solve,
    tensorinv,
    tensorsolve,
)
from funcgrad.numpy.manipulation.shape import matrix_transpose

__all__ = [
    "EigResult", "EighResult", "QRResult", "SVDResult", "SlogdetResult", "cholesky", "cond",
    "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer",
    "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross product of vectors of 3 components along an axis; other axes broadcast.

    >>> fnp.linalg.cross(fnp.array([1, 0, 0]), fnp.array([0, 1, 0]))
    Array([0, 0, 1], dtype=int32)
    """
    x1, x2 = as_array("cross", x1, "x1"), as_array("cross", x2, "x2")
    axis = integer("axis", axis)
    for x in (x1, x2):
        if not -x.ndim <= axis < x.ndim or x.shape[axis] != 3:
            raise ShapeError(f"cross: need 3 components along axis {axis}, got {x.aval}")
    return contraction.cross(x1, x2, axis=axis)


def outer(x1: Any, x2: Any, /) -> Any:
    """The products of all elements of two vectors, as a matrix.

    >>> fnp.linalg.outer(fnp.array([1, 2]), fnp.array([3, 4]))
    Array([[3, 4],
           [6, 8]], dtype=int32)
    """
    x1, x2 = as_array("outer", x1, "x1"), as_array("outer", x2, "x2")
    if x1.ndim != 1 or x2.ndim != 1:
        raise ShapeError(f"outer: need vectors, got x1 {x1.aval} and x2 {x2.aval}")
    return contraction.outer(x1, x2)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of matrices, `offset` above the main one.

    >>> fnp.linalg.diagonal(fnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int32)
    """
    return diagonals.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sums of the diagonals of matrices.

    >>> fnp.linalg.trace(fnp.array([[1, 2], [3, 4]]))
    Array(5, dtype=int32)
    """
    return contraction.trace(x, offset, -2, -1, dtype)
