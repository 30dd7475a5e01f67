"""Arrays of one value, shapes that broadcast, arrays joined along a new axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.core.array import Array
from funcgrad.core.aval import scalar_dtype
from funcgrad.core.trace import aval_of
from funcgrad.dtypes import canonical
from funcgrad.errors import ShapeError
from funcgrad.ops.arguments import canonical_axis, integer, integers, items_of
from funcgrad.ops.base import broadcast_p
from funcgrad.ops.collective.exchanges import all_to_all
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.shape import broadcast_in_dim, concatenate, expand_dims, reshape, split
from funcgrad.ops.sharding import cut_as_said


def full(shape: Sequence[int], fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
    """An array filled with a scalar, in its dtype unless another is given.

    `sharding` is how it is to be cut over a mesh.

    >>> lax.full((2,), 7, "int8")
    Array([7, 7], dtype=int8)
    """
    sizes = integers("full", "shape", (shape,) if isinstance(shape, int) else shape)
    value = fill_value
    if dtype is not None:
        value = convert_element_type(value, dtype)
    elif not hasattr(value, "aval"):
        value = (
            Array(np.asarray(value, scalar_dtype(value)), type(value) is not bool)
            if (isinstance(value, bool | int | float | complex))
            else Array(np.asarray(value))
        )
    if aval_of(value).shape:
        raise ShapeError(f"full: fill_value must be a scalar, got {aval_of(value)}")
    if sizes:
        value = broadcast_p.bind(value, shape=sizes, broadcast_dimensions=())
    return cut_as_said(value, sharding)


def full_like(
    x: Any, fill_value: Any, dtype: Any = None, shape: Any = None, sharding: Any = None
) -> Any:
    """An array filled with a scalar, in the shape and dtype of x unless others are given.

    `sharding` is how it is to be cut over a mesh.

    >>> lax.full_like(lax.iota("float32", 2), 3)
    Array([3., 3.], dtype=float32)
    """
    aval = aval_of(x)
    sizes = aval.shape if shape is None else shape
    return full(sizes, fill_value, aval.dtype if dtype is None else dtype, sharding=sharding)


def empty(shape: Sequence[int], dtype: Any, *, out_sharding: Any = None) -> Any:
    """An array to be filled by updates: zeros, as arrays always have a value.

    `out_sharding` is how it is to be cut over a mesh.

    >>> lax.empty((2,), "float32")
    Array([0., 0.], dtype=float32)
    """
    return cut_as_said(full(shape, 0, dtype), out_sharding)


def dtype(x: Any) -> np.dtype:
    """The dtype of an array or a scalar, or that which a dtype, its name or its type means.

    >>> lax.dtype(1.0)
    dtype('float32')
    >>> lax.dtype("int8"), lax.dtype(float)
    (dtype('int8'), dtype('float32'))
    """
    if isinstance(x, type) and x in (bool, int, float, complex):
        return scalar_dtype(x())
    return canonical(x) if isinstance(x, type | str | np.dtype) else aval_of(x).dtype


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape to which all shapes broadcast by NumPy's rules. Raises ShapeError if there is none.

    >>> lax.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    shapes = tuple(integers("broadcast_shapes", "shapes", s) for s in shapes)
    ndim = max(map(len, shapes), default=0)
    out = []
    for axis in range(-ndim, 0):
        sizes = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        if len(sizes) > 1:
            raise ShapeError(
                f"broadcast_shapes: {', '.join(map(str, shapes))} can't be broadcast together: "
                f"they have sizes {sorted(sizes)} at axis {axis}"
            )
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def broadcast_to_rank(x: Any, rank: int) -> Any:
    """x with axes of size 1 put before its own, so that it has `rank` axes.

    >>> lax.broadcast_to_rank(lax.iota("int32", 3), 2).shape
    (1, 3)
    """
    missing = integer("rank", rank) - aval_of(x).ndim
    if missing < 0:
        raise ShapeError(f"broadcast_to_rank: {aval_of(x)} has more than {rank} axes")
    return expand_dims(x, tuple(range(missing)))


def broadcast_like(arr: Any, like_arr: Any) -> Any:
    """An array broadcast to the shape of `like_arr` by NumPy's rules.

    >>> lax.broadcast_like(lax.iota("int32", 2), lax.full((2, 2), 0))
    Array([[0, 1],
           [0, 1]], dtype=int32)
    """
    ndim, shape = aval_of(arr).ndim, aval_of(like_arr).shape
    return broadcast_in_dim(arr, shape, tuple(range(len(shape) - ndim, len(shape))))


def stack(operands: Sequence[Any], axis: int = 0) -> Any:
    """Arrays of one shape and dtype, joined along a new axis.

    >>> lax.stack([lax.iota("int32", 2), lax.iota("int32", 2)]).shape
    (2, 2)
    """
    operands = items_of("operands", operands)
    if not operands:
        raise ValueError("stack: need at least one array")
    axis = canonical_axis("stack", axis, aval_of(operands[0]).ndim + 1)
    return concatenate([expand_dims(x, (axis,)) for x in operands], axis)


def unstack(x: Any, axis: int = 0) -> list[Any]:
    """The arrays at each position of an axis, which they lack.

    >>> lax.unstack(lax.iota("int32", 2))
    [Array(0, dtype=int32), Array(1, dtype=int32)]
    """
    shape = aval_of(x).shape
    axis = canonical_axis("unstack", axis, len(shape))
    rest = shape[:axis] + shape[axis + 1 :]
    return [reshape(part, rest) for part in split(x, [1] * shape[axis], axis)]


def tile(operand: Any, reps: Sequence[int]) -> Any:
    """An array repeated reps[i] times along each axis i.

    >>> lax.tile(lax.iota("int32", 2), (2,))
    Array([0, 1, 0, 1], dtype=int32)
    """
    shape = aval_of(operand).shape
    counts = integers("tile", "reps", reps)
    if len(counts) != len(shape):
        raise ShapeError(f"tile: reps {counts} needs one count for each axis of {aval_of(operand)}")
    pairs = [n for pair in zip(counts, shape, strict=True) for n in pair]
    wide = broadcast_in_dim(operand, pairs, tuple(range(1, len(pairs), 2)))
    return reshape(wide, tuple(c * n for c, n in zip(counts, shape, strict=True)))


def pswapaxes(x: Any, axis_name: Any, axis: int) -> Any:
    """Swap an axis of x, as long as the named axis, with that named axis.

    >>> x = lax.reshape(lax.iota("int32", 4), (2, 2))
    >>> fg.vmap(lambda row: lax.pswapaxes(row, "i", 0), axis_name="i")(x)
    Array([[0, 2],
           [1, 3]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis)
