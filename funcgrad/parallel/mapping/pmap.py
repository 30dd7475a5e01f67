"""pmap: one lane of a batch for each device, as `vmap` on many of them: JAX's older interface.

It is `shard_map` over a mesh of one axis, on which mapped axes are cut into single rows; what its
functions mean is `vmap` with an axis name, also for derivatives of collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad import tree
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.sharding import Device, PartitionSpec
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, BatchingError, ShardingError
from funcgrad.ops.base import move_axis
from funcgrad.ops.shape import expand_dims, reshape
from funcgrad.parallel.mapping.shard_map import shard_map
from funcgrad.parallel.meshes import make_mesh
from funcgrad.transforms.arguments import check_leaves, leaf_names, name_of, wraps
from funcgrad.transforms.jit.choice import Choice
from funcgrad.transforms.jit.jit import Jitted, jit

_AXIS = "pmap"  # where the user names none


class _Options(NamedTuple):
    """What the user says of all calls."""

    axis_name: str
    in_axes: Any
    out_axes: Any
    static: frozenset[int]
    donated: frozenset[int]
    devices: tuple[Device, ...] | None
    axis_size: int | None


def pmap(
    fun: Callable,
    axis_name: str | None = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[Device] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
) -> Callable:
    """The function compiled to run on many devices, each with its row of the mapped arguments.

    in_axes: for each positional argument the axis to map, or None to give each device all of it; an
        int, or a pytree whose structure is a prefix of the arguments. Keyword arguments are mapped
        over axis 0. out_axes likewise for results: None for those that are the same on all devices,
        which the user vouches for.
    axis_name: the name by which collectives in `fun` reach the other devices
    static_broadcasted_argnums: arguments whose values the program may depend on; hashable
    devices: as many as the mapped axis is long; by default virtual ones, or the job's ranks
    backend: None or "cpu"; axis_size: checked, if it is given
    donate_argnums: arguments whose memory results may take, as of `jit`

    Results are cut over the devices. `shard_map`, and `jit` of sharded arrays, do more, and leave
    to each device more than one row.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> total = fg.pmap(lambda x: x / fg.lax.psum(x, "i"), axis_name="i")
    >>> total(fnp.array([1.0, 2.0, 3.0, 4.0]))
    ShardedArray([0.1, 0.2, 0.3, 0.4], dtype=float32, P('i') on Mesh('i': 4))
    """
    _check(fun, axis_name, backend)
    options = _Options(
        _AXIS if axis_name is None else axis_name, _prefix(in_axes), _prefix(out_axes),
        Choice.of(fun, static_broadcasted_argnums, None, "static_broadcasted", "pmap").nums,
        Choice.of(fun, donate_argnums, None, "donate", "pmap").nums,
        None if devices is None else tuple(devices), axis_size,
    )  # fmt: skip
    programs: dict[Any, Jitted] = {}

    @wraps(fun, "pmap")
    @boundary
    def mapped(*args: Any, **kwargs: Any) -> Any:
        static = tuple((i, a) for i, a in enumerate(args) if i in options.static)
        _check_static(fun, static)
        dynamic = tuple(a for i, a in enumerate(args) if i not in options.static)
        check_leaves("pmap", fun, args, kwargs, options.static)
        leaves, in_tree = tree.flatten((dynamic, kwargs))
        names = leaf_names(fun, args, kwargs, options.static)
        axes = _axes(fun, options, dynamic, leaves, names, len(args))
        size = _size(fun, options, leaves, axes, names)
        key = (size, in_tree, tuple(axes), static)
        if key not in programs:
            call = _Call(fun, dict(static), len(args), in_tree, axes, size)
            donated = _donated(args, options)
            programs[key] = jit(_program(call, options), donate_argnums=donated)
        return programs[key](*leaves)

    return mapped


def _prefix(axes: Any) -> Any:
    return tuple(axes) if isinstance(axes, list) else axes


def _check(fun: Any, axis_name: Any, backend: Any) -> None:
    if not callable(fun):
        raise TypeError(f"pmap: the first argument must be a function, got {fun!r}")
    if not isinstance(axis_name, str | None):
        raise TypeError(f"pmap: axis_name must be a string, got {axis_name!r}")
    if backend not in (None, "cpu"):
        raise ValueError(f"pmap: backend must be None or 'cpu', got {backend!r}; give devices=")


class _Call(NamedTuple):
    """What calls of one kind have in common."""

    fun: Callable
    static: dict[int, Any]
    n_args: int
    in_tree: Any
    axes: Sequence[int | None]
    size: int


def _program(call: _Call, options: _Options) -> Callable:
    """The function of flat arguments: mapped axes go to the front, where they are cut."""
    fun, name = call.fun, options.axis_name
    mesh = make_mesh((call.size,), name, devices=options.devices)

    def lane(*rows: Any) -> Any:
        parts = [x if a is None else reshape(x, aval_of(x).shape[1:])
                 for x, a in zip(rows, call.axes, strict=True)]  # fmt: skip
        dynamic, kwargs = call.in_tree.unflatten(parts)
        rest = iter(dynamic)
        every = range(call.n_args)
        args = [call.static[i] if i in call.static else next(rest) for i in every]
        out, structure = tree.flatten(fun(*args, **kwargs))
        wanted = _out_axes(fun, structure, options)
        return structure.unflatten(
            [x if a is None else expand_dims(x, (0,)) for x, a in zip(out, wanted, strict=True)]
        )

    def spec(axis: int | None) -> PartitionSpec:
        return PartitionSpec() if axis is None else PartitionSpec(name)

    out_specs = tree.map(spec, options.out_axes, is_leaf=lambda a: a is None)
    each = shard_map(
        wraps(fun, "lane")(lane), mesh=mesh, in_specs=tuple(map(spec, call.axes)),
        out_specs=out_specs, check_vma=False,
    )  # fmt: skip

    def whole(*leaves: Any) -> Any:
        moved = [x if a is None else move_axis(x, a, 0)
                 for x, a in zip(leaves, call.axes, strict=True)]  # fmt: skip
        out, structure = tree.flatten(each(*moved))
        wanted = _out_axes(fun, structure, options)
        return structure.unflatten(
            [x if a is None else _placed(fun, x, a) for x, a in zip(out, wanted, strict=True)]
        )

    return wraps(fun, "pmap")(whole)


# ---- arguments


def _check_static(fun: Callable, static: Sequence[tuple[int, Any]]) -> None:
    for position, value in static:
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                f"pmap of {name_of(fun)}: argument {position}, of static_broadcasted_argnums, must "
                f"be hashable, got {value!r} of {type(value)}"
            ) from None


def _axes(
    fun: Callable, options: _Options, dynamic: tuple, leaves: Sequence, names: Sequence[str],
    n_args: int,
) -> list[int | None]:  # fmt: skip
    """For each leaf its mapped axis, from the front, or None."""
    what, in_axes = f"pmap of {name_of(fun)}: in_axes", options.in_axes
    if isinstance(in_axes, tuple):
        if len(in_axes) != n_args:
            raise BatchingError(
                f"{what} has {len(in_axes)} entries, but the function was called with {n_args} "
                "positional arguments"
            )
        in_axes = tuple(a for i, a in enumerate(in_axes) if i not in options.static)
    axes = tree.flatten_axes(what, tree.structure(dynamic), in_axes)
    axes += [0] * (len(leaves) - len(axes))
    found: list[int | None] = []
    for x, axis, name in zip(leaves, axes, names, strict=True):
        aval = aval_of(x)
        if axis is not None and (type(axis) is not int or not -aval.ndim <= axis < aval.ndim):
            raise BatchingError(
                f"{what} maps axis {axis} of argument {name}, which is {aval} with {aval.ndim} "
                "axes; use None to give each device all of it"
            )
        found.append(None if axis is None else axis % aval.ndim)
    return found


def _size(
    fun: Callable, options: _Options, leaves: Sequence, axes: Sequence, names: Sequence[str]
) -> int:
    """The length of the mapped axes: the number of devices."""
    what = f"pmap of {name_of(fun)}"
    sizes = {name: aval_of(x).shape[a]
             for name, x, a in zip(names, leaves, axes, strict=True) if a is not None}  # fmt: skip
    if options.axis_size is not None:
        sizes["axis_size"] = options.axis_size
    if not sizes:
        raise BatchingError(
            f"{what}: at least one argument must be mapped, in_axes is None for all"
        )
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {n}" for name, n in sizes.items())
        raise BatchingError(f"{what}: mapped axes must have one size, got {listed}")
    size = next(iter(sizes.values()))
    if options.devices is not None and len(options.devices) != size:
        raise ShardingError(
            f"{what}: each row has a device of its own: {size} rows need as many devices, "
            f"got {len(options.devices)}"
        )
    return size


def _out_axes(fun: Callable, structure: Any, options: _Options) -> list[int | None]:
    return tree.flatten_axes(f"pmap of {name_of(fun)}: out_axes", structure, options.out_axes)


def _placed(fun: Callable, out: Any, axis: int) -> Any:
    """A result with its first axis, of devices, at another place."""
    ndim = aval_of(out).ndim
    if type(axis) is not int or not -ndim <= axis < ndim:
        raise BatchingError(
            f"pmap of {name_of(fun)}: out_axes={axis} is no axis of a result with {ndim} axes"
        )
    return move_axis(out, 0, axis % ndim)


def _donated(args: tuple, options: _Options) -> list[int]:
    """The positions among the leaves of those of donated arguments."""
    dynamic = [(i, a) for i, a in enumerate(args) if i not in options.static]
    mask = [i in options.donated for i, a in dynamic for _ in tree.leaves(a)]
    return list(np.flatnonzero(mask).tolist())
