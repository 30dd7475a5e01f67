"""Polynomials as vectors of coefficients, the highest power first; convolution of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.errors import ShapeError
from funcgrad.numpy._known import along, concrete
from funcgrad.numpy._util import (
    as_array,
    broadcast_shapes,
    broadcast_to,
    convert,
    default_int,
    integer,
    numbers,
    promote,
    promote_inexact,
)
from funcgrad.numpy.contraction import matmul, outer
from funcgrad.numpy.creation.diagonals import diag
from funcgrad.numpy.elementwise.arithmetic import add, multiply, subtract
from funcgrad.numpy.elementwise.functions import conjugate, sqrt
from funcgrad.numpy.linalg import eigvals, inv, lstsq
from funcgrad.numpy.manipulation.indexing import where
from funcgrad.numpy.manipulation.joining import concatenate
from funcgrad.numpy.manipulation.shape import atleast_1d, flip, ravel, reshape
from funcgrad.numpy.reductions.reductions import sum as total_of
from funcgrad.ops import shape as ops
from funcgrad.ops.base import full
from funcgrad.ops.convolution.conv import conv_general_dilated
from funcgrad.ops.cumulative import cumprod
from funcgrad.ops.elementwise.arithmetic import abs as magnitude
from funcgrad.ops.indexing.indexing import index
from funcgrad.ops.sort import argsort
from funcgrad.transforms.control.scan import scan

__all__ = [
    "convolve", "correlate", "poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint",
    "polymul", "polysub", "polyval", "roots", "vander",
]  # fmt: skip

# ---- convolution


def _slide(name: str, a: Any, v: Any, mode: str, preferred: Any, turned: bool) -> Any:
    """Sums of products of two vectors at all their offsets; v is turned around by a convolution."""
    a, v = promote(name, a, v)
    if a.ndim != 1 or v.ndim != 1 or not a.size or not v.size:
        raise ShapeError(f"{name}: need vectors that are not empty, got a {a.aval} and v {v.aval}")
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"{name}: mode must be 'full', 'same' or 'valid', got {mode!r}")
    if turned:
        backwards = False
        a, v = (a, v) if a.size >= v.size else (v, a)
        v = flip(v)
    else:
        backwards = a.size < v.size
        v = conjugate(v)
        a, v = (v, a) if backwards else (a, v)
    n = v.size
    padding = {"full": (n - 1, n - 1), "same": (n // 2, n - n // 2 - 1), "valid": (0, 0)}[mode]
    out = conv_general_dilated(
        reshape(a, (1, 1, -1)),
        reshape(v, (1, 1, -1)),
        (1,),
        [padding],
        preferred_element_type=preferred,
    )
    return flip(ravel(out)) if backwards else ravel(out)


def convolve(
    a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None
) -> Any:
    """The convolution of two vectors: out[k] = Σᵢ a[i] v[k - i].

    Mode "full" gives all offsets at which they overlap, "same" as many as the longer has elements,
    "valid" those at which they overlap completely. `preferred_element_type` is the dtype of sums
    and result.

    >>> fnp.convolve(fnp.array([1, 2, 3]), fnp.array([1, 1]))
    Array([1, 3, 5, 3], dtype=int32)
    """
    return _slide("convolve", a, v, mode, preferred_element_type, turned=True)


def correlate(
    a: Any,
    v: Any,
    mode: str = "valid",
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The correlation of two vectors: out[k] = Σᵢ a[i + k] conj(v[i]); see `convolve` for modes.

    >>> fnp.correlate(fnp.array([1, 2, 3]), fnp.array([1, 10]))
    Array([21, 32], dtype=int32)
    """
    return _slide("correlate", a, v, mode, preferred_element_type, turned=False)


# ---- arithmetic of polynomials


def _vector(name: str, argument: str, p: Any) -> Any:
    p = atleast_1d(as_array(name, p, argument))
    if p.ndim != 1:
        raise ShapeError(f"{name}: {argument} must be a vector, got {p.aval}")
    return p


def _same_degree(name: str, a1: Any, a2: Any) -> list[Any]:
    parts = promote(name, _vector(name, "a1", a1), _vector(name, "a2", a2))
    n = max(p.size for p in parts)
    return [ops.pad(p, full((), 0, p.dtype), [(n - p.size, 0, 0)]) for p in parts]


def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials.

    >>> fnp.polyadd(fnp.array([1, 2, 3]), fnp.array([10, 10]))
    Array([ 1, 12, 13], dtype=int32)
    """
    return add(*_same_degree("polyadd", a1, a2))


def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials.

    >>> fnp.polysub(fnp.array([1, 2, 3]), fnp.array([10, 10]))
    Array([ 1, -8, -7], dtype=int32)
    """
    return subtract(*_same_degree("polysub", a1, a2))


def _trimmed(name: str, argument: str, p: Any, tolerance: float = 0.0) -> Any:
    """A polynomial without leading zeros, whose number must be known."""
    value = concrete(name, argument, p, "Say trim_leading_zeros=False.")
    nonzero = np.flatnonzero(np.abs(value) > tolerance)
    return p[int(nonzero[0]) :] if nonzero.size else p[-1:]


def polymul(a1: Any, a2: Any, *, trim_leading_zeros: bool = False) -> Any:
    """The product of two polynomials.

    With `trim_leading_zeros`, which needs known coefficients, the operands' leading zeros are left
    out of the result.

    >>> fnp.polymul(fnp.array([1, 1]), fnp.array([1, -1]))
    Array([ 1,  0, -1], dtype=int32)
    """
    p, q = _vector("polymul", "a1", a1), _vector("polymul", "a2", a2)
    if trim_leading_zeros:
        p, q = _trimmed("polymul", "a1", p), _trimmed("polymul", "a2", q)
    if not p.size or not q.size:
        p, q = (x if x.size else full((1,), 0, x.dtype) for x in (p, q))
    return convolve(p, q)


def polydiv(u: Any, v: Any, *, trim_leading_zeros: bool = False) -> tuple[Any, Any]:
    """Quotient and remainder of two polynomials.

    The remainder is as long as `u`, its leading coefficients zero; with `trim_leading_zeros`,
    which needs known coefficients, they are left out.

    >>> fnp.polydiv(fnp.array([5.0, 7.0, 9.0]), fnp.array([4.0, 1.0]))[0]
    Array([1.25  , 1.4375], dtype=float32)
    """
    rest, v = promote_inexact("polydiv", _vector("polydiv", "u", u), _vector("polydiv", "v", v))
    n = v.size
    quotient = []
    for k in range(rest.size - n + 1):
        factor = rest[k] / v[0]
        quotient.append(factor)
        # What is divided away is zero, whatever was rounded.
        parts = [full((k + 1,), 0, rest.dtype), rest[k + 1 : k + n] - factor * v[1:], rest[k + n :]]
        rest = concatenate(parts)
    ratio = ops.concatenate([reshape(f, (1,)) for f in quotient], 0) if quotient else None
    if ratio is None:
        ratio = full((1,), 0, rest.dtype)
    if trim_leading_zeros:
        rest = _trimmed("polydiv", "u", rest, float(dtypes.finfo(rest.dtype).eps) ** 0.5)
    return ratio, rest


def polyder(p: Any, m: int = 1) -> Any:
    """The m-th derivative of a polynomial.

    >>> fnp.polyder(fnp.array([1, 1, 1, 1]))
    Array([3, 2, 1], dtype=int32)
    """
    p, m = _vector("polyder", "p", p), integer("m", m)
    if m < 0:
        raise ValueError(f"polyder: m must not be negative, got {m}")
    for _ in range(m):
        p = multiply(p[:-1], Array(np.arange(p.size - 1, 0, -1, dtype=default_int())))
    return p


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The m-th antiderivative of a polynomial, with the constants k (0, one, or m of them).

    >>> fnp.polyint(fnp.array([3.0, 2.0, 1.0]))
    Array([1., 1., 1., 0.], dtype=float32)
    """
    m = integer("m", m)
    if m < 0:
        raise ValueError(f"polyint: m must not be negative, got {m}")
    constants = np.asarray(k) if isinstance(k, list | tuple) else 0 if k is None else k
    p, constants = promote_inexact("polyint", _vector("polyint", "p", p), constants)
    constants = atleast_1d(constants)
    if constants.size == 1:
        constants = broadcast_to(reshape(constants, (1,)), (m,))
    if constants.shape != (m,):
        raise ShapeError(f"polyint: k must be one constant or {m}, got {constants.aval}")
    for i in range(m):
        powers = convert(Array(np.arange(p.size, 0, -1)), p.dtype)
        p = concatenate([p / powers, constants[i : i + 1]])
    return p


def polyval(p: Any, x: Any, *, unroll: int = 16) -> Any:
    """The value at x of a polynomial, by Horner's rule: p[0] xⁿ⁻¹ + … + p[n - 1].

    Further axes of `p` are those of several polynomials; they broadcast with those of `x`.
    Polynomials of up to `unroll` coefficients are written out; longer ones are evaluated in a loop.

    >>> fnp.polyval(fnp.array([1, 0, 2]), 3)
    Array(11, dtype=int32)
    """
    p, x = promote("polyval", atleast_1d(as_array("polyval", p, "p")), x)
    unroll = integer("unroll", unroll)
    shape = broadcast_shapes("polyval", p.shape[1:], x.shape)
    y = full(shape, 0, x.dtype)
    count = p.shape[0]
    if count > max(unroll, 1):
        return scan(lambda y, c: (y * x + c, None), y, p, unroll=unroll)[0]
    for i in range(count):
        y = y * x + p[i] if i else broadcast_to(p[0], shape)
    return y


# ---- roots


def poly(seq_of_zeros: Any) -> Any:
    """The polynomial, with leading coefficient 1, that has the given roots.

    A square matrix gives its characteristic polynomial.

    >>> fnp.poly(fnp.array([1.0, 2.0]))
    Array([ 1., -3.,  2.], dtype=float32)
    """
    (zeros,) = promote_inexact("poly", as_array("poly", seq_of_zeros, "seq_of_zeros"))
    zeros = atleast_1d(zeros)
    if zeros.ndim == 2 and zeros.shape[0] == zeros.shape[1]:
        zeros = eigvals(zeros)
    if zeros.ndim != 1:
        raise ShapeError(f"poly: need a vector of roots or a square matrix, got {zeros.aval}")
    out = full((1,), 1, zeros.dtype)
    none = full((1,), 0, zeros.dtype)
    for i in range(zeros.size):
        out = concatenate([out, none]) - zeros[i] * concatenate([none, out])
    return out


def roots(p: Any, *, strip_zeros: bool = True) -> Any:
    """The roots of a polynomial, complex: eigenvalues of its companion matrix.

    Leading zeros lower its degree. With `strip_zeros`, which needs known coefficients, there are
    as many roots as that; without, there are len(p) - 1, and NaN stands for those that are missing.

    >>> fnp.roots(fnp.array([1.0, -3.0, 2.0]))
    Array([2.+0.j, 1.+0.j], dtype=complex64)
    """
    (p,) = promote_inexact("roots", _vector("roots", "p", p))
    if not strip_zeros:
        return _roots_of_some_degree(p)
    hint = "Say strip_zeros=False: then NaN stands for missing roots."
    value = concrete("roots", "p", p, hint)
    nonzero = np.flatnonzero(value)
    if not nonzero.size:
        return full((0,), 0, dtypes.to_complex(p.dtype))
    first, last = int(nonzero[0]), int(nonzero[-1])
    found = _companion_roots(p[first : last + 1])
    return concatenate([found, full((p.size - 1 - last,), 0, found.dtype)])


def _companion_roots(p: Any) -> Any:
    n = p.size - 1
    if n < 1:
        return full((0,), 0, dtypes.to_complex(p.dtype))
    below = diag(full((n - 1,), 1, p.dtype), -1)
    row = reshape(-p[1:] / p[0], (1, n))
    return eigvals(concatenate([row, below[1:]], axis=0))


def _roots_of_some_degree(p: Any) -> Any:
    """Roots where it isn't known how many leading coefficients are zero."""
    n = p.size
    if n < 2:
        return full((0,), 0, dtypes.to_complex(p.dtype))
    places = ops.iota(np.int32, n)
    leading = total_of(cumprod(convert(p == 0, np.dtype(np.int32))), dtype=np.int32)
    # With the zeros moved to the end, each is a root 0 too many; roots 0 are sorted last.
    p = along(p, (places + leading) % n)
    found = _companion_roots(where(leading == n, full((n,), 1, p.dtype), p))
    found = index(found, argsort(magnitude(found), descending=True))
    missing = places[: n - 1] >= n - 1 - leading
    return where(missing, np.asarray(np.nan, found.dtype), found)


# ---- fits


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The Vandermonde matrix of a vector: columns xᴺ⁻¹ … x, 1 (or 1, x, … if `increasing`).

    >>> fnp.vander(fnp.array([2, 3]), 3)
    Array([[4, 2, 1],
           [9, 3, 1]], dtype=int32)
    """
    x = as_array("vander", x, "x")
    if x.ndim != 1:
        raise ShapeError(f"vander: x must be a vector, got {x.aval}")
    (x,) = numbers(x)
    N = x.size if N is None else integer("N", N)
    if N < 0:
        raise ValueError(f"vander: N must not be negative, got {N}")
    if not N:
        return full((x.size, 0), 0, x.dtype)
    factors = broadcast_to(reshape(x, (-1, 1)), (x.size, N - 1))
    out = cumprod(concatenate([full((x.size, 1), 1, x.dtype), factors], axis=1), 1)
    return out if increasing else flip(out, 1)


def polyfit(
    x: Any,
    y: Any,
    deg: int,
    rcond: Any = None,
    full: bool = False,
    w: Any = None,
    cov: bool | str = False,
) -> Any:
    """The polynomial of degree `deg` with the least sum of squared errors at points (x, y).

    y may have several columns. `w` weighs the errors (before squaring). `rcond` is the relative
    size below which singular values count as zero, by default len(x) times the dtype's epsilon.
    With `full` also residuals, rank, singular values and rcond are returned; with `cov` the
    covariance matrix of the coefficients ("unscaled": not scaled by the residuals).

    >>> x = fnp.array([0.0, 1.0, 2.0])
    >>> fnp.round(fnp.polyfit(x, 2 * x + 1, 1), 3)
    Array([2., 1.], dtype=float32)
    """
    deg = integer("deg", deg)
    as_array("polyfit", x, "x"), as_array("polyfit", y, "y")
    x, y = promote_inexact("polyfit", x, y)
    if deg < 0:
        raise ValueError(f"polyfit: deg must not be negative, got {deg}")
    if x.ndim != 1 or not x.size or y.ndim not in (1, 2) or y.shape[0] != x.size:
        raise ShapeError(f"polyfit: need a vector x and as many rows of y, got {x.aval}, {y.aval}")
    order = deg + 1
    lhs, rhs = vander(x, order), y
    if w is not None:
        w = as_array("polyfit", w, "w")
        if w.shape != x.shape:
            raise ShapeError(f"polyfit: w {w.aval} must have the shape of x {x.aval}")
        lhs = lhs * w[:, None]
        rhs = rhs * (w[:, None] if y.ndim == 2 else w)
    if rcond is None:
        rcond = x.size * float(dtypes.finfo(x.dtype).eps)
    scale = sqrt(total_of(lhs * lhs, axis=0))
    scale = where(scale == 0, 1, scale)
    lhs = lhs / scale
    c, residuals, rank, s = lstsq(lhs, rhs, rcond)
    c = c / (scale[:, None] if y.ndim == 2 else scale)
    if full:
        return c, residuals, rank, s, as_array("polyfit", rcond, "rcond")
    if not cov:
        return c
    base = inv(matmul(lhs.T, lhs)) / outer(scale, scale)
    if cov == "unscaled":
        factor = as_array("polyfit", 1)
    elif x.size <= order:
        raise ValueError(
            f"polyfit: scaling the covariance needs more than {order} points, got {x.size}"
        )
    else:
        factor = residuals / (x.size - order)
    if y.ndim == 1:
        return c, base * reshape(factor, ())
    return c, base[:, :, None] * factor
