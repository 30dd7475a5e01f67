"""LAPACK's routines as NumPy has loaded them: in the dtype of the operand, where NumPy's functions
compute in doubles, and such as it has no function for.

What NumPy's module for linear algebra is linked with is found by name; integers are passed in 64
bits, of which a LAPACK with shorter ones reads the lower half. `schur` works without LAPACK, too;
other functions are to be called where `has` says so.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.linalg import _umath_linalg as linked

# How libraries call a routine of Fortran.
_NAMES = ("scipy_{}_64_", "{}_64_", "scipy_{}_", "{}_", "{}$NEWLAPACK$ILP64", "{}$NEWLAPACK")
_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}


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


def address(name: str) -> int | None:
    """Where a routine of a full name is; None if it isn't there.

    >>> address("no such routine")
    """
    run = _routine(name)
    return None if run is None else ctypes.cast(run, ctypes.c_void_p).value  # type: ignore[arg-type]


def svd_work(dtype: np.dtype, m: int, n: int, job: bytes) -> int:
    """The size of work space that LAPACK wants for singular values of real matrices.

    >>> svd_work(np.dtype(np.float64), 3, 2, b"N") > 0
    True
    """
    small = np.ones((m, n), dtype)
    svd(small, job == b"A", job != b"N")
    return _rooms["gesdd", small.dtype.char, small.shape, (job, m)]


def eigvals_work(dtype: np.dtype, n: int) -> int:
    """The same for eigenvalues.

    >>> eigvals_work(np.dtype(np.float64), 3) > 0
    True
    """
    small = np.ones((n, n), dtype)
    eig(small, False)
    return _rooms["geev", small.dtype.char, small.shape, (b"N", b"N")]


def has(xp: Any, name: str, x: Any) -> bool:
    """Whether a routine is there for matrices.

    >>> has(np, "no such routine", np.eye(3))
    False
    """
    return xp is np and bool(x.size) and _routine(_LETTERS[x.dtype.char] + name) is not None


@functools.cache
def _constant(value: int | bytes) -> int:
    """The address of a number or a letter, as Fortran takes it; it must not be written to."""
    held = ctypes.c_int64(value) if type(value) is int else ctypes.create_string_buffer(value)
    _held.append(held)
    return ctypes.addressof(held)


def _address(x: Any) -> int:
    """Of a new array in rows, in a third of the time that asking the array takes."""
    return ctypes.addressof(ctypes.c_char.from_buffer(x))


_held: list[Any] = []  # what `_constant` gave addresses of
_rooms: dict[tuple, int] = {}  # the sizes of work space that routines asked for


def _call(name: str, x: np.ndarray, *args: Any, work: int, hidden: int, many: int = 1) -> list[int]:
    """Call a routine for matrices like x, with `info` behind its other arguments: the numbers of
    those for which it failed. Of arrays, given with the words `many` matrices have, comes the next
    part for each.

    work: the position of the pair of work space and its size, which are asked for first; hidden:
    how many lengths of strings there are
    """
    run = _routine(_LETTERS[x.dtype.char] + name)
    assert run is not None
    words, steps = [], []
    for a in args:
        step = 0
        if type(a) is tuple:
            (a,) = a
            step = a.nbytes // many
        steps.append(step)
        words.append(_address(a) if type(a) is np.ndarray else _constant(a))
    info = ctypes.c_int64(0)
    words += [ctypes.addressof(info), *[1] * hidden]
    key = name, x.dtype.char, x.shape[-2:], args[:2]
    count = _rooms.get(key, -1)
    room = np.empty(max(1, count), x.dtype)
    words[work:work] = [_address(room), _constant(count)]
    steps[work:work] = [0, 0]
    if count < 0:
        # Addresses all, but for the lengths of strings behind them.
        run.argtypes, run.restype = [ctypes.c_void_p] * len(words), None  # type: ignore[attr-defined]
        run(*words)
        count = _rooms[key] = max(1, int(room[0].real * 1.0001) + 1)
        room = np.empty(count, x.dtype)
        words[work : work + 2] = [_address(room), _constant(count)]
    run(*words)
    failed = [0] if info.value else []
    moving = [(at, step) for at, step in enumerate(steps) if step]
    for i in range(1, many):
        for at, step in moving:
            words[at] += step
        info.value = 0
        run(*words)
        if info.value:
            failed.append(i)
    return failed


# ---- singular values


def svd(x: np.ndarray, full_matrices: bool, compute_uv: bool) -> list[np.ndarray]:
    """s, and U and Vᴴ if asked for, of finite matrices; NaN where they aren't found.

    >>> svd(np.array([[3.0, 0.0], [0.0, -4.0]]), False, False)
    [array([4., 3.])]
    """
    *lead, m, n = x.shape
    k, many = min(m, n), math.prod(lead)
    real = x.dtype if x.dtype.kind == "f" else x.real.dtype
    job = b"N" if not compute_uv else b"A" if full_matrices else b"S"
    # Matrices are in columns to Fortran.
    a = np.empty((*lead, n, m), x.dtype)
    a[...] = x.swapaxes(-1, -2)
    outs = [np.empty((*lead, k), real)]
    if compute_uv:
        sizes = ((m, m), (n, n)) if full_matrices else ((k, m), (n, k))
        outs += [np.empty((*lead, *size), x.dtype) for size in sizes]
    u, vh = outs[1:] or outs * 2
    rooms = [np.empty(8 * k, np.int64)]
    if x.dtype.kind == "c":
        large = max(m, n)
        rooms.insert(0, np.empty(max(5 * k * k + 7 * k, 2 * large * k + 2 * k * k + k), real))
    outs = [out.swapaxes(-1, -2) if i else out for i, out in enumerate(outs)]
    columns = vh.shape[-1] if compute_uv else 1
    for i in _call("gesdd", x, job, m, n, (a,), m, (outs[0],), (u,), m, (vh,), columns, *rooms,
                   work=10, hidden=1, many=many):  # fmt: skip
        for out in outs:
            out[np.unravel_index(i, tuple(lead))] = np.nan
    return outs


# ---- eigenvalues


def eig(x: np.ndarray, vectors: bool) -> list[np.ndarray]:
    """Eigenvalues, and right eigenvectors if asked for, of finite matrices, all complex; NaN where
    they aren't found.

    >>> eig(np.array([[0.0, 1.0], [-1.0, 0.0]]), False)
    [array([0.+1.j, 0.-1.j])]
    """
    *lead, n, _ = x.shape
    many, real = math.prod(lead), x.dtype.kind == "f"
    a = np.empty(x.shape, x.dtype)
    a[...] = x.swapaxes(-1, -2)
    values = [np.empty((*lead, n), x.dtype) for _ in range(1 + real)]
    found = np.empty((*lead, n, n) if vectors else (many, 1), x.dtype)
    rooms = [] if real else [np.empty(2 * n, x.real.dtype)]
    job, width = (b"V", n) if vectors else (b"N", 1)
    failed = _call(
        "geev", x, b"N", job, n, (a,), n, *[(v,) for v in values], (found,), width, (found,), width,
        *rooms, work=11 - (not real), hidden=2, many=many,
    )  # fmt: skip
    w = values[0] + 1j * values[1] if real else values[0]
    w = w.astype(np.result_type(x.dtype, np.complex64), copy=False)
    outs = [w]
    if vectors:
        rows = found.astype(w.dtype, copy=False)
        if real:
            # Of a pair of conjugate vectors LAPACK has the parts, one after the other.
            *at, j = np.nonzero(values[1] > 0)
            rows[(*at, j)] += 1j * found[(*at, j + 1)]
            rows[(*at, j + 1)] = rows[(*at, j)].conj()
        outs.append(rows.swapaxes(-1, -2))
    for i in failed:
        for out in outs:
            out[np.unravel_index(i, tuple(lead))] = np.nan
    return outs


# ---- Schur's decomposition


def schur(a: np.ndarray, vectors: bool) -> tuple[np.ndarray, np.ndarray]:
    """T and Z with a = Z T Zᴴ for one matrix; real ones have a T with blocks of 2 × 2.

    >>> t, z = schur(np.array([[1.0, 2.0], [0.0, 3.0]]), True)
    >>> t
    array([[1., 2.],
           [0., 3.]])
    """
    if not a.size or _routine(f"{_LETTERS[a.dtype.char]}gees") is None:
        return _by_eigenvectors(a)
    n, real = len(a), a.dtype.kind == "f"
    t, z = np.array(a, order="F"), np.zeros((n, n) if vectors else (1, 1), a.dtype, order="F")
    values, further = np.empty((2, n), a.dtype), np.empty(n, a.real.dtype)
    count = np.zeros(1, np.int64)
    job, found, rooms = (b"V" if vectors else b"N"), values if real else values[:1], [further]
    failed = _call(
        "gees", a, job, b"N", 0, n, t.T, n, count, *found, z.T, len(z), *rooms[real:], 0,
        work=11 - (not real), hidden=2,
    )  # fmt: skip
    if failed:
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
