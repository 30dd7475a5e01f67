"""The three structural ops on which the rules of all other ops stand: broadcast, sum, transpose.

They are each other's transposes: a broadcast's is a sum, a sum's a broadcast, a permutation's the
inverse one. Beside them, what rules need: zeros, moving a batch axis, summing a broadcast away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core import dims as dims_
from funcgrad.core.array import Array, of_scalar
from funcgrad.core.aval import Linear, ShapedArray, Zero
from funcgrad.core.evaluation import EvalTrace
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.core.views import Place
from funcgrad.errors import DifferentiationError, DTypeError, ShapeError
from funcgrad.ops import identities

# ---- broadcast_in_dim: operand axis i becomes result axis broadcast_dimensions[i]


def _broadcast_abstract(x, *, shape, broadcast_dimensions):
    dims = broadcast_dimensions
    if len(dims) != x.ndim or any(a >= b for a, b in pairwise(dims)):
        raise ShapeError(
            f"broadcast_in_dim: broadcast_dimensions {dims} must name one increasing result axis "
            f"for each of the operand's {x.ndim} axes"
        )
    if any(d >= len(shape) or x.shape[i] not in (1, shape[d]) for i, d in enumerate(dims)):
        raise ShapeError(f"broadcast_in_dim: operand {x} does not fit shape {shape} at {dims}")
    return x.update(shape=shape)


def _broadcast_impl(xp, x, *, shape, broadcast_dimensions):
    whole = type(x) is np.ndarray and x.flags.c_contiguous and x.dtype.kind in "fiucb"
    if whole and 0 not in shape:
        # A view by its strides: NumPy's own function takes ten times as long.
        strides = [0] * len(shape)
        for size, step, d in zip(x.shape, x.strides, broadcast_dimensions, strict=True):
            strides[d] = step if size == shape[d] else 0
        view = np.ndarray(shape, x.dtype, x, 0, strides)
        view.flags.writeable = False
        return view
    expanded = [1] * len(shape)
    for size, d in zip(x.shape, broadcast_dimensions, strict=True):
        expanded[d] = size
    return xp.broadcast_to(x.reshape(expanded), shape)


def _broadcast_jvp(primals, tangents, **params):
    return broadcast_p.bind(*primals, **params), broadcast_p.bind(*tangents, **params)


def _broadcast_transpose(ct, x, *, shape, broadcast_dimensions):
    operand = x.aval.shape
    new = [d for d in range(len(shape)) if d not in broadcast_dimensions]
    stretched = [d for i, d in enumerate(broadcast_dimensions) if operand[i] == 1 and shape[d] != 1]
    summed = sum_p.bind(ct, axes=tuple(sorted(new + stretched)))
    if stretched:
        kept = tuple(i for i, d in enumerate(broadcast_dimensions) if d not in stretched)
        summed = broadcast_p.bind(summed, shape=operand, broadcast_dimensions=kept)
    return [summed]


def _broadcast_batch(axis, args, dims, *, shape, broadcast_dimensions):
    x = move_axis(args[0], dims[0], 0)
    shifted = (0, *(d + 1 for d in broadcast_dimensions))
    return broadcast_p.bind(x, shape=(axis.size, *shape), broadcast_dimensions=shifted), 0


def _broadcast_dims(x, *, shape, broadcast_dimensions):
    names = dims_.letters(len(shape))
    ins = [names[d] if x.shape[i] == shape[d] else "." for i, d in enumerate(broadcast_dimensions)]
    return f"{' '.join(ins)} -> {' '.join(names)}"


def _broadcast_view(x, *, shape, broadcast_dimensions):
    sizes = zip(x.shape, broadcast_dimensions, strict=True)
    return [Place(0, ((1, d),) if n == shape[d] else ()) for n, d in sizes]


broadcast_p = Primitive(
    name="broadcast_in_dim",
    abstract=_broadcast_abstract,
    impl=_broadcast_impl,
    jvp=_broadcast_jvp,
    transpose=_broadcast_transpose,
    batch=_broadcast_batch,
    dims=_broadcast_dims,
    simplify=identities.same_type,
    view=_broadcast_view,
    blocks=lambda shapes, **params: {"shape": shapes[0]},
    linear=True,
)

# ---- reduce_sum


def _sum_abstract(x, *, axes):
    check_axes("reduce_sum", axes, x)
    if x.dtype == dtypes.BOOL:
        raise DTypeError("reduce_sum: need numbers, got bool; use .astype(int) first")
    return x.update(shape=tuple(n for i, n in enumerate(x.shape) if i not in axes))


def _sum_impl(xp, x, *, axes):
    if not axes:  # where NumPy would add 0.0, which makes 0.0 of -0.0
        return x
    if x.dtype.itemsize < 4 and dtypes.is_float(x.dtype):
        return x.astype(np.float32).sum(axis=axes).astype(x.dtype)
    return xp.add.reduce(x, axis=axes, dtype=x.dtype)  # which is `sum` without its preliminaries


def _sum_jvp(primals, tangents, *, axes):
    return sum_p.bind(*primals, axes=axes), sum_p.bind(*tangents, axes=axes)


def _sum_transpose(ct, x, *, axes):
    shape = x.aval.shape
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    return [broadcast_p.bind(ct, shape=shape, broadcast_dimensions=kept)]


def _sum_batch(axis, args, dims, *, axes):
    axes, out_dim = shift_axes(axes, dims[0])
    return sum_p.bind(args[0], axes=axes), out_dim


def reduction_dims(x: ShapedArray, axes: Sequence[int], how: str = "sum") -> str:
    """The axis mapping of a reduction over `axes`."""
    names = dims_.letters(x.ndim)
    kept = [n for i, n in enumerate(names) if i not in axes]
    return f"{' '.join(names)} -> {' '.join(kept)} : {how}"


sum_p = Primitive(
    name="reduce_sum",
    abstract=_sum_abstract,
    impl=_sum_impl,
    jvp=_sum_jvp,
    transpose=_sum_transpose,
    batch=_sum_batch,
    dims=lambda x, *, axes: reduction_dims(x, axes),
    simplify=identities.no_axes,
    reduction="sum",
    linear=True,
    passes=2,
)

# ---- transpose


def _transpose_abstract(x, *, permutation):
    if sorted(permutation) != list(range(x.ndim)):
        raise ShapeError(f"transpose: {permutation} is no permutation of the axes of {x}")
    return x.update(shape=tuple(x.shape[p] for p in permutation))


def _transpose_jvp(primals, tangents, *, permutation):
    return (
        transpose_p.bind(*primals, permutation=permutation),
        transpose_p.bind(*tangents, permutation=permutation),
    )


def _transpose_transpose(ct, x, *, permutation):
    inverse = tuple(permutation.index(i) for i in range(len(permutation)))
    return [transpose_p.bind(ct, permutation=inverse)]


def _transpose_batch(axis, args, dims, *, permutation):
    d = dims[0]
    moved = (d, *(p + (p >= d) for p in permutation))
    return transpose_p.bind(args[0], permutation=moved), 0


def _transpose_dims(x, *, permutation):
    names = dims_.letters(x.ndim)
    return f"{' '.join(names)} -> {' '.join(names[p] for p in permutation)}"


def _transpose_view(x, *, permutation):
    return [Place(0, ((1, permutation.index(i)),)) for i in range(len(permutation))]


transpose_p = Primitive(
    name="transpose",
    abstract=_transpose_abstract,
    impl=lambda xp, x, *, permutation: xp.transpose(x, permutation),
    jvp=_transpose_jvp,
    transpose=_transpose_transpose,
    batch=_transpose_batch,
    dims=_transpose_dims,
    simplify=identities.same_order,
    view=_transpose_view,
    linear=True,
)

# ---- what rules need


def check_axes(name: str, axes: Sequence[int], x: ShapedArray) -> None:
    """Raise unless `axes` are distinct axes of x, already non-negative."""
    if len(set(axes)) != len(axes) or any(not 0 <= a < x.ndim for a in axes):
        raise ShapeError(f"{name}: axes {tuple(axes)} are not distinct axes of {x}")


def shift_axes(axes: Sequence[int], batch_dim: int) -> tuple[tuple[int, ...], int]:
    """The axes of a reduction beside a batch axis, and where that axis is in the result."""
    shifted = tuple(a + (a >= batch_dim) for a in axes)
    return shifted, batch_dim - sum(a < batch_dim for a in shifted)


def full(shape: Sequence[int], value: Any, dtype: Any = None) -> Any:
    """An array filled with a scalar: a broadcast, so programs never hold it as data."""
    shape = tuple(shape)
    if dtype == dtypes.float0:
        return np.zeros(shape, dtypes.float0)  # NumPy's, as nothing computes with them
    if not hasattr(value, "aval"):
        value = np.asarray(value) if dtype is None else of_scalar(value, np.dtype(dtype))
        if not shape:
            return Array(value)
        if not value.shape and type(context.current().trace) is EvalTrace:
            try:
                out = np.empty(shape, value.dtype)
            except ValueError as e:  # negative, or beyond all memory
                raise ShapeError(f"no array has the shape {shape}: {e}") from None
            out[...] = value
            return Array(out)
    if not shape:
        return value
    return broadcast_p.bind(value, shape=shape, broadcast_dimensions=())


def zeros(aval: ShapedArray) -> Any:
    """Zeros of a type."""
    return full(aval.shape, 0, aval.dtype)


def instantiate(tangent: Any) -> Any:
    """A tangent or cotangent as a value: zeros for `Zero`."""
    return zeros(tangent.aval) if type(tangent) is Zero else tangent


def move_axis(x: Any, source: int, destination: int) -> Any:
    """Move one axis of x; nothing is recorded where it stays."""
    if source == destination:
        return x
    order = [i for i in range(np.ndim(x)) if i != source]
    order.insert(destination, source)
    return transpose_p.bind(x, permutation=tuple(order))


def batch_front(x: Any, dim: int | None, size: int) -> Any:
    """x with its batch axis first, broadcast along a new one where it has none."""
    if dim is not None:
        return move_axis(x, dim, 0)
    shape = aval_of(x).shape
    kept = tuple(range(1, len(shape) + 1))
    return broadcast_p.bind(x, shape=(size, *shape), broadcast_dimensions=kept)


def expand_to(x: Any, ndim: int) -> Any:
    """x, whose first axis is a batch, with axes of size 1 appended up to `ndim` axes."""
    shape = aval_of(x).shape
    if len(shape) == ndim:
        return x
    wide = shape + (1,) * (ndim - len(shape))
    return broadcast_p.bind(x, shape=wide, broadcast_dimensions=tuple(range(len(shape))))


def sum_to(ct: Any, aval: ShapedArray) -> Any:
    """The cotangent of a scalar operand that was used at each element of a larger result."""
    shape = aval_of(ct).shape
    if aval.shape == shape:
        return ct
    assert not aval.shape, (aval, shape)
    return sum_p.bind(ct, axes=tuple(range(len(shape))))


def is_linear(x: Any) -> bool:
    """Whether a transpose rule is asked for this operand's cotangent."""
    return type(x) is Linear


def factor(name: str, x: Any) -> Any:
    """The operand that a product's transpose multiplies with, which must not vary itself."""
    if is_linear(x):
        raise DifferentiationError(
            f"{name}: the function is to be transposed, but isn't linear: it multiplies or divides "
            "by what it should be linear in"
        )
    return x


def position_dtype(size: int) -> np.dtype:
    """The dtype of positions on an axis and of its size: int32, or int64 if that is too small."""
    return np.dtype(np.int32 if size < 2**31 else np.int64)


def size_of(shape: Sequence[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)
