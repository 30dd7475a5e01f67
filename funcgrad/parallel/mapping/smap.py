"""`smap`: a function mapped over one axis of a mesh, whose arguments' axes are given as numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad import tree
from funcgrad.core.sharding import P
from funcgrad.errors import ArgumentError
from funcgrad.parallel.mapping.shard_map import shard_map


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
    if not isinstance(axis_name, str):
        raise ArgumentError(f"smap: axis_name must be a name of a mesh axis, got {axis_name!r}")
    return shard_map(
        f,
        in_specs=... if in_axes is ... else _specs("in_axes", in_axes, axis_name),
        out_specs=_specs("out_axes", out_axes, axis_name),
        axis_names={axis_name},
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
