"""`smap`: a function mapped over one axis of a mesh, whose arguments' axes are given as numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad import tree
from funcgrad.core import context
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.sharding import NamedSharding, P
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.parallel.mapping.shard_map import shard_map
from funcgrad.transforms.arguments import name_of, wraps


def smap(
    f: Callable | None = None, /, *, in_axes: Any = ..., out_axes: Any, axis_name: str
) -> Callable:
    """`f` run by each device along one axis of the context's mesh (`set_mesh`): `shard_map`, with
    numbers of axes in the place of specs. Over the mesh's other axes arrays stay whole for f.

    in_axes: for each positional argument the axis that is cut, None for one that is whole; one for
    all, or a pytree prefix of the arguments. It may be left out where `axis_name` is an Explicit
    axis: types say it. out_axes: the axes along which the devices' results are put together, None
    for what is the same on all. Works as a decorator, too. Raises TypeError for what is no axis.

    >>> with fg.set_mesh(fg.make_mesh((4,), "data")):
    ...     f = fg.smap(lambda x: x - x[0], in_axes=0, out_axes=0, axis_name="data")
    ...     print(np.asarray(f(fnp.arange(8))))
    [0 1 0 1 0 1 0 1]
    """
    if f is None:
        return lambda g: smap(g, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name)
    if not callable(f):
        raise TypeError(f"smap: the first argument must be a function, got {f!r}")
    if not isinstance(axis_name, str):
        raise ArgumentError(f"smap: axis_name must be a name of a mesh axis, got {axis_name!r}")
    mapped = shard_map(
        f,
        in_specs=... if in_axes is ... else _specs("in_axes", in_axes, axis_name),
        out_specs=_specs("out_axes", out_axes, axis_name),
        axis_names={axis_name},
    )

    @wraps(f, "smap")
    @boundary
    def checked(*args: Any) -> Any:
        _check_mesh(f"smap of {name_of(f)}", args, axis_name, in_axes is ...)
        return mapped(*args)

    return checked


def _check_mesh(what: str, args: tuple, axis_name: str, by_types: bool) -> None:
    """Raise ShardingError unless there is one mesh that has the axis, and, where types shall say
    how arguments are cut, all of whose axes are Explicit."""
    mesh = context.current().mesh
    if mesh is None:
        cuts = (getattr(x, "sharding", None) for x in tree.leaves(args))
        meshes = {s.mesh for s in cuts if isinstance(s, NamedSharding)}
        if len(meshes) != 1:
            raise ShardingError(
                f"{what}: a mesh is needed (set_mesh), as the arguments are on "
                f"{'none' if not meshes else 'several: ' + ', '.join(map(str, meshes))}"
            )
        mesh = meshes.pop()
    if axis_name not in mesh.axis_names:
        raise ShardingError(f"{what}: axis_name must be an axis of {mesh}, got {axis_name!r}")
    if by_types and mesh.auto_axes:
        raise ShardingError(
            f"{what}: in_axes= is needed: it follows from the arguments over Explicit axes alone, "
            f"and {', '.join(map(repr, mesh.auto_axes))} of {mesh} isn't"
        )


def _specs(argument: str, axes: Any, name: str) -> Any:
    """Axes as specs: what is no axis is whole."""

    def spec(axis: Any) -> P:
        if axis is None:
            return P()
        if isinstance(axis, bool) or not isinstance(axis, int) or axis < 0:
            raise TypeError(
                f"smap {argument} must be an int from 0 on, None, or (nested) container with those "
                f"as leaves, but got {axes!r}"
            )
        return P(*[None] * axis, name)

    return tree.map(spec, axes, is_leaf=lambda x: x is None)
