"""Direct solutions of sparse equations, by SciPy; for iterative ones see `scipy.sparse.linalg`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.sparse.arrays import BCSR
from funcgrad.sparse.compressed import bcsr_from_bcoo, bcsr_to_bcoo
from funcgrad.sparse.structure import bcoo_transpose
from funcgrad.transforms.callbacks import pure_callback
from funcgrad.transforms.derivatives.implicit import custom_linear_solve

__all__ = ["spsolve"]


def spsolve(
    data: Any, indices: Any, indptr: Any, b: Any, tol: float = 1e-6, reorder: int = 1
) -> Any:
    """x with A x = b, for a square A given row by row as in `BCSR`, by SuperLU (SciPy is needed).

    data, indices (nse,), indptr (n + 1,), b (n,), of float32, float64 or complex numbers. reorder:
    0 keeps the order of unknowns, else it is chosen so that factors stay sparse; tol has no effect.
    The derivative of a solution is another solution, with the transposed matrix in reverse mode;
    that with respect to data is at the stored elements alone. Each solution factors the matrix
    anew, on the host: within `jit` it is a call of Python. A singular matrix gives NaN.

    Raises ShapeError and DTypeError where arrays don't fit.

    >>> from funcgrad import sparse
    >>> m = sparse.BCSR.fromdense(fnp.array([[2.0, 0.0], [1.0, 4.0]]))
    >>> sparse.linalg.spsolve(m.data, m.indices, m.indptr, fnp.array([2.0, 9.0]))
    Array([1., 2.], dtype=float32)
    """
    data, b = fnp.asarray(data), fnp.asarray(b)
    if b.ndim != 1:
        raise ShapeError(f"spsolve: b must be a vector, got the shape {b.shape}")
    if reorder not in (0, 1, 2, 3):
        raise ArgumentError(f"spsolve: reorder must be 0, 1, 2 or 3, got {reorder!r}")
    n = b.shape[0]
    kind = fnp.result_type(data.dtype, b.dtype)
    if not dtypes.is_inexact(kind) or np.dtype(kind).itemsize < 4:
        raise DTypeError(f"spsolve: need float32, float64 or complex numbers, got {kind}")
    mat = BCSR((data.astype(kind), indices, indptr), shape=(n, n))
    if mat.n_dense or mat.n_batch:
        raise ShapeError(f"spsolve: need data (nse,), got {mat.data.shape}")
    turned = bcsr_from_bcoo(bcoo_transpose(bcsr_to_bcoo(mat), permutation=(1, 0)))

    def solve(own: BCSR, matvec: Any, b: Any) -> Any:
        return _solved(own, b, natural=reorder == 0)

    return custom_linear_solve(
        lambda x: mat @ x, b.astype(kind), partial(solve, mat), partial(solve, turned)
    )


def _solved(mat: BCSR, b: Any, natural: bool) -> Any:
    call = partial(_superlu, natural=natural, shape=mat.shape)
    out = ShapeDtypeStruct(b.shape, b.dtype)
    return pure_callback(call, out, mat.data, mat.indices, mat.indptr, b, vmap_method="sequential")


def _superlu(data: Any, indices: Any, indptr: Any, b: Any, *, natural: bool, shape: tuple) -> Any:
    try:
        import scipy.sparse
        import scipy.sparse.linalg
    except ImportError:
        raise ImportError("spsolve needs SciPy: pip install scipy") from None
    data, indices, indptr, b = map(np.asarray, (data, indices, indptr, b))
    end = int(indptr[-1])
    mat = scipy.sparse.csr_array((data[:end], indices[:end], indptr), shape=shape)
    try:
        order = "NATURAL" if natural else "COLAMD"
        factors = scipy.sparse.linalg.splu(mat.tocsc(), permc_spec=order)
        return factors.solve(b).astype(b.dtype)
    except RuntimeError:  # "Factor is exactly singular"
        return np.full_like(b, np.nan)
