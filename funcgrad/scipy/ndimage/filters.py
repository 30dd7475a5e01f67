"""Filters: each element becomes a weighted sum of those around it.

The array is extended by what the mode says lies outside, then correlated with the weights. Filters
that are products go axis by axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.core.context import current
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import as_array
from funcgrad.ops.arguments import canonical_axes, canonical_axis, integer

_PADS = {
    "reflect": "symmetric", "grid-mirror": "symmetric", "constant": "constant",
    "grid-constant": "constant", "nearest": "edge", "mirror": "reflect", "wrap": "wrap",
    "grid-wrap": "wrap",
}  # fmt: skip


def _extended(name: str, x: Any, widths: Sequence[tuple[int, int]], mode: Any, cval: Any) -> Any:
    if mode not in _PADS:
        raise ArgumentError(f"{name}: mode must be one of {', '.join(_PADS)}, got {mode!r}")
    if _PADS[mode] == "constant":
        return fnp.pad(x, widths, constant_values=cval)
    for d, size in enumerate(x.shape):
        if size == 1 and _PADS[mode] == "reflect":  # one element is all its mirror images
            x = fnp.pad(x, [w if i == d else (0, 0) for i, w in enumerate(widths)], mode="edge")
            widths = [(0, 0) if i == d else w for i, w in enumerate(widths)]
    return fnp.pad(x, widths, mode=_PADS[mode])


def _floats(name: str, x: Any, weights: Any, argument: str = "input") -> tuple[Any, Any, Any]:
    """An array and weights in the dtype to compute in, and the result's dtype."""
    x = as_array(name, x, argument)
    w = fnp.asarray(weights)
    kind = x.dtype if dtypes.is_inexact(x.dtype) else current().float_dtype
    if dtypes.is_complex(w.dtype):
        kind = dtypes.to_complex(kind)
    result = kind if dtypes.is_complex(kind) else x.dtype
    return x.astype(kind), w.astype(kind), result


def _sum_along(
    x: Any, weights: Any, before: int, axis: int, mode: str, cval: Any, name: str
) -> Any:
    """Σⱼ weights[j] x[i + j - before] along an axis."""
    size, n = weights.shape[0], x.shape[axis]
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, size - 1 - before)
    whole = fnp.moveaxis(_extended(name, x, widths, mode, cval), axis, -1)
    lead = whole.shape[:-1]
    flat = whole.reshape(-1, 1, whole.shape[-1])
    out = lax.conv_general_dilated(flat, weights[None, None], (1,), "VALID", precision="highest")
    return fnp.moveaxis(out.reshape(*lead, n), -1, axis)


def _before(name: str, size: int, origin: Any) -> int:
    """How many of the weights stand before the element itself."""
    origin = integer("origin", origin)
    if not -(size // 2) <= origin <= (size - 1) // 2:
        raise ValueError(f"{name}: origin {origin} is outside of {size} weights")
    return size // 2 + origin


def correlate1d(
    input: Any,
    weights: Any,
    axis: int = -1,
    mode: str = "reflect",
    cval: Any = 0.0,
    origin: int = 0,
) -> Any:
    """Sums of elements along an axis, with weights whose middle is at the element.

    mode: outside the array there is `cval` ("constant"), the last element ("nearest"), or the array
    again ("wrap"), backwards with or without its last element ("reflect", "mirror"). origin moves
    the weights. The result has the dtype of the input.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.correlate1d(fnp.array([1.0, 2.0, 4.0]), fnp.array([-1.0, 0.0, 1.0]))
    Array([1., 3., 2.], dtype=float32)
    """
    return _correlate1d("correlate1d", input, weights, axis, mode, cval, origin)


def _correlate1d(
    name: str, input: Any, weights: Any, axis: Any, mode: str, cval: Any, origin: Any
) -> Any:
    x, w, result = _floats(name, input, weights)
    if w.ndim != 1 or not w.shape[0]:
        raise ShapeError(f"{name}: weights must be a vector, got {w.aval}")
    axis = canonical_axis(name, axis, x.ndim)
    before = _before(name, w.shape[0], origin)
    return _sum_along(x, w, before, axis, mode, cval, name).astype(result)


def convolve1d(
    input: Any,
    weights: Any,
    axis: int = -1,
    mode: str = "reflect",
    cval: Any = 0.0,
    origin: int = 0,
) -> Any:
    """`correlate1d` with the weights reversed.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.convolve1d(fnp.array([1.0, 2.0, 4.0]), fnp.array([1.0, 0.0, -1.0]))
    Array([1., 3., 2.], dtype=float32)
    """
    w = fnp.asarray(weights)
    if w.ndim != 1 or not w.shape[0]:
        raise ShapeError(f"convolve1d: weights must be a vector, got {w.aval}")
    origin = -integer("origin", origin) - (w.shape[0] % 2 == 0)
    return _correlate1d("convolve1d", input, w[::-1], axis, mode, cval, origin)


def _correlate(name: str, input: Any, weights: Any, mode: str, cval: Any, origin: Any) -> Any:
    x, w, result = _floats(name, input, weights)
    if w.ndim != x.ndim or not w.size:
        raise ShapeError(f"{name}: weights must have an axis for each of input's, got "
                         f"{w.aval} for input {x.aval}")  # fmt: skip
    origins = np.broadcast_to(np.asarray(origin), (x.ndim,)).tolist()
    before = [_before(name, n, o) for n, o in zip(w.shape, origins, strict=True)]
    widths = [(b, n - 1 - b) for b, n in zip(before, w.shape, strict=True)]
    whole = _extended(name, x, widths, mode, cval)
    strides = (1,) * x.ndim
    if not x.ndim:
        return (x * w).astype(result)
    out = lax.conv_general_dilated(
        whole[None, None], w[None, None], strides, "VALID", precision="highest"
    )
    return out[0, 0].astype(result)


def correlate(
    input: Any, weights: Any, mode: str = "reflect", cval: Any = 0.0, origin: Any = 0
) -> Any:
    """Sums of the elements around each one, with weights of as many axes; see `correlate1d`.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.correlate(fnp.eye(3), fnp.ones((3, 3)), mode="constant")
    Array([[2., 2., 1.],
           [2., 3., 2.],
           [1., 2., 2.]], dtype=float32)
    """
    return _correlate("correlate", input, weights, mode, cval, origin)


def convolve(
    input: Any, weights: Any, mode: str = "reflect", cval: Any = 0.0, origin: Any = 0
) -> Any:
    """`correlate` with the weights reversed along all axes.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.convolve(fnp.eye(2), fnp.array([[0.0, 2.0]]), mode="constant")
    Array([[2., 0.],
           [0., 2.]], dtype=float32)
    """
    w = fnp.asarray(weights)
    origins = np.broadcast_to(np.asarray(origin), (w.ndim,)).tolist()
    origins = [-o - (n % 2 == 0) for o, n in zip(origins, w.shape, strict=True)]
    return _correlate("convolve", input, fnp.flip(w), mode, cval, origins)


def _gaussian(sigma: Any, order: int, radius: int, dtype: Any) -> Any:
    """A Gaussian's samples, or those of its derivative, in the order of a correlation."""
    x = fnp.arange(-radius, radius + 1, dtype=dtype)
    s2 = sigma * sigma
    phi = fnp.exp(-0.5 * x * x / s2)
    phi = phi / fnp.sum(phi)
    # The derivatives of exp(p) q are exp(p) (q' + q p') with p' = -x / σ²: Hermite polynomials.
    q, before = fnp.ones_like(x), fnp.zeros_like(x)
    for k in range(order):
        q, before = -(x * q + k * before) / s2, q
    return (q * phi)[::-1]


def gaussian_filter1d(
    input: Any,
    sigma: Any,
    axis: int = -1,
    order: int = 0,
    mode: str = "reflect",
    cval: Any = 0.0,
    truncate: float = 4.0,
    *,
    radius: int | None = None,
) -> Any:
    """Averages along an axis weighted by a Gaussian, or by its derivative of an order.

    The weights reach to `radius` elements, by default to `truncate` sigma; where the radius is
    given, sigma may be traced and has derivatives. See `correlate1d` for modes.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.gaussian_filter1d(fnp.array([0.0, 0.0, 1.0, 0.0, 0.0]), 0.5).round(3)
    Array([0.   , 0.106, 0.787, 0.106, 0.   ], dtype=float32)
    """
    return _gaussian_along(
        "gaussian_filter1d", input, sigma, axis, order, mode, cval, truncate, radius
    )


def _gaussian_along(
    name: str, x: Any, sigma: Any, axis: int, order: int, mode: str, cval: Any,
    truncate: float, radius: Any,
) -> Any:  # fmt: skip
    x = as_array(name, x, "input")
    order = integer("order", order)
    if order < 0:
        raise ValueError(f"{name}: order must be non-negative, got {order}")
    radius = int(truncate * float(sigma) + 0.5) if radius is None else integer("radius", radius)
    if radius < 0:
        raise ValueError(f"{name}: radius must be non-negative, got {radius}")
    kind = dtypes.real_part(x.dtype) if dtypes.is_inexact(x.dtype) else current().float_dtype
    weights = _gaussian(fnp.asarray(sigma, kind), order, radius, kind)
    return _correlate1d(name, x, weights, axis, mode, cval, 0)


def _each(name: str, value: Any, axes: Sequence[int], argument: str) -> list:
    """One value for each axis."""
    values = list(value) if isinstance(value, tuple | list) else [value] * len(axes)
    if len(values) != len(axes):
        raise ShapeError(f"{name}: {argument} {value!r} must be one, or one for each of {axes}")
    return values


def gaussian_filter(
    input: Any,
    sigma: Any,
    order: Any = 0,
    mode: Any = "reflect",
    cval: Any = 0.0,
    truncate: float = 4.0,
    *,
    radius: Any = None,
    axes: Any = None,
) -> Any:
    """Averages weighted by a Gaussian along axes (all by default); see `gaussian_filter1d`.

    sigma, order, mode and radius are one or, as tuples, one for each axis.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.gaussian_filter(fnp.ones((3, 3)), 1.0).round(3)[0]
    Array([1., 1., 1.], dtype=float32)
    """
    name = "gaussian_filter"
    x = as_array(name, input, "input")
    places = canonical_axes(name, range(x.ndim) if axes is None else axes, x.ndim)
    each = [_each(name, v, places, a) for v, a in
            ((sigma, "sigma"), (order, "order"), (mode, "mode"), (radius, "radius"))]  # fmt: skip
    for axis, s, o, m, r in zip(places, *each, strict=True):
        if isinstance(s, int | float) and s <= 1e-15:
            continue
        x = _gaussian_along(name, x, s, axis, o, m, cval, truncate, r)
    return x


def uniform_filter1d(
    input: Any,
    size: int,
    axis: int = -1,
    mode: str = "reflect",
    cval: Any = 0.0,
    origin: int = 0,
) -> Any:
    """Means of `size` elements along an axis; see `correlate1d`.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.uniform_filter1d(fnp.array([0.0, 3.0, 0.0]), 3)
    Array([1., 1., 1.], dtype=float32)
    """
    return _mean("uniform_filter1d", input, size, axis, mode, cval, origin)


def _mean(name: str, x: Any, size: Any, axis: int, mode: str, cval: Any, origin: Any) -> Any:
    size = integer("size", size)
    if size < 1:
        raise ValueError(f"{name}: size must be positive, got {size}")
    x = as_array(name, x, "input")
    kind = x.dtype if dtypes.is_inexact(x.dtype) else current().float_dtype
    return _correlate1d(name, x, fnp.full(size, 1 / size, kind), axis, mode, cval, origin)


def uniform_filter(
    input: Any,
    size: Any = 3,
    mode: Any = "reflect",
    cval: Any = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
) -> Any:
    """Means of the `size` elements around each one along axes (all by default).

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.uniform_filter(9 * fnp.eye(3), mode="constant")
    Array([[2., 2., 1.],
           [2., 3., 2.],
           [1., 2., 2.]], dtype=float32)
    """
    name = "uniform_filter"
    x = as_array(name, input, "input")
    places = canonical_axes(name, range(x.ndim) if axes is None else axes, x.ndim)
    each = [_each(name, v, places, a) for v, a in
            ((size, "size"), (mode, "mode"), (origin, "origin"))]  # fmt: skip
    for axis, n, m, o in zip(places, *each, strict=True):
        x = _mean(name, x, n, axis, m, cval, o)
    return x
