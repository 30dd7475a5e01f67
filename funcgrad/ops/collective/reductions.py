"""Collectives over named axes: sums and gathers across the lanes of `vmap`.

Each is an op like any other: it differentiates (psum's transpose is psum, all_gather's is
psum_scatter) and batches. `vmap` with an axis name maps it away by its batching rule; the axes
beyond, if any, remain in the op. Exchanges of data are in `collective_exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core import context
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import aval_of
from funcgrad.core.types import AxisName
from funcgrad.errors import ShapeError, within
from funcgrad.ops.arguments import integer
from funcgrad.ops.base import batch_front, move_axis, sum_p
from funcgrad.ops.collective.blocks import impl_of
from funcgrad.ops.elementwise.arithmetic import div, mul
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.families import add
from funcgrad.ops.reduce import reduce_max, reduce_min
from funcgrad.ops.shape import iota, reshape


def names_of(axis_name: AxisName) -> tuple:
    """One axis name or several as a tuple."""
    names = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    if not all(isinstance(n, Hashable) for n in names):
        raise TypeError(within(f"axis_name must be a name or several, got {axis_name!r}"))
    return names


def axis_size(axis_name: AxisName) -> int:
    """The size of a named axis (or the product of several).

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: x * fg.lax.axis_size("i"), axis_name="i")(fnp.arange(3))
    Array([0, 3, 6], dtype=int32)
    """
    axes = context.current().axes
    size = 1
    for name in names_of(axis_name):
        if name not in axes:
            known = ", ".join(map(repr, axes)) or "none"
            raise NameError(
                f"no axis is named {name!r} here; named axes: {known}. Name one by "
                "vmap(..., axis_name=...) or shard_map"
            )
        size *= axes[name]
    return size


def checked(x: ShapedArray, axis_name: tuple) -> ShapedArray:
    """x, after a check that the axes are named."""
    axis_size(axis_name)
    return x


# ---- reductions


def reduction(
    name: str,
    reduce: Callable,
    repeated: Callable | None = None,
    linear: bool = False,
    back: Callable[[], Primitive] | None = None,
) -> Primitive:
    """A reduction over lanes. repeated(x, n): the reduction of n equal values (None: x); back: the
    op that a linear one's transpose is, if not itself."""

    def this() -> Primitive:
        return made

    def batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], *, axis_name: tuple) -> tuple:
        (x,), (d,) = args, dims
        if axis.name not in axis_name:
            return this().bind(x, axis_name=axis_name), d
        rest = tuple(n for n in axis_name if n != axis.name)
        if d is None:
            out = repeated(x, axis.size) if repeated else x
        else:
            out = reduce(x, d)
        return (this().bind(out, axis_name=rest) if rest else out), None

    def jvp(primals: Any, tangents: Any, *, axis_name: tuple) -> tuple:
        return this().bind(*primals, axis_name=axis_name), this().bind(
            *tangents, axis_name=axis_name
        )

    no_rule = NoRule("its gradient is that of lax.all_gather followed by a maximum: use these")
    made = Primitive(
        name=name,
        abstract=lambda x, *, axis_name: checked(x, axis_name),
        impl=impl_of(name),
        jvp=jvp if linear else no_rule,
        transpose=(lambda ct, x, *, axis_name: [(back or this)().bind(ct, axis_name=axis_name)])
        if linear
        else no_rule,
        batch=batch,
        dims=NoRule("it is a collective already"),
        collective="all_reduce",
    )
    return made


def times(x: Any, n: int) -> Any:
    """The sum of n equal values, of which a Python number stays one."""
    return x * n if isinstance(x, int | float | complex) else mul(x, n)


psum_p: Primitive = reduction("psum", lambda x, d: sum_p.bind(x, axes=(d,)), times, linear=True)
pmax_p: Primitive = reduction("pmax", lambda x, d: reduce_max(x, axes=(d,)))
pmin_p: Primitive = reduction("pmin", lambda x, d: reduce_min(x, axes=(d,)))


def _number(x: Any) -> Any:
    aval = aval_of(x)
    if aval.dtype == dtypes.BOOL:
        return convert_element_type(x, context.current().int_dtype)
    return x


def psum(x: Any, axis_name: AxisName) -> Any:
    """The sum of x (a pytree) over a named axis, the same in every lane.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: x / fg.lax.psum(x, "i"), axis_name="i")(fnp.array([1.0, 3.0]))
    Array([0.25, 0.75], dtype=float32)
    """
    return tree.map(lambda v: psum_p.bind(_number(v), axis_name=names_of(axis_name)), x)


def pmean(x: Any, axis_name: AxisName) -> Any:
    """The mean of x (a pytree) over a named axis, the same in every lane.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: x - fg.lax.pmean(x, "i"), axis_name="i")(fnp.array([1.0, 3.0]))
    Array([-1.,  1.], dtype=float32)
    """
    n = axis_size(axis_name)

    def mean(v: Any) -> Any:
        total = psum(v, axis_name)
        aval = aval_of(total)
        if not dtypes.is_inexact(aval.dtype):
            total = convert_element_type(total, context.current().float_dtype)
        return total / n if isinstance(total, int | float | complex) else div(total, n)

    return tree.map(mean, x)


def pmax(x: Any, axis_name: AxisName) -> Any:
    """The elementwise maximum of x (a pytree) over a named axis, the same in every lane.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: fg.lax.pmax(x, "i"), axis_name="i")(fnp.array([1.0, 3.0]))
    Array([3., 3.], dtype=float32)
    """
    return tree.map(lambda v: pmax_p.bind(v, axis_name=names_of(axis_name)), x)


def pmin(x: Any, axis_name: AxisName) -> Any:
    """The elementwise minimum of x (a pytree) over a named axis, the same in every lane.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: fg.lax.pmin(x, "i"), axis_name="i")(fnp.array([1.0, 3.0]))
    Array([1., 1.], dtype=float32)
    """
    return tree.map(lambda v: pmin_p.bind(v, axis_name=names_of(axis_name)), x)


# ---- the lane's number


def _index_batch(axis: Any, args: Any, dims: Any, *, axis_name: tuple) -> tuple:
    (name,) = axis_name
    assert name == axis.name
    return iota(np.int32, axis.size), 0


axis_index_p: Primitive = Primitive(
    name="axis_index",
    abstract=lambda *, axis_name: checked(ShapedArray((), np.int32), axis_name),
    impl=impl_of("axis_index"),
    jvp=lambda primals, tangents, *, axis_name: (
        axis_index_p.bind(axis_name=axis_name),
        Zero(ShapedArray((), dtypes.float0)),
    ),
    transpose=NoRule("it has no operands"),
    batch=_index_batch,
    dims=NoRule("it is a collective already"),
)


def axis_index(axis_name: AxisName) -> Any:
    """The number of this lane along a named axis, an int32 (row-major over several axes).

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: x + fg.lax.axis_index("i"), axis_name="i")(fnp.zeros(3, "int32"))
    Array([0, 1, 2], dtype=int32)
    """
    index: Any = None
    for name in names_of(axis_name):
        here = axis_index_p.bind(axis_name=(name,))
        index = here if index is None else add(mul(index, axis_size(name)), here)
    return index


# ---- gathers and scatters: `axis` counts in the operand or result without the lanes


def _gather_abstract(x: ShapedArray, *, axis_name: tuple, axis: int, tiled: bool) -> ShapedArray:
    n = axis_size(axis_name)
    if tiled:
        shape = (*x.shape[:axis], x.shape[axis] * n, *x.shape[axis + 1 :])
    else:
        shape = (*x.shape[:axis], n, *x.shape[axis:])
    return x.update(shape=shape)


def merged(x: Any, axis: int) -> Any:
    """An axis and the one after it as one."""
    shape = aval_of(x).shape
    return reshape(x, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def split_in(x: Any, axis: int, n: int) -> Any:
    """An axis as n blocks, and what is in each."""
    shape = aval_of(x).shape
    return reshape(x, (*shape[:axis], n, shape[axis] // n, *shape[axis + 1 :]))


def _gather_batch(ax: Any, args: Any, dims: Any, *, axis_name: tuple, axis: int, tiled: bool):
    (x,), (d,) = args, dims
    if ax.name not in axis_name:
        wide = axis + (d <= axis)
        out = all_gather_p.bind(x, axis_name=axis_name, axis=wide, tiled=tiled)
        return out, d + (not tiled and d > axis)
    x = move_axis(batch_front(x, d, ax.size), 0, axis)
    return (merged(x, axis) if tiled else x), None


def _scatter_abstract(x: ShapedArray, *, axis_name: tuple, axis: int, tiled: bool) -> ShapedArray:
    n = axis_size(axis_name)
    size = x.shape[axis]
    if (tiled and size % n) or (not tiled and size != n):
        need = f"a multiple of {n}" if tiled else str(n)
        raise ShapeError(f"psum_scatter over {axis_name}: axis {axis} of {x} must have size {need}")
    middle = (size // n,) if tiled else ()
    return x.update(shape=(*x.shape[:axis], *middle, *x.shape[axis + 1 :]))


def _lane(x: Any, dim: int | None) -> ShapedArray:
    """The type of one lane."""
    aval = aval_of(x)
    return aval if dim is None else aval.update(shape=aval.shape[:dim] + aval.shape[dim + 1 :])


def _scatter_batch(ax: Any, args: Any, dims: Any, *, axis_name: tuple, axis: int, tiled: bool):
    (x,), (d,) = args, dims
    _scatter_abstract(_lane(x, d), axis_name=axis_name, axis=axis, tiled=tiled)
    if ax.name not in axis_name:
        wide = axis + (d <= axis)
        out = psum_scatter_p.bind(x, axis_name=axis_name, axis=wide, tiled=tiled)
        return out, d - (not tiled and d > axis)
    total = mul(x, ax.size) if d is None else sum_p.bind(x, axes=(d,))
    return (split_in(total, axis, ax.size) if tiled else total), axis


def linear(
    name: str, abstract: Callable, batch: Callable, transpose: Callable, **traits: Any
) -> Primitive:
    """A collective that is linear in its one operand."""

    def this() -> Primitive:
        return made

    made = Primitive(
        name=name,
        abstract=abstract,
        impl=impl_of(name),
        jvp=lambda primals, tangents, **params: (
            this().bind(*primals, **params),
            this().bind(*tangents, **params),
        ),
        transpose=transpose,
        batch=batch,
        dims=NoRule("it is a collective already"),
        **traits,
    )
    return made


all_gather_p: Primitive = linear(
    "all_gather",
    _gather_abstract,
    _gather_batch,
    lambda ct, x, **params: [psum_scatter_p.bind(ct, **params)],
    collective="all_gather",
    repeated=True,  # an array that is gathered twice need not be kept whole in between
)
psum_scatter_p: Primitive = linear(
    "psum_scatter",
    _scatter_abstract,
    _scatter_batch,
    lambda ct, x, **params: [all_gather_p.bind(ct, **params)],
    collective="reduce_scatter",
)


def some_axes(what: str, axis_name: AxisName) -> tuple:
    """The names of one axis or several; ValueError for none, and for one twice."""
    names = names_of(axis_name)
    if not names:
        raise ValueError(f"{what}: axis_name must name an axis, got {axis_name!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"{what}: axis_name names an axis twice: {axis_name!r}")
    return names


def all_gather(x: Any, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Any:
    """All lanes' x (a pytree), stacked along a new `axis`, or concatenated there where `tiled`;
    over several named axes row-major.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: fg.lax.all_gather(x, "i"), axis_name="i")(fnp.array([1.0, 2.0]))
    Array([[1., 2.],
           [1., 2.]], dtype=float32)
    """
    *outer, last = some_axes("all_gather", axis_name)

    def gather(v: Any) -> Any:
        at = axis_number("all_gather", axis, v, not tiled)
        v = all_gather_p.bind(v, axis_name=(last,), axis=at, tiled=tiled)
        for name in reversed(outer):
            v = all_gather_p.bind(v, axis_name=(name,), axis=at, tiled=True)
        return v

    return tree.map(gather, x)


def axis_number(what: str, axis: int, x: Any, new: bool) -> int:
    """The number of an axis of x (of a `new` one), from 0; ShapeError where there is none."""
    ndim, axis = len(aval_of(x).shape) + new, integer("axis", axis)
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{what}: axis={axis} is out of range for {aval_of(x)}")
    return axis % ndim


def psum_scatter(
    x: Any, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Any:
    """The sum of x (a pytree) over a named axis, of which each lane keeps its part: the part along
    `scatter_dimension` with the lane's number (a block of it where `tiled`).

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: fg.lax.psum_scatter(x, "i"), axis_name="i")(fnp.ones((2, 2)))
    Array([2., 2.], dtype=float32)
    """
    names = some_axes("psum_scatter", axis_name)
    *outer, last = names

    def scatter(v: Any) -> Any:
        at = axis_number("psum_scatter", scatter_dimension, v, False)
        _scatter_abstract(aval_of(v), axis_name=names, axis=at, tiled=tiled)
        for name in outer:
            v = psum_scatter_p.bind(v, axis_name=(name,), axis=at, tiled=True)
        return psum_scatter_p.bind(v, axis_name=(last,), axis=at, tiled=tiled)

    return tree.map(scatter, x)
