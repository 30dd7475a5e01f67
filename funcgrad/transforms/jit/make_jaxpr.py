"""Programs and types, for looking at: `make_jaxpr`, `eval_shape` and `typeof`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.backend import explicit
from funcgrad.core.closed import ClosedJaxpr
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.refs import AbstractRef, Ref, settled
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.staging import stage_with_refs
from funcgrad.core.types import Tree, Value
from funcgrad.transforms.arguments import (
    FlatFunction,
    check_leaves,
    is_arraylike,
    leaf_names,
    name_of,
    split_static,
    wraps,
)
from funcgrad.transforms.refs import Lending, aval_or_inner, refs_among


def make_jaxpr(
    fun: Callable, static_argnums: int | Sequence[int] = (), return_shape: bool = False
) -> Callable:
    """The function that gives the program of `fun` for arguments of the given types.

    static_argnums: positional arguments that are passed as they are. return_shape: give also the
    result as a tree of `ShapeDtypeStruct`. Mutable arrays are inputs by what they hold; what they
    hold in the end, where the function writes to them, comes after its results.

    >>> import funcgrad as fg
    >>> fg.make_jaxpr(lambda x: x * 2)(1.0)
    { lambda ; a:f32[] . let
        b:f32[] = mul a 2.0:f32[]
      in (b,) }
    """

    @wraps(fun, "make_jaxpr")
    @boundary
    def maker(*args: Any, **kwargs: Any) -> ClosedJaxpr | tuple[ClosedJaxpr, Tree]:
        call, dynamic, fixed = split_static("make_jaxpr", fun, static_argnums, args)
        leaves, in_tree = tree.flatten((dynamic, kwargs))
        names = leaf_names(fun, args, kwargs, fixed)
        flat = FlatFunction("make_jaxpr", call, in_tree)
        places = refs_among(leaves)
        if not places:
            check_leaves("make_jaxpr", fun, args, kwargs, fixed)
        lending = Lending(flat, places)
        avals = [aval_or_inner(x) for x in leaves]
        what = f"make_jaxpr({name_of(fun)})"
        jaxpr, consts, _ = stage_with_refs(lending, avals, what, names)
        closed = ClosedJaxpr(jaxpr, settled(consts))
        if not return_shape:
            return closed
        outs = jaxpr.out_avals[: flat.out_tree.num_leaves]
        return closed, flat.unflatten([struct(a) for a in outs])

    return maker


@boundary
def eval_shape(fun: Callable, *args: Any, **kwargs: Any) -> Tree:
    """The shapes and dtypes of `fun(*args, **kwargs)`, without computing it.

    Arguments may be arrays or `ShapeDtypeStruct`; the result is a tree of `ShapeDtypeStruct`.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.eval_shape(fnp.sum, fnp.ones((1000, 1000)))
    ShapeDtypeStruct(shape=(), dtype=float32)
    """
    return make_jaxpr(fun, return_shape=True)(*args, **kwargs)[1]


def typeof(x: Value | Ref) -> ShapedArray | AbstractRef:
    """The type of an array, a mutable array or a number, traced or not: its shape and dtype, and as
    `.sharding` how it is cut over a mesh's axes of type `AxisType.Explicit`.

    Under `jit` types have shardings where `set_mesh` sets a mesh with such axes, and ShardingError
    is raised where it is ambiguous how a value is cut. An input of `shard_map`'s function, a row of
    an array that `scan` goes over and that is cut along its first axis, and what comes of such
    values, have types without `.sharding`.

    >>> fg.typeof(fnp.ones((2, 3)))
    f32[2,3]
    >>> mesh = fg.make_mesh((2,), "data", (fg.AxisType.Explicit,))
    >>> with fg.set_mesh(mesh):
    ...     x = fg.device_put(fnp.ones((4, 3)), fg.P("data"))
    ...     fg.jit(lambda x: print(fg.typeof(x.T), fg.typeof(x.T).sharding.spec))(x)
    f32[3,4@data] P(None, 'data')
    """
    if type(x) is Ref:
        return AbstractRef(x.inner_aval)
    if not is_arraylike(x):
        raise TypeError(f"typeof: x must be an array or a number, got {x!r} of {type(x)}")
    return explicit().type_of(x)


def struct(aval: ShapedArray) -> ShapeDtypeStruct:
    """A type as users see it."""
    return ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
