"""Shapes: reshaping, moving and reversing axes, broadcasting. No element is computed with.

Joining and cutting arrays is in `joining`, padding in `padding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.core.eager.single import single
from funcgrad.errors import ShapeError
from funcgrad.numpy import _util
from funcgrad.numpy._keys import for_keys
from funcgrad.numpy._util import as_array, integer
from funcgrad.ops import shape as ops
from funcgrad.ops.arguments import canonical_axes, canonical_axis, integers, sizes_of
from funcgrad.ops.sharding import cut_as_said

__all__ = [
    "reshape", "ravel", "squeeze", "expand_dims",
    "transpose", "permute_dims", "matrix_transpose", "moveaxis", "swapaxes", "rollaxis",
    "flip", "fliplr", "flipud", "rot90",
    "broadcast_to", "broadcast_arrays", "atleast_1d", "atleast_2d", "atleast_3d",
]  # fmt: skip

# ---- reshape


@single
@for_keys
def reshape(
    a: Any, shape: Any, order: str = "C", *, copy: bool | None = None, out_sharding: Any = None
) -> Any:
    """The elements of `a` under a new shape, in row-major order (column-major with order "F").

    One size may be -1 and is inferred. `copy` has no effect: arrays are immutable. `out_sharding`
    is how the result is to be cut over a mesh. Raises ShapeError where the number of elements
    would change.

    >>> fnp.reshape(fnp.arange(6), (2, -1))
    Array([[0, 1, 2],
           [3, 4, 5]], dtype=int32)
    """
    a = as_array("reshape", a, "a")
    sizes = sizes_of("reshape", "shape", shape)
    if order == "C":
        return ops.reshape(a, sizes, out_sharding=out_sharding)
    if order != "F":
        raise ValueError(f"reshape: order must be 'C' or 'F', got {order!r}")
    return cut_as_said(transpose(ops.reshape(transpose(a), sizes[::-1])), out_sharding)


@single
@for_keys
def ravel(a: Any, order: str = "C", *, out_sharding: Any = None) -> Any:
    """All elements in one axis, in row-major order (column-major with order "F").

    `out_sharding` is how the result is to be cut over a mesh.

    >>> fnp.ravel(fnp.array([[1, 2], [3, 4]]))
    Array([1, 2, 3, 4], dtype=int32)
    """
    return reshape(
        a, (-1,) if as_array("ravel", a, "a").size else (0,), order, out_sharding=out_sharding
    )


@single
@for_keys
def squeeze(a: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Drop axes of size 1: those named by `axis`, or all. ShapeError where one is larger.

    >>> fnp.squeeze(fnp.ones((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    a = as_array("squeeze", a, "a")
    if axis is None:
        axis = [i for i, n in enumerate(a.shape) if n == 1]
    return ops.squeeze(a, sizes_of("squeeze", "axis", axis))


@single
@for_keys
def expand_dims(a: Any, axis: int | Sequence[int]) -> Any:
    """Insert axes of size 1 at the positions `axis` of the result.

    >>> fnp.expand_dims(fnp.arange(3), (0, -1)).shape
    (1, 3, 1)
    """
    return ops.expand_dims(as_array("expand_dims", a, "a"), sizes_of("expand_dims", "axis", axis))


# ---- the order of axes


@single
@for_keys
def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """Permute axes: result axis i is `a`'s axis axes[i]; by default their order is reversed.

    >>> fnp.transpose(fnp.array([[1, 2, 3]]))
    Array([[1],
           [2],
           [3]], dtype=int32)
    """
    a = as_array("transpose", a, "a")
    ndim = a.ndim
    order = range(ndim)[::-1] if axes is None else integers("transpose", "axes", axes)
    order = tuple(canonical_axis("transpose", i, ndim) for i in order)
    return ops.transpose(a, order)


def permute_dims(a: Any, /, axes: Sequence[int]) -> Any:
    """Permute axes: result axis i is `a`'s axis axes[i] (the array API's name of `transpose`).

    >>> fnp.permute_dims(fnp.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    return transpose(a, axes)


@single
def matrix_transpose(x: Any, /) -> Any:
    """Swap the last two axes. ShapeError for fewer than two.

    >>> fnp.matrix_transpose(fnp.zeros((5, 2, 3))).shape
    (5, 3, 2)
    """
    x = as_array("matrix_transpose", x, "x")
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose: need at least two axes, got x {x.aval}")
    return swapaxes(x, -1, -2)


@single
@for_keys
def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Move axes `source` to positions `destination`; the others keep their order.

    >>> fnp.moveaxis(fnp.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    a = as_array("moveaxis", a, "a")
    ndim = a.ndim
    sources = canonical_axes("moveaxis", sizes_of("moveaxis", "source", source), ndim)
    targets = canonical_axes("moveaxis", sizes_of("moveaxis", "destination", destination), ndim)
    if len(sources) != len(targets):
        raise ShapeError(
            f"moveaxis: source {source} and destination {destination} must name as many axes"
        )
    order = [i for i in range(ndim) if i not in sources]
    for to, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(to, axis)
    return ops.transpose(a, order)


@single
@for_keys
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Exchange two axes.

    >>> fnp.swapaxes(fnp.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    a = as_array("swapaxes", a, "a")
    ndim = a.ndim
    i, j = (canonical_axis("swapaxes", axis, ndim) for axis in (axis1, axis2))
    order = list(range(ndim))
    order[i], order[j] = j, i
    return ops.transpose(a, order)


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """Move an axis backwards until it lies before position `start`; prefer `moveaxis`.

    >>> fnp.rollaxis(fnp.zeros((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    a = as_array("rollaxis", a, "a")
    ndim = a.ndim
    axis = canonical_axis("rollaxis", axis, ndim)
    start = integer("start", start)
    if not -ndim <= start <= ndim:
        raise ShapeError(f"rollaxis: start {start} must be from {-ndim} to {ndim}")
    start += ndim * (start < 0)
    return moveaxis(a, axis, start - (start > axis))


# ---- reversal


@for_keys
def flip(m: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Reverse the order of elements along axes (all by default).

    >>> fnp.flip(fnp.array([[1, 2], [3, 4]]), axis=1)
    Array([[2, 1],
           [4, 3]], dtype=int32)
    """
    m = as_array("flip", m, "m")
    ndim = m.ndim
    axes = range(ndim) if axis is None else sizes_of("flip", "axis", axis)
    return ops.rev(m, canonical_axes("flip", axes, ndim)) if ndim else m


def _flip_of(name: str, m: Any, axis: int) -> Any:
    m = as_array(name, m, "m")
    if m.ndim <= axis:
        raise ShapeError(f"{name}: need at least {axis + 1} axes, got m {m.aval}")
    return flip(m, axis)


def fliplr(m: Any) -> Any:
    """Reverse the second axis: left to right.

    >>> fnp.fliplr(fnp.array([[1, 2], [3, 4]]))
    Array([[2, 1],
           [4, 3]], dtype=int32)
    """
    return _flip_of("fliplr", m, 1)


def flipud(m: Any) -> Any:
    """Reverse the first axis: upside down.

    >>> fnp.flipud(fnp.array([[1, 2], [3, 4]]))
    Array([[3, 4],
           [1, 2]], dtype=int32)
    """
    return _flip_of("flipud", m, 0)


def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """Rotate by k quarter turns in the plane of two axes, from the first towards the second.

    >>> fnp.rot90(fnp.array([[1, 2], [3, 4]]))
    Array([[2, 4],
           [1, 3]], dtype=int32)
    """
    m = as_array("rot90", m, "m")
    pair = canonical_axes("rot90", axes, m.ndim)
    if len(pair) != 2:
        raise ShapeError(f"rot90: axes must be two different axes, got {axes}")
    turns = integer("k", k) % 4
    if turns == 0:
        return m
    if turns == 2:
        return flip(m, pair)
    if turns == 1:
        return swapaxes(flip(m, pair[1]), *pair)
    return flip(swapaxes(m, *pair), pair[1])


# ---- broadcasting


@single
@for_keys
def broadcast_to(array: Any, shape: Any, *, out_sharding: Any = None) -> Any:
    """Repeat an array to a larger shape by NumPy's rules. ShapeError where it doesn't fit.

    `out_sharding` is how the result is to be cut over a mesh.

    >>> fnp.broadcast_to(fnp.arange(3), (2, 3))
    Array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    array = as_array("broadcast_to", array, "array")
    sizes = sizes_of("broadcast_to", "shape", shape)
    lead = len(sizes) - array.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(array.shape, sizes[lead:], strict=True)):
        raise ShapeError(f"broadcast_to: array {array.aval} does not broadcast to {sizes}")
    return cut_as_said(_util.broadcast_to(array, sizes), out_sharding)


@for_keys
def broadcast_arrays(*args: Any) -> tuple:
    """All arrays repeated to their common shape, in a tuple. ShapeError where they have none.

    >>> [x.shape for x in fnp.broadcast_arrays(fnp.zeros((2, 1)), fnp.zeros(3))]
    [(2, 3), (2, 3)]
    """
    return tuple(_util.broadcast("broadcast_arrays", *args))


def _atleast(name: str, arys: tuple, places: Any) -> Any:
    arrays = [as_array(name, a, "a") for a in arys]
    out = [ops.expand_dims(a, places(a.ndim)) for a in arrays]
    return out[0] if len(out) == 1 else out


def atleast_1d(*arys: Any) -> Any:
    """Arrays of at least one axis; several arguments give a list.

    >>> fnp.atleast_1d(2.0)
    Array([2.], dtype=float32, weak_type=True)
    """
    return _atleast("atleast_1d", arys, lambda ndim: (0,)[ndim:])


def atleast_2d(*arys: Any) -> Any:
    """Arrays of at least two axes, new ones in front; several arguments give a list.

    >>> fnp.atleast_2d(fnp.arange(3)).shape
    (1, 3)
    """
    return _atleast("atleast_2d", arys, lambda ndim: (0, 1)[: max(2 - ndim, 0)])


def atleast_3d(*arys: Any) -> Any:
    """Arrays of at least three axes: (n,) becomes (1, n, 1), and (m, n) becomes (m, n, 1).

    >>> fnp.atleast_3d(fnp.arange(3)).shape
    (1, 3, 1)
    """
    places = {0: (0, 1, 2), 1: (0, 2), 2: (2,)}
    return _atleast("atleast_3d", arys, lambda ndim: places.get(ndim, ()))
