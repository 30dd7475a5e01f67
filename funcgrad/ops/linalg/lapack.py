"""Schur's decomposition by the LAPACK that NumPy has loaded, which offers no function for it.

What NumPy's module for linear algebra is linked with is found by name; integers are passed in 64
bits, of which a LAPACK with shorter ones reads the lower half. Where there is none, eigenvectors
are split off one after another.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.linalg import _umath_linalg as linked  # type: ignore[attr-defined]

# How libraries call a routine of Fortran.
_NAMES = ("scipy_{}_64_", "{}_64_", "scipy_{}_", "{}_", "{}$NEWLAPACK$ILP64", "{}$NEWLAPACK")
_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}


@functools.cache
def _routine(name: str) -> Callable | None:
    if sys.byteorder != "little":
        return None
    try:
        library = ctypes.CDLL(linked.__file__)
    except OSError:
        return None
    found = (getattr(library, pattern.format(name), None) for pattern in _NAMES)
    return next((f for f in found if f is not None), None)


def schur(a: np.ndarray, vectors: bool) -> tuple[np.ndarray, np.ndarray]:
    """T and Z with a = Z T Zᴴ for one matrix; real ones have a T with blocks of 2 × 2.

    >>> t, z = schur(np.array([[1.0, 2.0], [0.0, 3.0]]), True)
    >>> t
    array([[1., 2.],
           [0., 3.]])
    """
    run = _routine(f"{_LETTERS[a.dtype.name]}gees")
    if run is None or not a.size:
        return _by_eigenvectors(a)
    n, real = len(a), a.dtype.kind == "f"
    t, z = np.array(a, order="F"), np.zeros((n, n) if vectors else (1, 1), a.dtype, order="F")
    values = np.empty((2, n), a.dtype)
    further = np.empty(n, a.real.dtype)  # room that complex matrices need
    info, size, none = np.zeros(1, np.int64), np.array([n]), np.zeros(1, np.int64)
    job, no = ctypes.c_char_p(b"V" if vectors else b"N"), ctypes.c_char_p(b"N")

    def call(room: np.ndarray, count: int) -> None:
        found = values if real else values[:1]
        arrays = (size, t, size, none, *found, z, size, room, np.array([count]))
        rest = (none, info) if real else (further, none, info)
        words = [ctypes.c_void_p(x.ctypes.data) for x in (*arrays, *rest)]
        run(job, no, None, *words, ctypes.c_size_t(1), ctypes.c_size_t(1))

    room = np.empty(1, a.dtype)
    call(room, -1)
    count = max(1, 3 * n, int(room[0].real))
    call(np.empty(count, a.dtype), count)
    if info[0]:
        t[...] = z[...] = np.nan
    return t, z


def _by_eigenvectors(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An eigenvector (two for a pair of complex ones) makes the first column; then what is left."""
    n = len(a)
    t, z = a.copy(), np.eye(n, dtype=a.dtype)
    k = 0
    while k < n - 1:
        values, found = np.linalg.eig(t[k:, k:])
        first, real = found[:, :1], t.dtype.kind == "f"
        pair = real and bool(values[0].imag != 0)
        columns: Any = np.hstack([first.real, first.imag][: 1 + pair]) if real else first
        width = columns.shape[1]
        if pair:
            columns = columns @ _equal_diagonal(columns, t[k:, k:])
        basis = np.linalg.qr(np.hstack([columns, np.eye(n - k)]))[0].astype(a.dtype)
        t[k:] = basis.conj().T @ t[k:]
        t[:, k:] = t[:, k:] @ basis
        z[:, k:] = z[:, k:] @ basis
        t[k + width :, k : k + width] = 0
        k += width
    return t, z


def _equal_diagonal(columns: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The matrix that makes two columns orthonormal, such that the block has an equal diagonal."""
    q, r = np.linalg.qr(columns)
    block = q.T @ a @ q
    angle = np.arctan2(block[1, 1] - block[0, 0], block[0, 1] + block[1, 0]) / 2
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.linalg.solve(r, turn).astype(a.dtype)
