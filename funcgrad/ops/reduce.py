"""Reductions over axes: extrema, products, bitwise ones, positions of extrema, any monoid.

The tangent of an extremum is the mean over the elements that attain it. A product's derivative
multiplies what stands before and after each factor, so that zeros are no exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.sharding import NamedSharding, PartitionSpec
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.arguments import canonical_axes, canonical_axis, check_callable
from funcgrad.ops.base import (
    broadcast_p,
    check_axes,
    full,
    reduction_dims,
    shift_axes,
    size_of,
    sum_p,
    transpose_p,
)
from funcgrad.ops.cumulative import cumprod_p, shift, widened
from funcgrad.ops.elementwise import arithmetic
from funcgrad.ops.elementwise.arithmetic import div, mul
from funcgrad.ops.elementwise.compare import bitwise_and, bitwise_or, bitwise_xor, eq
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.families import NOT_LINEAR, add
from funcgrad.ops.folds import extreme, reduced
from funcgrad.ops.identities import no_axes
from funcgrad.ops.shape import reshape_p
from funcgrad.ops.sharding import cut_as_said
from funcgrad.ops.slicing import concatenate_p, slice_p

# ---- identities


@cache
def lowest(dtype: np.dtype) -> Any:
    """The identity of max: -inf where the dtype has it, else its least value."""
    if dtype == dtypes.BOOL:
        return np.asarray(False)
    if dtypes.is_integer(dtype):
        return np.asarray(dtypes.iinfo(dtype).min, dtype)
    if dtypes.is_complex(dtype):
        return np.asarray(complex(-np.inf, -np.inf), dtype)
    low = np.asarray(-np.inf, dtype)
    return low if low == low and low < 0 else np.asarray(dtypes.finfo(dtype).min, dtype)


@cache
def highest(dtype: np.dtype) -> Any:
    """The identity of min: inf where the dtype has it, else its greatest value."""
    if dtype == dtypes.BOOL:
        return np.asarray(True)
    if dtypes.is_integer(dtype):
        return np.asarray(dtypes.iinfo(dtype).max, dtype)
    if dtypes.is_complex(dtype):
        return np.asarray(complex(np.inf, np.inf), dtype)
    high = np.asarray(np.inf, dtype)
    return high if high == high else np.asarray(dtypes.finfo(dtype).max, dtype)


# ---- derivatives


def _extremum_jvp(prim: Callable[[], Primitive]) -> Callable:
    def rule(primals, tangents, *, axes):
        (x,), (g,) = primals, tangents
        y = prim().bind(x, axes=axes)
        shape, dtype = aval_of(x).shape, aval_of(g).dtype
        kept = tuple(i for i in range(len(shape)) if i not in axes)
        wide = broadcast_p.bind(y, shape=shape, broadcast_dimensions=kept)
        hits = eq.bind(x, wide)
        chosen = select(hits, g, full((), 0, dtype))
        count = sum_p.bind(convert_element_type(hits, dtype), axes=axes)
        return y, div.bind(sum_p.bind(chosen, axes=axes), count)

    return rule


def _prod_jvp(primals, tangents, *, axes):
    (x,), (g,) = primals, tangents
    shape = aval_of(x).shape
    kept = [i for i in range(len(shape)) if i not in axes]
    order, flat = (*kept, *axes), (*(shape[i] for i in kept), size_of([shape[i] for i in axes]))
    x1, g1 = (
        reshape_p.bind(transpose_p.bind(v, permutation=order), new_sizes=flat) for v in (x, g)
    )
    last = len(kept)
    before = shift(cumprod_p.bind(x1, axis=last, reverse=False), 1, last, False, fill=1)
    after = shift(cumprod_p.bind(x1, axis=last, reverse=True), 1, last, True, fill=1)
    tangent = sum_p.bind(mul.bind(mul.bind(before, after), g1), axes=(last,))
    return prod_p.bind(x, axes=axes), tangent


def _flat_jvp(prim: Callable[[], Primitive]) -> Callable:
    """The derivative of an integer result: symbolically zero."""

    def rule(primals, tangents, **params):
        out = prim().bind(*primals, **params)
        return out, Zero(aval_of(out).tangent())

    return rule


# ---- the primitives


def _reducer(
    name: str,
    reduce: Callable[[Any, Any, tuple, np.dtype], Any],
    accepts: Callable[[np.dtype], bool],
    need: str,
    jvp: Callable | None = None,
    **traits: Any,
) -> Primitive:
    reduction = name.removeprefix("reduce_")

    def abstract(x, *, axes):
        check_axes(name, axes, x)
        if not accepts(x.dtype):
            raise DTypeError(
                f"{name} does not accept dtype {x.dtype}: need {need}, got {x}; convert with "
                ".astype(...)"
            )
        return x.update(shape=tuple(n for i, n in enumerate(x.shape) if i not in axes))

    def impl(xp, x, *, axes):
        return reduce(xp, widened(x), axes, x.dtype)

    def batch(axis, args, dims, *, axes):
        axes, out_dim = shift_axes(axes, dims[0])
        return made.bind(args[0], axes=axes), out_dim

    made = Primitive(
        name=name,
        abstract=abstract,
        impl=impl,
        jvp=jvp or _flat_jvp(lambda: made),
        transpose=NOT_LINEAR,
        batch=batch,
        dims=lambda x, *, axes: reduction_dims(x, axes, reduction),
        reduction=reduction,
        **traits,
    )
    return made


def _any_dtype(dtype: np.dtype) -> bool:
    return True


def _is_number(dtype: np.dtype) -> bool:
    return dtype != dtypes.BOOL


def _has_bits(dtype: np.dtype) -> bool:
    return not dtypes.is_inexact(dtype)


def _all_bits(dtype: np.dtype) -> Any:
    return ~np.zeros((), dtype)


def _no_bits(dtype: np.dtype) -> Any:
    return np.zeros((), dtype)


max_p: Primitive = _reducer(
    "reduce_max",
    lambda xp, x, axes, dtype: extreme(xp, x, axes, "max", lowest(dtype).astype(x.dtype)),
    _any_dtype,
    "an array",
    _extremum_jvp(lambda: max_p),
    simplify=no_axes,
    passes=2,
)
min_p: Primitive = _reducer(
    "reduce_min",
    lambda xp, x, axes, dtype: extreme(xp, x, axes, "min", highest(dtype).astype(x.dtype)),
    _any_dtype,
    "an array",
    _extremum_jvp(lambda: min_p),
    simplify=no_axes,
    passes=2,
)
prod_p: Primitive = _reducer(
    "reduce_prod",
    lambda xp, x, axes, dtype: xp.prod(x, axis=axes, dtype=x.dtype),
    _is_number,
    "numbers",
    _prod_jvp,
    passes=2,
)
and_p: Primitive = _reducer(
    "reduce_and",
    lambda xp, x, axes, dtype: reduced(xp, xp.bitwise_and, x, axes, _all_bits),
    _has_bits,
    "integers or bool",
    passes=1,
)
or_p: Primitive = _reducer(
    "reduce_or",
    lambda xp, x, axes, dtype: reduced(xp, xp.bitwise_or, x, axes, _no_bits),
    _has_bits,
    "integers or bool",
    passes=1,
)
xor_p: Primitive = _reducer(
    "reduce_xor",
    lambda xp, x, axes, dtype: reduced(xp, xp.bitwise_xor, x, axes, _no_bits),
    _has_bits,
    "integers or bool",
    passes=1,
)


def _position(name: str, find: Callable[[Any, Any, int], Any]) -> Primitive:
    def abstract(x, *, axes, index_dtype):
        check_axes(name, axes, x)
        (axis,) = axes
        if not x.shape[axis]:
            raise ShapeError(
                f"{name}: axis {axis} of {x} is empty; positions require non-empty reduced "
                "dimensions"
            )
        if not dtypes.is_integer(index_dtype):
            raise DTypeError(f"{name}: index_dtype must be an integer dtype, got {index_dtype}")
        return ShapedArray(x.shape[:axis] + x.shape[axis + 1 :], index_dtype)

    def impl(xp, x, *, axes, index_dtype):
        return find(xp, widened(x), axes[0]).astype(index_dtype)

    def batch(axis, args, dims, *, axes, index_dtype):
        axes, out_dim = shift_axes(axes, dims[0])
        return made.bind(args[0], axes=axes, index_dtype=index_dtype), out_dim

    def dims(x, *, axes, index_dtype):
        names = dims_.letters(x.ndim)
        kept = [n for i, n in enumerate(names) if i not in axes]
        names[axes[0]] += "!"
        return f"{' '.join(names)} -> {' '.join(kept)} : {name}"

    made = Primitive(
        name=name,
        abstract=abstract,
        impl=impl,
        jvp=_flat_jvp(lambda: made),
        transpose=NoRule("the result is an integer"),
        batch=batch,
        dims=dims,
    )
    return made


argmax_p: Primitive = _position("argmax", lambda xp, x, axis: xp.argmax(x, axis=axis))
argmin_p: Primitive = _position("argmin", lambda xp, x, axis: xp.argmin(x, axis=axis))


# ---- public functions


def _reduce(prim: Primitive, operand: Any, axes: Sequence[int]) -> Any:
    return prim.bind(operand, axes=canonical_axes(prim.name, axes, aval_of(operand).ndim))


def reduce_sum(
    operand: Any,
    axes: Sequence[int],
    *,
    out_sharding: NamedSharding | PartitionSpec | None = None,
) -> Any:
    """The sum over `axes`, in the operand's dtype; 0 where they are empty. Raises for bool.

    `out_sharding` is how it is to be cut over a mesh.

    >>> from funcgrad import lax
    >>> lax.reduce_sum(lax.iota("int32", 4), [0])
    Array(6, dtype=int32)
    """
    return cut_as_said(_reduce(sum_p, operand, axes), out_sharding)


def reduce_max(operand: Any, axes: Sequence[int]) -> Any:
    """The maximum over `axes`; NaN if any is NaN, -inf (or the least integer) if there is none.

    >>> from funcgrad import lax
    >>> lax.reduce_max(lax.iota("int32", 4), [0])
    Array(3, dtype=int32)
    """
    return _reduce(max_p, operand, axes)


def reduce_min(operand: Any, axes: Sequence[int]) -> Any:
    """The minimum over `axes`; NaN if any is NaN, inf (or the greatest integer) if there is none.

    >>> from funcgrad import lax
    >>> lax.reduce_min(lax.iota("int32", 4), [0])
    Array(0, dtype=int32)
    """
    return _reduce(min_p, operand, axes)


def reduce_prod(operand: Any, axes: Sequence[int]) -> Any:
    """The product over `axes`, in the operand's dtype; 1 where they are empty. Raises for bool.

    >>> from funcgrad import lax
    >>> lax.reduce_prod(lax.add(lax.iota("int32", 4), 1), [0])
    Array(24, dtype=int32)
    """
    return _reduce(prod_p, operand, axes)


def reduce_and(operand: Any, axes: Sequence[int]) -> Any:
    """The bitwise (for bool: logical) and over `axes`. Raises for floating-point numbers.

    >>> from funcgrad import lax
    >>> lax.reduce_and(lax.full((2,), 6), [0])
    Array(6, dtype=int32, weak_type=True)
    """
    return _reduce(and_p, operand, axes)


def reduce_or(operand: Any, axes: Sequence[int]) -> Any:
    """The bitwise (for bool: logical) or over `axes`. Raises for floating-point numbers.

    >>> from funcgrad import lax
    >>> lax.reduce_or(lax.iota("int32", 3), [0])
    Array(3, dtype=int32)
    """
    return _reduce(or_p, operand, axes)


def reduce_xor(operand: Any, axes: Sequence[int]) -> Any:
    """The bitwise (for bool: logical) exclusive or over `axes`. Raises for floats.

    >>> from funcgrad import lax
    >>> lax.reduce_xor(lax.iota("int32", 3), [0])
    Array(3, dtype=int32)
    """
    return _reduce(xor_p, operand, axes)


def argmax(operand: Any, axis: int, index_dtype: Any = np.int32) -> Any:
    """The position along `axis` of the maximum: of the first NaN if there is one, else the first.

    Raises ShapeError for an empty axis.

    >>> from funcgrad import lax
    >>> lax.argmax(lax.iota("float32", 4), 0, "int32")
    Array(3, dtype=int32)
    """
    return _find(argmax_p, operand, axis, index_dtype)


def argmin(operand: Any, axis: int, index_dtype: Any = np.int32) -> Any:
    """The position along `axis` of the minimum: of the first NaN if there is one, else the first.

    Raises ShapeError for an empty axis.

    >>> from funcgrad import lax
    >>> lax.argmin(lax.iota("float32", 4), 0, "int32")
    Array(0, dtype=int32)
    """
    return _find(argmin_p, operand, axis, index_dtype)


def _find(prim: Primitive, operand: Any, axis: int, index_dtype: Any) -> Any:
    axes = (canonical_axis(prim.name, axis, aval_of(operand).ndim),)
    return prim.bind(operand, axes=axes, index_dtype=dtypes.canonical(index_dtype))


# ---- any monoid


class Monoid(NamedTuple):
    """A primitive that reduces by an elementwise op, and the op's identity for a dtype."""

    reduce: Primitive
    identity: Callable[[np.dtype], Any]


def _constant(value: int) -> Callable[[np.dtype], Any]:
    return lambda dtype: np.asarray(value).astype(dtype)


MONOIDS = {
    add: Monoid(sum_p, _constant(0)),
    mul: Monoid(prod_p, _constant(1)),
    arithmetic.max: Monoid(max_p, lowest),
    arithmetic.min: Monoid(min_p, highest),
    bitwise_and: Monoid(and_p, _constant(-1)),
    bitwise_or: Monoid(or_p, _constant(0)),
    bitwise_xor: Monoid(xor_p, _constant(0)),
}


def monoid_of(computation: Callable, dtype: np.dtype) -> Monoid | None:
    """The monoid that a function of two scalars computes, if it is one op of `MONOIDS`."""
    check_callable("computation", computation)
    scalar = ShapedArray((), dtype)
    jaxpr, captured = stage(lambda x, y: tree.leaves(computation(x, y)), [scalar, scalar])
    if captured or len(jaxpr.eqns) != 1:
        return None
    (eqn,) = jaxpr.eqns
    if set(eqn.ins) != set(jaxpr.ins) or eqn.outs != jaxpr.outs:
        return None
    return MONOIDS.get(eqn.prim)


def reduce(
    operands: Any, init_values: Any, computation: Callable, dimensions: Sequence[int],
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """Combine all elements along `dimensions` by an associative function, beginning with an init.

    `computation(x, y)` is written for scalars with elementwise ops; with several operands (a
    pytree, `init_values` likewise) it takes and returns two such trees. A single `lax.add`, `mul`,
    `max`, `min` or bitwise op becomes that reduction; others are combined pairwise, in order.
    out_sharding: how each result is cut over a mesh.

    >>> from funcgrad import lax
    >>> lax.reduce(lax.iota("int32", 5), 100, lax.add, [0])
    Array(110, dtype=int32)
    """
    out = _combined(operands, init_values, computation, dimensions)
    return tree.map(lambda x: cut_as_said(x, out_sharding), out)


def _combined(operands: Any, init_values: Any, computation: Callable, dimensions: Any) -> Any:
    xs, structure = tree.flatten(operands)
    inits, init_structure = tree.flatten(init_values)
    if structure != init_structure:
        raise TypeError(
            f"reduce: init_values must have the structure of operands {structure}, got "
            f"{init_structure}"
        )
    avals = [aval_of(x) for x in xs]
    if not avals or any(a.shape != avals[0].shape for a in avals):
        raise ShapeError(f"reduce: operands must have one shape, got {avals}")
    inits = [checked_init("reduce", i, a.dtype) for i, a in zip(inits, avals, strict=True)]
    axes = canonical_axes("reduce", dimensions, avals[0].ndim)
    monoid = monoid_of(computation, avals[0].dtype) if len(xs) == 1 else None
    reduced: list | None
    if monoid is not None:
        reduced = [monoid.reduce.bind(xs[0], axes=axes)]
        if is_identity(inits[0], monoid.identity(avals[0].dtype)):
            return tree.unflatten(structure, reduced)
    else:
        reduced = _pairwise(xs, structure, computation, axes)
        if reduced is None:
            shape = tuple(n for i, n in enumerate(avals[0].shape) if i not in axes)
            return tree.unflatten(structure, [full(shape, i) for i in inits])
    return computation(tree.unflatten(structure, inits), tree.unflatten(structure, reduced))


def checked_init(name: str, init: Any, dtype: np.dtype) -> Any:
    """A reduction's initial value as a scalar of a dtype, or an error naming the op."""
    if isinstance(init, bool | int | float | complex) and not isinstance(init, np.generic):
        return full((), init, dtype)
    aval = aval_of(init)
    if aval.shape:
        raise ShapeError(
            f"{name} found non-scalar initial value: an init value is a scalar of "
            f"dtype {dtype}, not {aval}"
        )
    if aval.dtype != dtype:
        raise ShapeError(f"{name}: an init value must be a scalar of dtype {dtype}, got {aval}")
    return init


def is_identity(init: Any, identity: Any) -> bool:
    """Whether an initial value is known to be neutral."""
    concrete = getattr(init, "concrete", lambda: init)()
    return concrete is not None and bool(np.asarray(concrete) == identity)


def _pairwise(xs: list, structure: Any, computation: Callable, axes: Sequence[int]) -> list | None:
    """Neighbours combined until one element is left; None where there is none."""
    shape = aval_of(xs[0]).shape
    kept = [i for i in range(len(shape)) if i not in axes]
    rest = tuple(shape[i] for i in kept)
    size = size_of([shape[i] for i in axes])
    xs = [transpose_p.bind(x, permutation=(*axes, *kept)) for x in xs]
    xs = [reshape_p.bind(x, new_sizes=(size, *rest)) for x in xs]
    while size > 1:
        even = size - size % 2
        halves = [[_rows(x, i, even, 2) for x in xs] for i in (0, 1)]
        combined = computation(*(tree.unflatten(structure, h) for h in halves))
        odd = [_rows(x, even, size, 1) for x in xs]
        xs = [
            concatenate_p.bind(c, o, dimension=0) if size % 2 else c
            for c, o in zip(tree.leaves(combined), odd, strict=True)
        ]
        size = (size + 1) // 2
    return [reshape_p.bind(x, new_sizes=rest) for x in xs] if size else None


def _rows(x: Any, start: int, stop: int, step: int) -> Any:
    shape = aval_of(x).shape
    zeros, ones = (0,) * (len(shape) - 1), (1,) * (len(shape) - 1)
    return slice_p.bind(
        x,
        start_indices=(start, *zeros),
        limit_indices=(stop, *shape[1:]),
        strides=(step, *ones),
    )
