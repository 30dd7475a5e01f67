"""Eigenvalues and singular values by Jacobi's rotations, n / 2 pairs of columns in each turn.

A turn rotates columns i and i + n / 2 so that what they have in common is zero, then moves columns
on as players of a round robin: after n - 1 turns each pair has met, and all are where they began
(Brent and Luk, "The solution of singular-value and symmetric eigenvalue problems on multiprocessor
arrays", 1985). Sweeps end where nothing is left but rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.primitive import Primitive
from funcgrad.export.onnx.linalg.factors import qr, transposed
from funcgrad.ops.linalg.decompositions import eigh_p, svd_p

SWEEPS = 30  # float64 takes about ten


def _moved(x: Any) -> Any:
    """Columns where they stand in the next turn: the first stays, the others go round."""
    n = x.shape[-1]
    h = n // 2
    if h == 1:
        return x
    parts = ((0, 1), (h, h + 1), (1, h - 1), (h + 1, n), (h - 1, h))
    return fnp.concatenate([x[..., i:j] for i, j in parts], axis=-1)


def _rotation(a: Any, b: Any, both: Any) -> tuple[Any, Any]:
    """Cosine and sine of the rotations after which `both`, what pairs have in common, is zero."""
    none = both == 0
    ratio = (b - a) / (2 * fnp.where(none, 1, both))
    tangent = fnp.where(ratio < 0, -1, 1) / (fnp.abs(ratio) + fnp.sqrt(1 + ratio * ratio))
    tangent = fnp.where(none, 0, tangent)
    cosine = 1 / fnp.sqrt(1 + tangent * tangent)
    return cosine, tangent * cosine


def _turned(x: Any, cosine: Any, sine: Any) -> Any:
    """Columns i and i + n / 2 of matrices, turned by angles (…, n / 2)."""
    h = x.shape[-1] // 2
    s, left, right = sine[..., None, :], x[..., :h], x[..., h:]
    # What is added is small where angles are: lengths then drift less than by c · x - s · y.
    half = s / (1 + cosine[..., None, :])
    return fnp.concatenate(
        [left - s * (right + half * left), right + s * (left - half * right)], -1
    )


def _normal(v: Any) -> Any:
    """Columns of length 1, of those that many turns left a little shorter or longer."""
    return v / fnp.sqrt(fnp.sum(v * v, axis=-2, keepdims=True))


def _sweeps(n: int, state: Any, turn: Callable[[Any], tuple[Any, Any]]) -> Any:
    """The state after sweeps of n - 1 turns, until one turns nothing.

    turn(state) → the next state, and whether anything was turned, in any matrix of a batch
    """

    def step(_: Any, carried: Any) -> Any:
        state, some = carried
        state, turned = turn(state)
        return state, some | turned

    def sweep(carried: Any) -> Any:
        i, _, state = carried
        state, some = lax.fori_loop(0, n - 1, step, (state, fnp.array(False)))
        return i + 1, some, state

    more = lambda carried: (carried[0] < SWEEPS) & carried[1]  # noqa: E731
    return lax.while_loop(more, sweep, (0, fnp.array(True), state))[2]


def _padded(x: Any, rows: int, columns: int) -> Any:
    *lead, m, n = x.shape
    return fnp.pad(x, [(0, 0)] * len(lead) + [(0, rows - m), (0, columns - n)])


def _diagonal(x: Any) -> Any:
    m, n = x.shape[-2:]
    eye = fnp.eye(m, n, dtype=bool)
    return fnp.sum(fnp.where(eye, x, 0), axis=-2)


def _nan_where(bad: Any, x: Any) -> Any:
    """NaN for matrices (…, 1, 1) whose elements aren't finite."""
    return fnp.where(fnp.reshape(bad, bad.shape[: x.ndim]), np.nan, x)


def eigh(x: Any, *, lower: bool, compute_vectors: bool) -> list[Any]:
    """Eigenvectors and ascending eigenvalues of symmetric matrices, of which a triangle is read."""
    n = x.shape[-1]
    half = fnp.tril(x) if lower else fnp.triu(x)
    a = half + transposed(fnp.tril(x, -1) if lower else fnp.triu(x, 1))
    bad = ~fnp.all(fnp.isfinite(a), axis=(-2, -1), keepdims=True)
    a = fnp.where(bad, 0, a)
    size = max(n + n % 2, 2)
    h = size // 2
    scale = fnp.max(fnp.abs(a), axis=(-2, -1), keepdims=True) if n else fnp.ones((1, 1), x.dtype)
    scale = fnp.where(scale == 0, 1, scale)
    vectors = fnp.broadcast_to(fnp.eye(size, dtype=x.dtype), (*x.shape[:-2], size, size))

    def turn(state: Any) -> Any:
        a, v = state
        d, both = _diagonal(a), _diagonal(a[..., :h, h:])
        meets = fnp.abs(both) > 2 * fnp.finfo(x.dtype).eps
        angles = _rotation(d[..., :h], d[..., h:], fnp.where(meets, both, 0))
        for _ in range(2):  # columns, then rows
            a = transposed(_moved(_turned(a, *angles)))
        return (a, _moved(_turned(v, *angles))), fnp.any(meets)

    a = a / scale
    _, v = _sweeps(size, (_padded(a, size, size), vectors), turn)
    v = _normal(v[..., :n, :n])
    # The eigenvalues by the vectors: of what turns left, rounding has added up.
    values = fnp.sum(v * (a @ v), axis=-2) * scale[..., 0]
    ranks = fnp.argsort(values, axis=-1)
    values = _nan_where(bad[..., 0], fnp.take_along_axis(values, ranks, axis=-1))
    if not compute_vectors:
        return [values]
    v = fnp.take_along_axis(v, ranks[..., None, :], axis=-1)
    return [_nan_where(bad, v), values]


def svd(x: Any, *, full_matrices: bool, compute_uv: bool) -> list[Any]:
    """Singular values, descending, and vectors: columns are turned until they are orthogonal.

    Left vectors are Q of the turned columns' QR, so that they are orthonormal where values are 0.
    """
    *lead, m, n = x.shape
    if m < n:
        found = svd(transposed(x), full_matrices=full_matrices, compute_uv=compute_uv)
        return [found[0], transposed(found[2]), transposed(found[1])] if compute_uv else found
    bad = ~fnp.all(fnp.isfinite(x), axis=(-2, -1), keepdims=True)
    a = fnp.where(bad, 0, x)
    width = max(n + n % 2, 2)
    h = width // 2
    scale = fnp.max(fnp.abs(a), axis=(-2, -1), keepdims=True) if n else fnp.ones((1, 1), x.dtype)
    scale = fnp.where(scale == 0, 1, scale)
    vectors = fnp.broadcast_to(fnp.eye(width, dtype=x.dtype), (*lead, width, width))

    def turn(state: Any) -> Any:
        a, v = state
        p, q = a[..., :h], a[..., h:]
        sums = [fnp.sum(y * z, axis=-2) for y, z in ((p, p), (q, q), (p, q))]
        most = fnp.sqrt(sums[0]) * fnp.sqrt(sums[1])
        meets = fnp.abs(sums[2]) > most * (2 * fnp.finfo(x.dtype).eps)
        angles = _rotation(sums[0], sums[1], fnp.where(meets, sums[2], 0))
        return tuple(_moved(_turned(y, *angles)) for y in (a, v)), fnp.any(meets)

    a = a / scale
    _, v = _sweeps(width, (_padded(a, m, width), vectors), turn)
    v = _normal(v[..., :n, :n])
    a = a @ v
    values = fnp.sqrt(fnp.sum(a * a, axis=-2))
    ranks = fnp.argsort(-values, axis=-1)
    values = fnp.take_along_axis(values, ranks, axis=-1) * scale[..., 0]
    values = _nan_where(bad[..., 0], values)
    if not compute_uv:
        return [values]
    a, v = (fnp.take_along_axis(y, ranks[..., None, :], axis=-1) for y in (a, v))
    u, r = qr(a, full_matrices=full_matrices)
    signs = fnp.where(_diagonal(r) < 0, -1, 1).astype(x.dtype)
    u = fnp.concatenate([u[..., :n] * signs[..., None, :], u[..., n:]], axis=-1)
    return [values, _nan_where(bad, u), _nan_where(bad, transposed(v))]


FORMULAS: dict[Primitive, Callable] = {eigh_p: eigh, svd_p: svd}
