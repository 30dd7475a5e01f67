"""Matrices of a special structure, from a few elements or from their size alone."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import DTypeError, ShapeError, within
from funcgrad.numpy._util import (
    as_array,
    default_float,
    default_int,
    dtype_or,
    promote,
    promote_inexact,
)
from funcgrad.ops.arguments import integer


def _elements(name: str, x: Any, argument: str) -> Any:
    return fnp.atleast_1d(as_array(name, x, argument))


def _inexact(name: str, x: Any, argument: str) -> Any:
    return promote_inexact(name, _elements(name, x, argument))[0]


def _size(name: str, n: Any, least: int = 0) -> int:
    n = integer("n", n)
    if n < least:
        need = "n must be a positive integer" if least else "n must not be negative"
        raise ValueError(within(f"{name}: {need}; got {n}"))
    return n


# ---- from their diagonals


def toeplitz(c: Any, r: Any = None) -> Any:
    """Matrices constant along each diagonal, of a first column and a first row.

    The row's first element isn't used; without a row it is the conjugate of the column. Leading
    axes are batch.

    >>> toeplitz(fnp.array([1, 2, 3]), fnp.array([0, 4]))
    Array([[1, 4],
           [2, 1],
           [3, 2]], dtype=int32)
    """
    c = _elements("toeplitz", c, "c")
    r = fnp.conj(c) if r is None else _elements("toeplitz", r, "r")
    return _toeplitz(c, r)


@partial(fnp.vectorize, signature="(m),(n)->(m,n)")
def _toeplitz(c: Any, r: Any) -> Any:
    m, n = c.shape[0], r.shape[0]
    if not m or not n:
        return fnp.zeros((m, n), fnp.result_type(c, r))
    line = fnp.concatenate([c[::-1], r[1:]])
    return line[np.arange(m - 1, -1, -1)[:, None] + np.arange(n)]


def hankel(c: Any, r: Any = None) -> Any:
    """Matrices constant along each antidiagonal, of a first column and a last row.

    The row's first element isn't used; without a row it is zero.

    >>> hankel(fnp.array([1, 2, 3]))
    Array([[1, 2, 3],
           [2, 3, 0],
           [3, 0, 0]], dtype=int32)
    """
    c = as_array("hankel", c, "c")
    r = fnp.zeros_like(c) if r is None else as_array("hankel", r, "r")
    for argument, x in (("c", c), ("r", r)):
        if not x.ndim:
            raise ShapeError(f"hankel: {argument} must be at least 1-dimensional, got a scalar")
    return _hankel(c, r)


@partial(fnp.vectorize, signature="(m),(n)->(m,n)")
def _hankel(c: Any, r: Any) -> Any:
    m, n = c.shape[0], r.shape[0]
    if not m or not n:
        return fnp.zeros((m, n), fnp.result_type(c, r))
    return fnp.concatenate([c, r[1:]])[np.arange(m)[:, None] + np.arange(n)]


def circulant(c: Any) -> Any:
    """Square matrices whose columns are their first one, turned round by one more each.

    >>> circulant(fnp.array([1, 2, 3]))
    Array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]], dtype=int32)
    """
    c = _elements("circulant", c, "c")
    n = np.arange(c.shape[-1])
    return c[..., (n[:, None] - n) % max(1, len(n))]


def convolution_matrix(a: Any, n: int, mode: str = "full") -> Any:
    """The matrix that convolves vectors of n elements with a, in a mode of `fnp.convolve`.

    >>> convolution_matrix(fnp.array([1, 2]), 3, mode="same")
    Array([[1, 0, 0],
           [2, 1, 0],
           [0, 2, 1]], dtype=int32)
    """
    n = _size("convolution_matrix", n, least=1)
    a = as_array("convolution_matrix", a, "a")
    if not a.ndim:
        raise ShapeError("convolution_matrix: a must be at least 1-dimensional, got a scalar")
    m = a.shape[-1]
    if m < 1:
        raise ShapeError(f"convolution_matrix: len(a) must be at least 1; got {a.aval}")
    if mode not in ("full", "valid", "same"):
        raise ValueError(
            within(f"convolution_matrix: mode must be one of 'full', 'valid', 'same'; got {mode!r}")
        )
    cut = {"full": 0, "same": min(n, m) - 1, "valid": 2 * (min(n, m) - 1)}[mode]
    rows = np.arange(m + n - 1)[cut // 2 : m + n - 1 - (cut - cut // 2), None] - np.arange(n)
    inside = (rows >= 0) & (rows < m)
    return fnp.where(inside, a[..., np.where(inside, rows, 0)], fnp.zeros((), a.dtype))


def block_diag(*arrs: Any) -> Any:
    """A matrix with the given ones along its diagonal, and zeros elsewhere.

    Vectors count as rows, scalars as matrices of one element.

    >>> block_diag(fnp.array([[1, 2]]), fnp.array(3))
    Array([[1, 2, 0],
           [0, 0, 3]], dtype=int32)
    """
    parts = [as_array("block_diag", a, f"argument {i}") for i, a in enumerate(arrs)]
    for i, part in enumerate(parts):
        if part.ndim > 2:
            raise ShapeError(
                f"block_diag: arrays must have at most 2 dimensions, got argument {i} {part.aval}"
            )
    if not parts:
        return fnp.zeros((1, 0), default_float())
    dtype = fnp.result_type(*parts)
    parts = [fnp.atleast_2d(part).astype(dtype) for part in parts]
    width, at, rows = sum(part.shape[1] for part in parts), 0, []
    for part in parts:
        columns = part.shape[1]
        rows.append(fnp.pad(part, ((0, 0), (at, width - at - columns))))
        at += columns
    return fnp.concatenate(rows)


# ---- of polynomials and populations


def companion(a: Any) -> Any:
    """The companion matrix of polynomials with coefficients a, highest power first.

    >>> companion(fnp.array([1.0, -3.0, 2.0]))
    Array([[ 3., -2.],
           [ 1.,  0.]], dtype=float32)
    """
    a = _inexact("companion", a, "a")
    n = a.shape[-1]
    if n < 2:
        raise ShapeError(
            f"companion: the length of `a` along the last axis must be at least 2; got {a.aval}"
        )
    first = (-a[..., 1:] / a[..., :1])[..., None, :]
    below = fnp.broadcast_to(fnp.eye(n - 2, n - 1, dtype=a.dtype), (*a.shape[:-1], n - 2, n - 1))
    return fnp.concatenate([first, below], axis=-2)


def fiedler(a: Any) -> Any:
    """The symmetric matrices of distances between the elements of vectors.

    >>> fiedler(fnp.array([1, 4, 6]))
    Array([[0, 3, 5],
           [3, 0, 2],
           [5, 2, 0]], dtype=int32)
    """
    a = _elements("fiedler", a, "a")
    return fnp.abs(a[..., :, None] - a[..., None, :])


def fiedler_companion(a: Any) -> Any:
    """The companion matrix of polynomials (highest power first) with five diagonals.

    M. Fiedler, "A note on companion matrices", 2003.

    >>> fiedler_companion(fnp.array([1.0, -6.0, 11.0, -6.0]))
    Array([[  6., -11.,   1.],
           [  1.,   0.,   0.],
           [  0.,   6.,   0.]], dtype=float32)
    """
    a = _inexact("fiedler_companion", a, "a")
    n = a.shape[-1] - 1
    if n < 0:
        raise ShapeError(
            f"fiedler_companion: the last axis of a must have nonzero length; got {a.aval}"
        )
    a = a / a[..., :1]
    if n < 2:
        return -a[..., 1:, None] if n else fnp.zeros((*a.shape[:-1], 0, 0), a.dtype)
    c = fnp.zeros((*a.shape[:-1], n, n), a.dtype)
    left, right, far = np.arange(2, n, 2), np.arange(1, n, 2), np.arange(3, n, 2)
    c = c.at[..., left - 2, left].set(1).at[..., far, far - 2].set(1)
    c = c.at[..., right - 1, right].set(-a[..., right + 1])
    c = c.at[..., left, left - 1].set(-a[..., left + 1])
    return c.at[..., 0, 0].set(-a[..., 1]).at[..., 1, 0].set(1)


def leslie(f: Any, s: Any) -> Any:
    """Leslie's matrix of fecundities (the first row) and survival (below the diagonal).

    >>> leslie(fnp.array([0.0, 3.0, 1.0]), fnp.array([0.2, 0.5]))
    Array([[0. , 3. , 1. ],
           [0.2, 0. , 0. ],
           [0. , 0.5, 0. ]], dtype=float32)
    """
    f, s = _elements("leslie", f, "f"), _elements("leslie", s, "s")
    if f.shape[-1] < 2:
        raise ShapeError(
            f"leslie: the length of f along the last axis must be at least 2; got {f.aval}"
        )
    if s.shape[-1] != f.shape[-1] - 1:
        raise ShapeError(
            "leslie: Incorrect lengths for f and s: s must have one element less than f, got "
            f"{s.aval} and {f.aval}"
        )
    return _leslie(f, s)


@partial(fnp.vectorize, signature="(n),(m)->(n,n)")
def _leslie(f: Any, s: Any) -> Any:
    f, s = promote("leslie", f, s)
    n = f.shape[0]
    below = fnp.eye(n - 1, n, dtype=s.dtype) * s[:, None]
    return fnp.concatenate([f[None], below])


# ---- of their size alone


def hilbert(n: int) -> Any:
    """Hilbert's matrix, 1 / (i + j + 1), whose condition grows exponentially.

    >>> hilbert(2)
    Array([[1.        , 0.5       ],
           [0.5       , 0.33333334]], dtype=float32)
    """
    i = np.arange(_size("hilbert", n))
    return fnp.array(1 / (i[:, None] + i + 1.0), default_float())


def _binomials(n: int) -> list[list[int]]:
    return [[math.comb(i, j) for j in range(n)] for i in range(n)]


def _of_integers(rows: list[list[int]], n: int) -> Any:
    return fnp.array(np.array(rows, object).reshape(n, n).astype(np.float64), default_float())


def invhilbert(n: int) -> Any:
    """The inverse of Hilbert's matrix, whose elements are integers.

    >>> invhilbert(2)
    Array([[ 4., -6.],
           [-6., 12.]], dtype=float32)
    """
    n, c = _size("invhilbert", n), math.comb
    return _of_integers(
        [
            [
                (-1) ** (i + j) * (i + j + 1)
                * c(n + i, n - j - 1) * c(n + j, n - i - 1) * c(i + j, i) ** 2
                for j in range(n)
            ]
            for i in range(n)
        ],
        n,
    )  # fmt: skip


def _of_kind(name: str, kind: str | None, lower: list[list[int]], symmetric: Any) -> Any:
    n = len(lower)
    if kind is None or kind == "symmetric":
        return _of_integers(symmetric, n)
    if kind not in ("lower", "upper"):
        raise ValueError(
            within(
                f"{name}: Expected kind to be one of 'symmetric', 'lower', 'upper'; got {kind!r}"
            )
        )
    return _of_integers(
        lower if kind == "lower" else [list(row) for row in zip(*lower, strict=True)], n
    )


def pascal(n: int, kind: str | None = None) -> Any:
    """Pascal's triangle as a matrix: symmetric, or its "lower" or "upper" triangular factor.

    >>> pascal(3)
    Array([[1., 1., 1.],
           [1., 2., 3.],
           [1., 3., 6.]], dtype=float32)
    """
    n = _size("pascal", n)
    whole = [[math.comb(i + j, i) for j in range(n)] for i in range(n)]
    return _of_kind("pascal", kind, _binomials(n), whole)


def invpascal(n: int, kind: str | None = None) -> Any:
    """The inverse of `pascal`.

    >>> invpascal(3)
    Array([[ 3., -3.,  1.],
           [-3.,  5., -2.],
           [ 1., -2.,  1.]], dtype=float32)
    """
    n = _size("invpascal", n)
    lower = [[(-1) ** (i + j) * x for j, x in enumerate(row)]
             for i, row in enumerate(_binomials(n))]  # fmt: skip
    whole = [[sum(row[i] * row[j] for row in lower) for j in range(n)] for i in range(n)]
    return _of_kind("invpascal", kind, lower, whole)


def helmert(n: int, full: bool = False) -> Any:
    """Helmert's matrix of contrasts (n - 1, n): orthonormal rows, each of sum zero.

    `full` puts the constant row first, which makes it orthogonal.

    >>> helmert(2, full=True)
    Array([[ 0.70710677,  0.70710677],
           [ 0.70710677, -0.70710677]], dtype=float32)
    """
    n = _size("helmert", n, least=1)
    k = np.arange(1.0, n)[:, None]
    rows = (np.tri(n - 1, n) - k * np.eye(n - 1, n, 1)) / np.sqrt(k * (k + 1))
    if full:
        rows = np.concatenate([np.full((1, n), n**-0.5), rows])
    return fnp.array(rows, default_float())


def hadamard(n: int, dtype: Any = int) -> Any:
    """Hadamard's matrix (Sylvester's construction): orthogonal rows of 1 and -1. n is a power of 2.

    >>> hadamard(2)
    Array([[ 1,  1],
           [ 1, -1]], dtype=int32)
    """
    n = integer("n", n)
    if n < 1 or n & (n - 1):
        raise ValueError(within(f"hadamard: n must be a positive power of 2; got {n}"))
    rows = np.ones((1, 1), np.int8)
    while len(rows) < n:
        rows = np.block([[rows, rows], [rows, -rows]])
    return fnp.array(rows).astype(dtype_or(dtype, default_int()))


def dft(n: int, scale: str | None = None, *, dtype: Any = None) -> Any:
    """The matrix of the discrete Fourier transform, times 1/√n ("sqrtn") or 1/n ("n") by `scale`.

    >>> fnp.round(dft(2))
    Array([[ 1.+0.j,  1.+0.j],
           [ 1.+0.j, -1.-0.j]], dtype=complex64)
    """
    n = _size("dft", n)
    if scale not in (None, "sqrtn", "n"):
        raise ValueError(within(f"dft: scale must be None, 'sqrtn' or 'n'; got {scale!r}"))
    kind = dtype_or(dtype, dtypes.to_complex(default_float()))
    if not dtypes.is_complex(kind):
        raise DTypeError(f"dft: dtype must be a complex floating-point type; got {kind}")
    i = np.arange(n)
    rows = np.exp(-2j * np.pi * (i[:, None] * i % max(1, n)) / max(1, n))
    return fnp.array(rows / {None: 1, "sqrtn": max(1, n) ** 0.5, "n": max(1, n)}[scale], kind)
