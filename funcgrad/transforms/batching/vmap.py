"""vmap: map a function of pytrees over an axis of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.refs import check_distinct
from funcgrad.core.trace import aval_of
from funcgrad.core.types import AxisName, BatchDims, Prefix, Tree, Value, Values
from funcgrad.errors import BatchingError
from funcgrad.ops.base import batch_front, move_axis
from funcgrad.transforms.arguments import (
    FlatFunction,
    PositionalFunction,
    check_leaves,
    is_arraylike,
    leaf_names,
    name_of,
    note_leaves,
    wraps,
)
from funcgrad.transforms.batching.batching import batch_flat
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.refs import Lending, refs_among


def vmap(
    fun: Callable,
    in_axes: Prefix = 0,
    out_axes: Prefix = 0,
    axis_name: AxisName = None,
    axis_size: int | None = None,
    spmd_axis_name: str | Sequence[str] | None = None,
) -> Callable:
    """The function that applies `fun` along an axis of its arguments, all at once.

    in_axes: for each positional argument the axis to map, None to pass it whole; an int for all, or
    a pytree prefix of the arguments. Keyword arguments are mapped over axis 0. out_axes likewise
    for results (None where a result is the same for all lanes). axis_name: a name by which `psum`,
    `axis_index` and other collectives inside `fun` reach across the axis. axis_size: needed only
    where no argument is mapped. spmd_axis_name: mesh axes over which the mapped axis is cut, for
    `shard_map` and sharding constraints inside `fun`.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(fnp.dot, in_axes=(0, None))(fnp.ones((3, 2)), fnp.ones(2))
    Array([2., 2., 2.], dtype=float32)
    """
    if not callable(fun):
        raise TypeError(f"vmap: the first argument must be a function, got {fun!r}")
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)

    spmd = (spmd_axis_name,) if isinstance(spmd_axis_name, str) else tuple(spmd_axis_name or ())

    @wraps(fun, "vmap")
    @boundary
    def mapped(*args: Any, **kwargs: Any) -> Tree:
        if kwargs:
            leaves, in_tree = tree.flatten((args, kwargs))
            flat = FlatFunction("vmap", fun, in_tree)
        else:
            leaves, in_tree = tree.flatten(args)
            flat = PositionalFunction("vmap", fun, in_tree)
        axes = _axes(fun, in_axes, args, len(leaves))
        lent = Lending(flat, [i for i in refs_among(leaves) if axes[i] is not None])
        given = leaves
        if lent.positions:
            refs = [leaves[i] for i in lent.positions]
            names = leaf_names(fun, args, kwargs)
            check_distinct(f"vmap of {name_of(fun)}", refs, [names[i] for i in lent.positions])
            leaves = [x.read() if i in lent.positions else x for i, x in enumerate(leaves)]
        dims = _normalized(fun, args, kwargs, leaves, axes)
        size = _mapped_size(fun, args, kwargs, leaves, dims, axis_size)
        axis = BatchAxis(axis_name, size, spmd)
        outs, out_dims = batch_flat(lent if lent.positions else flat, axis, leaves, dims)
        for i in reversed(lent.written):
            given[i].write(_place(fun, outs.pop(), out_dims.pop(), dims[i], size))
        if type(out_axes) is int:
            wanted = [out_axes] * len(outs)
        else:
            wanted = tree.flatten_axes("vmap out_axes", flat.out_tree, out_axes)
        return flat.unflatten(
            [_place(fun, o, d, w, size) for o, d, w in zip(outs, out_dims, wanted, strict=True)]
        )

    return mapped


def _axes(fun: Callable, in_axes: Prefix, args: tuple, count: int) -> list:
    """The axis of each of `count` leaves, as the user says it."""
    if type(in_axes) is int and in_axes == 0:
        return [0] * count
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise BatchingError(
            f"vmap of {name_of(fun)}: in_axes has {len(in_axes)} entries, but the function was "
            f"called with {len(args)} positional arguments"
        )
    axes = tree.flatten_axes("vmap in_axes", tree.structure(args), in_axes)
    return axes + [0] * (count - len(axes))


def _normalized(
    fun: Callable, args: tuple, kwargs: dict, leaves: Values, axes: Sequence[int | None]
) -> list[int | None]:
    note_leaves(leaves)
    dims: list[int | None] = []
    for i, (leaf, axis) in enumerate(zip(leaves, axes, strict=True)):
        if axis is None or (type(axis) is int and not axis and type(leaf) is Array and leaf.ndim):
            dims.append(axis)
            continue
        if not is_arraylike(leaf):
            check_leaves("vmap", fun, args, kwargs)
        aval = aval_of(leaf)
        if type(axis) is not int or not -aval.ndim <= axis < aval.ndim:
            name = leaf_names(fun, args, kwargs)[i]
            raise BatchingError(
                f"vmap of {name_of(fun)}: in_axes maps axis {axis} of argument {name}, which is "
                f"{aval} with {aval.ndim} axes; use None to pass it whole{_implied(axis, aval)}"
            )
        dims.append(axis % aval.ndim)
    return dims


def _implied(axis: object, aval: ShapedArray) -> str:
    """What an axis asks for, in JAX's words."""
    if type(axis) is not int:
        return ""
    rank = axis + 1 if axis >= 0 else -axis
    return (
        f". vmap was requested to map its argument along axis {axis}, which implies that its rank "
        f"should be at least {rank}, but is only {aval.ndim} (its shape is {aval.shape})"
    )


def _mapped_size(
    fun: Callable, args: tuple, kwargs: dict, leaves: Values, dims: BatchDims, size: int | None
) -> int:
    sizes = [
        None if d is None else (x if type(x) is Array else aval_of(x)).shape[d]
        for x, d in zip(leaves, dims, strict=True)
    ]
    found = {n for n in sizes if n is not None}
    if size is not None:
        found.add(size)
    if len(found) == 1:
        return found.pop()
    if not found:
        why = (
            "vmap must have at least one non-None value in in_axes, or axis_size must be specified"
            if leaves
            else "vmap wrapped function must be passed at least one argument containing an array "
            f"or axis_size must be specified, got empty *args={args} and **kwargs={kwargs}"
        )
        raise BatchingError(f"vmap of {name_of(fun)}: no argument is mapped: {why}")
    names = leaf_names(fun, args, kwargs)
    listed = "; ".join(
        f"{name} has size {n} at axis {d}"
        for name, n, d in zip(names, sizes, dims, strict=True)
        if n is not None
    )
    asked = f"; axis_size={size}" if size is not None else ""
    raise BatchingError(
        f"vmap of {name_of(fun)}: the mapped axes must have one size, but {listed}{asked}"
    )


def _place(fun: Callable, out: Value, dim: int | None, wanted: int | None, size: int) -> Value:
    if wanted == dim and type(wanted) is int:
        return out
    if wanted is None:
        if dim is not None:
            raise BatchingError(
                f"vmap of {name_of(fun)}: out_axes=None needs a result that is the same for all "
                "lanes, but it depends on a mapped argument; use an axis, or reduce over axis_name"
            )
        return out
    ndim = len(aval_of(out).shape) + (dim is None)
    if type(wanted) is not int or not -ndim <= wanted < ndim:
        raise BatchingError(
            f"vmap of {name_of(fun)}: out_axes={wanted} is no axis of a result with {ndim} axes"
        )
    if dim is None:
        out, dim = batch_front(out, None, size), 0
    return move_axis(out, dim, wanted % ndim)
