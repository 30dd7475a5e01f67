"""Collectives that know over which mesh axes a value varies from device to device.

`pvary` and `psum_invariant` are each other's transposes: what is the same on all devices, read as
something that may differ, has as cotangent the sum of all devices' cotangents. `shard_map` puts
them where they belong (`parallel.mapping.varying`); with them each derivative holds the sums it
needs, and no others.
"""

from __future__ import annotations

from typing import Any

from funcgrad import dtypes, tree
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.ops.arguments import integer
from funcgrad.ops.base import sum_p, zeros
from funcgrad.ops.collective.reductions import (
    AxisName,
    axis_index,
    axis_size,
    checked,
    linear,
    names_of,
    psum,
    reduction,
    times,
)
from funcgrad.ops.elementwise.arithmetic import div
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import convert_element_type, select_n
from funcgrad.ops.indexing.windows_at import index_in_dim


def _without(axis: Any, axis_name: tuple) -> tuple:
    return tuple(n for n in axis_name if n != axis.name)


def _pvary_batch(axis: Any, args: Any, dims: Any, *, axis_name: tuple) -> tuple:
    rest = _without(axis, axis_name)
    return (pvary_p.bind(args[0], axis_name=rest) if rest else args[0]), dims[0]


# The identity; its result counts as one that differs from device to device.
pvary_p: Primitive = linear(
    "pvary",
    lambda x, *, axis_name: checked(x, axis_name),
    _pvary_batch,
    lambda ct, x, *, axis_name: [psum_invariant_p.bind(ct, axis_name=axis_name)],
)

# psum of what varies over all of the axes: the result does not. Its cotangent is that of each
# device's operand, where psum's would be summed again.
psum_invariant_p: Primitive = reduction(
    "psum_invariant",
    lambda x, d: sum_p.bind(x, axes=(d,)),
    times,
    linear=True,
    back=lambda: pvary_p,
)


def _assume_batch(axis: Any, args: Any, dims: Any, *, axis_name: tuple) -> tuple:
    (x,), (d,) = args, dims
    rest = _without(axis, axis_name)
    if len(rest) < len(axis_name) and d is not None:
        x, d = index_in_dim(x, 0, d, keepdims=False), None
    return (assume_invariant_p.bind(x, axis_name=rest) if rest else x), d


# The identity on values that the user says are the same on all devices, though nothing shows it.
# Each device's is then as good as another's: the cotangent is dealt out in equal parts.
assume_invariant_p: Primitive = linear(
    "assume_invariant",
    lambda x, *, axis_name: checked(x, axis_name),
    _assume_batch,
    lambda ct, x, *, axis_name: [pvary_p.bind(div(ct, axis_size(axis_name)), axis_name=axis_name)],
)


def pvary(x: Any, axis_name: AxisName) -> Any:
    """x (a pytree), marked as varying over the named axes of a `shard_map`, where it is the same
    for all devices. Its cotangent is the sum over these axes.

    `shard_map` does this by itself wherever a value that doesn't vary meets one that does.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: fg.lax.pvary(x, "i"), axis_name="i")(fnp.ones(2))
    Array([1., 1.], dtype=float32)
    """
    names = names_of(axis_name)
    axis_size(names)
    return tree.map(lambda v: pvary_p.bind(v, axis_name=names) if names else v, x)


def pcast(x: Any, axis_name: AxisName, *, to: str) -> Any:
    """`pvary(x, axis_name)`, as newer code writes it: `to` must be "varying".

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: fg.lax.pcast(x, "i", to="varying"), axis_name="i")(fnp.ones(2))
    Array([1., 1.], dtype=float32)
    """
    if to != "varying":
        raise ValueError(f'pcast: to must be "varying", got {to!r}; psum and pmean do the converse')
    return pvary(x, axis_name)


def pbroadcast(x: Any, axis_name: AxisName, source: int) -> Any:
    """x (a pytree) of lane `source`, for all lanes of a named axis (row-major over several).

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.vmap(lambda x: fg.lax.pbroadcast(x, "i", 1), axis_name="i")(fnp.array([1.0, 2.0, 3.0]))
    Array([2., 2., 2.], dtype=float32)
    """
    n, source = axis_size(axis_name), integer("source", source)
    if not -n <= source < n:
        raise ValueError(f"pbroadcast over {names_of(axis_name)}: no lane {source} among {n}")
    here = eq(axis_index(axis_name), source % n)

    def of_source(v: Any) -> Any:
        aval = aval_of(v)
        total = psum(select_n(here, zeros(aval), v), axis_name)
        return convert_element_type(total, aval.dtype) if aval.dtype == dtypes.BOOL else total

    return tree.map(of_source, x)
