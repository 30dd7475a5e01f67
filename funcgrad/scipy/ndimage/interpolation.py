"""Arrays read at any coordinates, by the nearest element or linearly: maps, zooms, rotations.

A coordinate lies between elements of each axis; the value is the sum over these 2ⁿ corners, with
weights that are products over axes. What lies outside an array is said by the mode.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.core.context import current
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import as_array
from funcgrad.ops.arguments import canonical_axes, integer, items_of, shape_of


def _mirror(index: Any, size: int) -> Any:
    period = max(2 * (size - 1), 1)
    return fnp.abs((index + (size - 1)) % period - (size - 1))


def _reflect(index: Any, size: int) -> Any:
    return (_mirror(2 * index + 1, 2 * size + 1) - 1) // 2


_PLACES: dict[str, Callable[[Any, int], Any]] = {
    "constant": lambda index, size: index,
    "nearest": lambda index, size: fnp.clip(index, 0, size - 1),
    "wrap": lambda index, size: index % size,
    "mirror": _mirror,
    "reflect": _reflect,
}


def _rounded(x: Any) -> Any:
    """The nearest integer, half away from zero."""
    return x if dtypes.is_integer(x.dtype) else lax.round(x)


def _corners(coordinate: Any, order: int) -> list[tuple[Any, Any]]:
    """(index, weight) of the elements that a coordinate reads."""
    if order == 0:
        return [(_rounded(coordinate).astype(np.int32), None)]
    if dtypes.is_integer(coordinate.dtype):
        coordinate = coordinate.astype(current().float_dtype)
    lower = fnp.floor(coordinate)
    upper = coordinate - lower
    index = lower.astype(np.int32)
    return [(index, 1 - upper), (index + 1, upper)]


def _checked(name: str, order: Any, mode: Any) -> int:
    order = integer("order", order)
    if order not in (0, 1):
        raise NotImplementedError(f"{name} requires order<=1, got order={order}")
    if mode not in _PLACES:
        raise NotImplementedError(
            f"{name} does not yet support mode {mode!r}, but {', '.join(_PLACES)}"
        )
    return order


def map_coordinates(
    input: Any, coordinates: Sequence[Any], order: int, mode: str = "constant", cval: Any = 0.0
) -> Any:
    """The elements of an array at coordinates, an array for each of its axes.

    order: 0 takes the nearest element, 1 interpolates linearly. mode: outside the array there is
    `cval` ("constant"), the last element ("nearest"), or the array again ("wrap"), backwards with
    or without its last element ("reflect", "mirror"). The result has the dtype of `input`; integers
    are rounded. Raises NotImplementedError for other orders and modes.

    >>> from funcgrad.scipy import ndimage
    >>> x = fnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> ndimage.map_coordinates(x, [fnp.array([0.0, 0.5]), fnp.array([0.5, 0.5])], order=1)
    Array([1.5, 2.5], dtype=float32)
    """
    name = "map_coordinates"
    x = as_array(name, input, "input")
    given = items_of("coordinates", coordinates)
    if len(given) != x.ndim:
        raise ShapeError(
            f"{name}: coordinates must be a sequence of length input.ndim, but {len(given)} != "
            f"{x.ndim}"
        )
    order = _checked(name, order, mode)
    axes = [fnp.asarray(c) for c in given]
    for c in axes:
        if dtypes.is_complex(c.dtype):
            raise ArgumentError(f"{name}: coordinates must be real, got {c.aval}")
    return _read(x, axes, order, mode, cval)


def _read(x: Any, coordinates: Sequence[Any], order: int, mode: str, cval: Any) -> Any:
    fill = fnp.asarray(cval, x.dtype)
    shape: tuple[int, ...] = fnp.broadcast_shapes(*(c.shape for c in coordinates))
    if mode != "constant" and not x.size and 0 not in shape:
        raise ShapeError(f"an array {x.aval} without elements has none at coordinates")
    per_axis = []
    for c, size in zip(coordinates, x.shape, strict=True):
        corners = _corners(c, order)
        inside = [(i >= 0) & (i < size) if mode == "constant" else None for i, _ in corners]
        per_axis.append([(_PLACES[mode](i, size), ok, w)
                         for (i, w), ok in zip(corners, inside, strict=True)])  # fmt: skip
    total: Any = None
    for corner in itertools.product(*per_axis):
        indices = tuple(i for i, _, _ in corner)
        value = x.at[indices].get(mode="clip") if x.size else fnp.broadcast_to(fill, shape)
        if mode == "constant" and corner and x.size:
            value = fnp.where(
                functools.reduce(operator.and_, (ok for _, ok, _ in corner)), value, fill
            )
        if order and corner:
            value = functools.reduce(operator.mul, (w for _, _, w in corner)) * value
        total = value if total is None else total + value
    return (_rounded(total) if dtypes.is_integer(x.dtype) else total).astype(x.dtype)


def _grid(shape: Sequence[int], dtype: Any) -> list[Any]:
    """The coordinates of each element of a shape, an array for each axis."""
    ones = [1] * len(shape)
    return [
        fnp.arange(n, dtype=dtype).reshape(*ones[:i], n, *ones[i + 1 :])
        for i, n in enumerate(shape)
    ]


def _float_of(x: Any) -> np.dtype:
    kind = np.dtype(dtypes.real_part(x.dtype)) if dtypes.is_inexact(x.dtype) else None
    return current().float_dtype if kind is None or kind.itemsize < 4 else kind


def affine_transform(
    input: Any,
    matrix: Any,
    offset: Any = 0.0,
    output_shape: Any = None,
    order: int = 1,
    mode: str = "constant",
    cval: Any = 0.0,
) -> Any:
    """The elements of an array at matrix @ o + offset for each place o of the result.

    `matrix` is (n, n), its diagonal alone, or with the offset as last column (n, n + 1), also above
    a row (0, …, 0, 1). Orders and modes are those of `map_coordinates` ("constant" interpolates at
    the edge, as SciPy's grid-constant); derivatives exist in matrix and offset.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.affine_transform(fnp.array([1.0, 2.0, 3.0]), fnp.array([0.5]))
    Array([1. , 1.5, 2. ], dtype=float32)
    """
    name = "affine_transform"
    x = as_array(name, input, "input")
    order = _checked(name, order, mode)
    kind, n = _float_of(x), x.ndim
    m = fnp.asarray(matrix, kind)
    if m.shape not in ((n,), (n, n), (n, n + 1), (n + 1, n + 1)):
        raise ShapeError(f"{name}: matrix must be of {n} rows for input {x.aval}, got {m.aval}")
    if m.ndim == 2 and m.shape[1] == n + 1:
        m, offset = m[:n, :n], m[:n, n]
    offset = fnp.broadcast_to(fnp.asarray(offset, kind), (n,))
    shape = x.shape if output_shape is None else shape_of(name, output_shape, "output_shape")
    if len(shape) != n:
        raise ShapeError(f"{name}: output_shape {shape} must have {n} axes, as input {x.aval}")
    grid = _grid(shape, kind)
    if m.ndim == 1:
        places = [m[i] * g + offset[i] for i, g in enumerate(grid)]
    else:
        places = [sum((m[i, j] * g for j, g in enumerate(grid)), offset[i]) for i in range(n)]
    return fnp.broadcast_to(_read(x, places, order, mode, cval), shape)


def shift(input: Any, shift: Any, order: int = 1, mode: str = "constant", cval: Any = 0.0) -> Any:
    """An array moved by `shift` elements, one number or one for each axis; see `map_coordinates`.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.shift(fnp.array([1.0, 2.0, 3.0]), 1)
    Array([0., 1., 2.], dtype=float32)
    """
    x = as_array("shift", input, "input")
    by = -fnp.broadcast_to(fnp.asarray(shift, _float_of(x)), (x.ndim,))
    return affine_transform(x, fnp.ones(x.ndim, by.dtype), by, None, order, mode, cval)


def zoom(
    input: Any,
    zoom: Any,
    order: int = 1,
    mode: str = "constant",
    cval: Any = 0.0,
    *,
    grid_mode: bool = False,
) -> Any:
    """An array resampled to `zoom` times its size, one number or one for each axis.

    First and last elements stay such, or with `grid_mode` the edges of the elements do. See
    `map_coordinates` for orders and modes, `funcgrad.image.resize` for images.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.zoom(fnp.array([1.0, 2.0]), 1.5)
    Array([1. , 1.5, 2. ], dtype=float32)
    """
    x = as_array("zoom", input, "input")
    factors = np.broadcast_to(np.asarray(zoom, float), (x.ndim,))
    shape = tuple(round(n * z) for n, z in zip(x.shape, factors.tolist(), strict=True))
    if min(shape, default=1) < 1:
        raise ArgumentError(f"zoom: factors {zoom!r} leave nothing of input {x.aval}")
    if grid_mode:
        steps = [m / n for m, n in zip(x.shape, shape, strict=True)]
        offset = [(s - 1) / 2 for s in steps]
    else:
        steps = [(m - 1) / (n - 1) if n > 1 else 1.0 for m, n in zip(x.shape, shape, strict=True)]
        offset = [0.0] * x.ndim
    kind = _float_of(x)
    steps, offset = fnp.asarray(np.array(steps), kind), fnp.asarray(np.array(offset), kind)
    return affine_transform(x, steps, offset, shape, order, mode, cval)


def rotate(
    input: Any,
    angle: float,
    axes: tuple[int, int] = (1, 0),
    reshape: bool = True,
    order: int = 1,
    mode: str = "constant",
    cval: Any = 0.0,
) -> Any:
    """An array turned by `angle` degrees in the plane of two axes, about its middle.

    reshape: make room for all of it; then the angle must be known while tracing. See
    `map_coordinates` for orders and modes.

    >>> from funcgrad.scipy import ndimage
    >>> ndimage.rotate(fnp.array([[1.0, 2.0], [3.0, 4.0]]), 90).round(3)
    Array([[2., 4.],
           [1., 3.]], dtype=float32)
    """
    x = as_array("rotate", input, "input")
    if len(tuple(axes)) != 2:
        raise ArgumentError(f"rotate: axes must be two axes, got {axes!r}")
    first, second = sorted(canonical_axes("rotate", axes, x.ndim))
    kind = _float_of(x)
    turn = fnp.asarray(angle, kind) * (math.pi / 180)
    c, s = fnp.cos(turn), fnp.sin(turn)
    shape = list(x.shape)
    if reshape:
        known = math.radians(float(angle))
        cos, sin = abs(math.cos(known)), abs(math.sin(known))
        h, w = x.shape[first], x.shape[second]
        shape[first], shape[second] = int(cos * h + sin * w + 0.5), int(sin * h + cos * w + 0.5)
    middle = [(n - 1) / 2 for n in shape]
    a, b = middle[first], middle[second]
    matrix = fnp.eye(x.ndim, dtype=kind)
    matrix = matrix.at[first, first].set(c).at[second, second].set(c)
    matrix = matrix.at[first, second].set(s).at[second, first].set(-s)
    offset = fnp.zeros(x.ndim, kind)
    offset = offset.at[first].set((x.shape[first] - 1) / 2 - c * a - s * b)
    offset = offset.at[second].set((x.shape[second] - 1) / 2 + s * a - c * b)
    return affine_transform(x, matrix, offset, shape, order, mode, cval)
