"""Structural ops: they move elements and compute nothing, so each is linear in what it moves.

Reshape, rev, transpose and iota are here, joining and cutting in `slicing`, whose names this module
offers too. Squeezing, expanding and collapsing are reshapes.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.sharding import NamedSharding, PartitionSpec
from funcgrad.core.trace import aval_of
from funcgrad.core.views import Place, in_order
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops import identities
from funcgrad.ops.arguments import canonical_axes, canonical_axis, integer, integers
from funcgrad.ops.base import broadcast_p, check_axes, move_axis, size_of, transpose_p
from funcgrad.ops.sharding import cut_as_said
from funcgrad.ops.slicing import (
    concatenate,
    concatenate_p,
    pad,
    pad_p,
    slice,
    slice_p,
    split,
    unary_linear_jvp,
)

__all__ = [
    "broadcast", "broadcast_in_dim", "broadcasted_iota", "collapse", "concatenate",
    "concatenate_p", "expand_dims", "iota", "iota_p", "pad", "pad_p", "reshape", "reshape_p", "rev",
    "rev_p", "slice", "slice_p", "split", "squeeze", "transpose",
]  # fmt: skip

# ---- reshape


def _reshape_abstract(x, *, new_sizes):
    if any(n < 0 for n in new_sizes) or size_of(new_sizes) != x.size:
        raise ShapeError(
            f"reshape: operand {x} has {x.size} elements, new_sizes {new_sizes} "
            f"asks for {size_of(new_sizes)}"
        )
    return x.update(shape=new_sizes)


def _reshape_batch(axis, args, dims, *, new_sizes):
    x = move_axis(args[0], dims[0], 0)
    return reshape_p.bind(x, new_sizes=(axis.size, *new_sizes)), 0


def _reshape_dims(x, *, new_sizes):
    """An axis keeps its name where the products of the sizes before and after it agree."""
    ins, outs = ["."] * x.ndim, ["."] * len(new_sizes)
    if x.size:
        before = {_offset(x.shape, i): i for i, n in enumerate(x.shape) if n != 1}
        for j, n in enumerate(new_sizes):
            i = before.get(_offset(new_sizes, j))
            if n != 1 and i is not None and x.shape[i] == n:
                ins[i] = outs[j] = f"a{j}"
    return f"{' '.join(ins)} -> {' '.join(outs)}"


def _offset(shape: tuple[int, ...], axis: int) -> int:
    return size_of(shape[axis + 1 :])


reshape_p: Primitive = Primitive(
    name="reshape",
    abstract=_reshape_abstract,
    impl=lambda xp, x, *, new_sizes: x.reshape(new_sizes),
    jvp=unary_linear_jvp(lambda: reshape_p),
    transpose=lambda ct, x, *, new_sizes: [reshape_p.bind(ct, new_sizes=x.aval.shape)],
    batch=_reshape_batch,
    dims=_reshape_dims,
    simplify=identities.same_type,
    view=in_order,
    blocks=lambda shapes, **params: {"new_sizes": shapes[0]},
    linear=True,
)


def reshape(
    operand: Any,
    new_sizes: Sequence[int],
    dimensions: Sequence[int] | None = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """The elements in row-major order under a new shape; one size may be -1 and is inferred.

    `dimensions` permutes the operand's axes first; `out_sharding` is how the result is to be cut
    over a mesh. Raises ShapeError where the number of elements would change.

    >>> from funcgrad import lax
    >>> lax.reshape(lax.iota("int32", 6), (2, -1))
    Array([[0, 1, 2],
           [3, 4, 5]], dtype=int32)
    """
    shape = aval_of(operand).shape
    sizes = integers("reshape", "new_sizes", new_sizes)
    if -1 in sizes:
        rest = size_of([n for n in sizes if n != -1])
        if sizes.count(-1) > 1 or (rest and size_of(shape) % rest) or not rest:
            raise ShapeError(f"reshape: can't infer -1 in new_sizes {sizes} for shape {shape}")
        sizes = tuple(size_of(shape) // rest if n == -1 else n for n in sizes)
    if dimensions is not None:
        operand = transpose(operand, dimensions)
        shape = aval_of(operand).shape
    same = sizes == shape and hasattr(operand, "aval")
    return cut_as_said(operand if same else reshape_p.bind(operand, new_sizes=sizes), out_sharding)


def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """Drop axes of size 1. Raises ShapeError where an axis is larger.

    >>> from funcgrad import lax
    >>> lax.squeeze(lax.broadcasted_iota("int32", (1, 3), 1), (0,))
    Array([0, 1, 2], dtype=int32)
    """
    aval = aval_of(array)
    axes = canonical_axes("squeeze", dimensions, aval.ndim)
    if any(aval.shape[a] != 1 for a in axes):
        raise ShapeError(f"squeeze: axes {axes} of {aval} must have size 1")
    return reshape(array, [n for i, n in enumerate(aval.shape) if i not in axes])


def expand_dims(array: Any, dimensions: Sequence[int]) -> Any:
    """Insert axes of size 1, at the positions that they have in the result.

    >>> from funcgrad import lax
    >>> lax.expand_dims(lax.iota("int32", 3), (0, -1)).shape
    (1, 3, 1)
    """
    shape = aval_of(array).shape
    ndim = len(shape) + len(integers("expand_dims", "dimensions", dimensions))
    new = canonical_axes("expand_dims", dimensions, ndim)
    sizes = iter(shape)
    return reshape(array, [1 if i in new else next(sizes) for i in range(ndim)])


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """Merge the axes start_dimension … stop_dimension - 1 into one.

    >>> from funcgrad import lax
    >>> lax.collapse(lax.broadcasted_iota("int32", (2, 3, 4), 0), 1, 3).shape
    (2, 12)
    """
    shape = aval_of(operand).shape
    first = integer("start_dimension", start_dimension)
    last = None if stop_dimension is None else integer("stop_dimension", stop_dimension)
    start, stop, _ = builtins.slice(first, last).indices(len(shape))
    if stop < start:
        raise ShapeError(
            f"collapse: stop_dimension {stop_dimension} comes before start_dimension "
            f"{start_dimension} in shape {shape}"
        )
    return reshape(operand, (*shape[:start], size_of(shape[start:stop]), *shape[stop:]))


# ---- broadcast and transpose


def broadcast_in_dim(
    operand: Any,
    shape: Sequence[int],
    broadcast_dimensions: Sequence[int],
    *,
    out_sharding: Any = None,
) -> Any:
    """Repeat an array along new axes: operand axis i becomes result axis broadcast_dimensions[i].

    An axis of size 1 stretches to the result's size; axes that are not named are new.
    `out_sharding` is how the result is to be cut over a mesh. Raises ShapeError where a size does
    not fit or the named axes do not increase.

    >>> from funcgrad import lax
    >>> lax.broadcast_in_dim(lax.iota("int32", 3), (2, 3), (1,))
    Array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    sizes = integers("broadcast_in_dim", "shape", shape)
    dims = integers("broadcast_in_dim", "broadcast_dimensions", broadcast_dimensions)
    if any(d < 0 for d in dims):
        raise ShapeError(f"broadcast_in_dim: broadcast_dimensions {dims} must not be negative")
    same = sizes == aval_of(operand).shape and len(dims) == len(sizes)
    if not (same and hasattr(operand, "aval")):
        operand = broadcast_p.bind(operand, shape=sizes, broadcast_dimensions=dims)
    return cut_as_said(operand, out_sharding)


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """Repeat an array along new leading axes of the given sizes; `out_sharding` is how the result
    is to be cut over a mesh.

    >>> from funcgrad import lax
    >>> lax.broadcast(lax.iota("int32", 3), (2,))
    Array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    lead = integers("broadcast", "sizes", sizes)
    shape = aval_of(operand).shape
    dims = tuple(range(len(lead), len(lead) + len(shape)))
    return broadcast_in_dim(operand, (*lead, *shape), dims, out_sharding=out_sharding)


def transpose(operand: Any, permutation: Sequence[int]) -> Any:
    """Permute axes: result axis i is operand axis permutation[i].

    Raises ShapeError where `permutation` does not name each axis once.

    >>> from funcgrad import lax
    >>> lax.transpose(lax.broadcasted_iota("int32", (2, 3), 1), (1, 0))
    Array([[0, 0],
           [1, 1],
           [2, 2]], dtype=int32)
    """
    order = integers("transpose", "permutation", permutation)
    if order == tuple(range(aval_of(operand).ndim)) and hasattr(operand, "aval"):
        return operand
    return transpose_p.bind(operand, permutation=order)


# ---- rev


def _rev_abstract(x, *, dimensions):
    check_axes("rev", dimensions, x)
    return x


def _rev_impl(xp, x, *, dimensions):
    return x[tuple(builtins.slice(None, None, -1 if i in dimensions else 1) for i in range(x.ndim))]


def _rev_batch(axis, args, dims, *, dimensions):
    shifted = tuple(a + (a >= dims[0]) for a in dimensions)
    return rev_p.bind(args[0], dimensions=shifted), dims[0]


def _rev_dims(x, *, dimensions):
    names = [n + "!" * (i in dimensions) for i, n in enumerate(dims_.letters(x.ndim))]
    return f"{' '.join(names)} -> {' '.join(names)}"


def _rev_view(x, *, dimensions):
    sizes = enumerate(x.shape)
    return [Place(n - 1, ((-1, d),)) if d in dimensions else Place(0, ((1, d),)) for d, n in sizes]


rev_p: Primitive = Primitive(
    name="rev",
    abstract=_rev_abstract,
    impl=_rev_impl,
    jvp=unary_linear_jvp(lambda: rev_p),
    transpose=lambda ct, x, *, dimensions: [rev_p.bind(ct, dimensions=dimensions)],
    batch=_rev_batch,
    dims=_rev_dims,
    view=_rev_view,
    linear=True,
)


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """Reverse the order of elements along axes.

    >>> from funcgrad import lax
    >>> lax.rev(lax.iota("int32", 3), (0,))
    Array([2, 1, 0], dtype=int32)
    """
    axes = canonical_axes("rev", dimensions, aval_of(operand).ndim)
    return rev_p.bind(operand, dimensions=axes)


# ---- iota


def _iota_abstract(*, dtype, shape, dimension):
    if min(shape, default=0) < 0:
        raise ShapeError(f"iota: shape {shape} has a negative size")
    if not 0 <= dimension < len(shape):
        raise ShapeError(f"iota: dimension {dimension} is no axis of shape {shape}")
    if dtype == dtypes.BOOL:
        raise DTypeError("iota: need a dtype of numbers, got bool")
    return ShapedArray(shape, dtype)


def _iota_impl(xp, *, dtype, shape, dimension):
    line = [n if i == dimension else 1 for i, n in enumerate(shape)]
    counts = xp.arange(shape[dimension]).astype(dtype)
    return xp.broadcast_to(counts.reshape(line), shape)


def _iota_dims(*, dtype, shape, dimension):
    names = dims_.letters(len(shape))
    # A block of the axis that counts would begin with another number.
    names[dimension] += "!"
    return f" -> {' '.join(names)}"


iota_p = Primitive(
    name="iota",
    abstract=_iota_abstract,
    impl=_iota_impl,
    jvp=NoRule("it has no operands"),
    transpose=NoRule("it has no operands"),
    batch=NoRule("it has no operands"),
    dims=_iota_dims,
    passes=1,
)


def broadcasted_iota(
    dtype: Any,
    shape: Sequence[int],
    dimension: int,
    *,
    out_sharding: NamedSharding | PartitionSpec | None = None,
) -> Any:
    """An array of a shape that counts 0, 1, 2, … along one axis, cut over a mesh as told.

    >>> from funcgrad import lax
    >>> lax.broadcasted_iota("int32", (2, 3), 1)
    Array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    sizes = integers("iota", "shape", shape)
    axis = canonical_axis("iota", dimension, len(sizes))
    out = iota_p.bind(dtype=dtypes.canonical(dtype), shape=sizes, dimension=axis)
    return cut_as_said(out, out_sharding)


def iota(dtype: Any, size: int) -> Any:
    """The numbers 0 … size - 1.

    >>> from funcgrad import lax
    >>> lax.iota("float32", 3)
    Array([0., 1., 2.], dtype=float32)
    """
    return broadcasted_iota(dtype, (size,), 0)
