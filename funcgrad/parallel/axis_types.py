"""Functions in which mesh axes are of another type: `auto_axes` and `explicit_axes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import tree
from funcgrad.core import context
from funcgrad.core.places.sharded import ShardedArray
from funcgrad.core.settings import get_mesh, set_mesh
from funcgrad.core.sharding import AxisType, Mesh, NamedSharding
from funcgrad.errors import ShardingError
from funcgrad.parallel.arrays import reshard
from funcgrad.parallel.partitioner.explicit import AUTO
from funcgrad.transforms.arguments import wraps
from funcgrad.transforms.jit.jit import jit

_Axes = str | Sequence[str] | None


def auto_axes(
    f: Callable | None = None, /, *, axes: _Axes = None, out_sharding: Any = None
) -> Callable:
    """The function f in which the compiler decides how values are cut over mesh axes, whatever
    their type is outside of it.

    axes: the axes, by default all of the context's mesh. out_sharding: how the result is cut, a
    sharding or spec, or a pytree of them whose structure is a prefix of the result's. Works as a
    decorator, too. Raises TypeError without out_sharding, ShardingError for axes that the mesh
    lacks.

    >>> mesh = fg.make_mesh((2,), "x", fg.AxisType.Explicit)
    >>> with fg.set_mesh(mesh):
    ...     a = fg.reshard(fnp.ones((4, 4)), fg.P("x"))
    ...     gram = fg.sharding.auto_axes(lambda a: a @ a.T, out_sharding=fg.P("x"))
    ...     print(fg.typeof(fg.jit(gram)(a)))
    f32[4@x,4]
    """
    if f is None:
        return lambda g: auto_axes(g, axes=axes, out_sharding=out_sharding)
    if out_sharding is None:
        raise TypeError("auto_axes: out_sharding is missing: how is the result cut?")
    compiled = jit(f)

    def call(*args: Any, **kwargs: Any) -> Any:
        scopes = (*context.current().scopes, AUTO)
        with set_mesh(_with_type("auto_axes", axes, AxisType.Auto)), context.scoped(scopes=scopes):
            out = compiled(*args, **kwargs)
        return reshard(out, out_sharding)

    return wraps(f, "auto_axes")(call)


def explicit_axes(
    f: Callable | None = None, /, *, axes: _Axes = None, in_sharding: Any = None
) -> Callable:
    """The function f in which types say how values are cut over mesh axes, whatever their type is
    outside of it.

    axes: the axes, by default all of the context's mesh. in_sharding: how the arguments are cut, a
    spec, or a pytree of them whose structure is a prefix of the tuple of arguments. Works as a
    decorator, too. Raises TypeError without in_sharding, ShardingError for axes that the mesh
    lacks.

    >>> with fg.set_mesh(fg.make_mesh((2,), "x")):
    ...     show = fg.sharding.explicit_axes(lambda a: print(fg.typeof(a.T)), in_sharding=fg.P("x"))
    ...     show(fnp.ones((4, 4)))
    f32[4,4@x]
    """
    if f is None:
        return lambda g: explicit_axes(g, axes=axes, in_sharding=in_sharding)
    if in_sharding is None:
        raise TypeError("explicit_axes: in_sharding is missing: how are the arguments cut?")
    compiled = jit(f, in_shardings=in_sharding)

    def call(*args: Any, **kwargs: Any) -> Any:
        outside = get_mesh()
        with set_mesh(_with_type("explicit_axes", axes, AxisType.Explicit)):
            out = compiled(*args, **kwargs)
        return tree.map(lambda x: _on(outside, x), out)

    return wraps(f, "explicit_axes")(call)


def _with_type(what: str, axes: _Axes, kind: AxisType) -> Mesh:
    """The context's mesh with axes of another type."""
    mesh = get_mesh()
    if mesh.devices is None:
        raise ShardingError(f"{what}: it needs a mesh of devices, which set_mesh sets; got {mesh}")
    names = mesh.axis_names if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    if lacking := [a for a in names if a not in mesh.axis_names]:
        raise ShardingError(f"{what}: axes {lacking} are none of {mesh}")
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    types = [kind if name in names else was for name, was in pairs]
    return Mesh(np.asarray(mesh.devices), mesh.axis_names, types)


def _on(mesh: Mesh, x: Any) -> Any:
    """An array as one of this mesh of the same devices."""
    if type(x) is not ShardedArray:
        return x
    return ShardedArray(x.buffer, x.aval, NamedSharding(mesh, x.sharding.spec))
